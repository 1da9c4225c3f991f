"""What region forming asks of an equation: is it elementwise, a movement, an anchor; what does recomputing it cost."""

from __future__ import annotations

from collections.abc import Set

from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Input, Value
from poot_executor.graph.keys import Storage

ELEMENTWISE = frozenset(
    "neg abs exp log sqrt recip tanh erf sin cos floor round not add sub mul div max min pow "
    "eq ne lt le gt ge and or xor shl shr rem select cast bitcast".split()
)
MOVEMENT = frozenset("reshape transpose broadcast slice concat pad iota gather packed_dequant".split())
INDEX_MOVES = frozenset(("reshape", "transpose", "broadcast", "slice", "iota"))
"""Movements that change an index and nothing else."""
REDUCTIONS = frozenset(("sum", "reduce_max"))
SHORT = 16
"""The longest axis that an expression reduces, element by element, where it is not the last one."""
SWEEPS = frozenset("matmul indexed_matmul argmax arg_top_k sample_token".split())
"""Anchors that read each element of an operand many times, or in several passes."""
SCATTERS = frozenset(("scatter_update", "dynamic_update_slice"))
ANCHORS = SWEEPS | SCATTERS | {"random_bits"}
DEAR = frozenset("exp log sqrt recip tanh erf sin cos div pow".split())
"""Operations that are not worth computing twice."""
MOVEMENT_COST = {
    "reshape": 0,
    "transpose": 0,
    "broadcast": 0,
    "slice": 0,
    "iota": 0,
    "concat": 2,
    "pad": 2,
    "gather": 2,
}
"""Operations that a movement costs; one that only changes the index costs none."""
CHEAP_OPERATIONS = 12
"""An expression of at most this many operations is recomputed by each of its consumers rather than stored."""


def is_inline(equation: Equation) -> bool:
    """True for what an expression computes at any index, without a kernel of its own."""
    return equation.op in ELEMENTWISE or equation.op in MOVEMENT


def is_short(equation: Equation) -> bool:
    """Is it a reduction that one thread makes as part of an expression: of a few elements that lie apart?"""
    if equation.op not in REDUCTIONS:
        return False
    shape, axis = equation.inputs[0].shape, equation.params["axis"]
    return axis < len(shape) - 1 and shape[axis] <= SHORT


def weight_view(graph: Graph, value: Value) -> Value | None:
    """The CONST that a value shows through decoding, widening and movement alone; None for anything else."""
    defined = graph.definition(value)
    if isinstance(defined, Input):
        return value if defined.storage is Storage.CONST else None
    if defined.op in ("packed_dequant", "cast", "reshape", "transpose", "broadcast", "slice"):
        return weight_view(graph, defined.inputs[0])
    return None


def experts_of(graph: Graph, anchor: Equation) -> Value | None:
    """The weight [e, n, k] whose matrices rows of an indexed_matmul choose from, seen as it is stored: decoded and
    widened alone; None where it is not so simple."""
    equation = graph.equation(anchor.inputs[1])
    if equation is None or equation.op != "transpose" or equation.params["permutation"] != (0, 2, 1):
        return None
    value = _stored_below(graph, equation.inputs[0])
    return value if weight_view(graph, value) is value and len(value.shape) == 3 else None


def _stored_below(graph: Graph, value: Value) -> Value:
    while (below := graph.equation(value)) is not None and (below.op == "packed_dequant" or _widens(below)):
        value = below.inputs[0]
    return value


def weight_of(graph: Graph, anchor: Equation) -> Value | None:
    """The weight [n, k] that a matmul [m, k] · [k, n] multiplies by, seen as it is stored: decoded and widened alone;
    None where it is not so simple."""
    equation = graph.equation(anchor.inputs[1])
    if equation is None or equation.op != "transpose" or equation.params["permutation"] != (1, 0):
        return None
    value = _stored_below(graph, equation.inputs[0])
    return value if weight_view(graph, value) is value and len(value.shape) == 2 else None


def _widens(equation: Equation) -> bool:
    """Does a cast keep every value?"""
    if equation.op != "cast":
        return False
    source, target = equation.inputs[0].dtype, equation.output.dtype
    return source is target or (source.is_float and target is DType.F32)


def operations(graph: Graph, value: Value, stored: Set[Value]) -> int | None:
    """Operations that one element costs when recomputed from stored values; None where that is too dear."""
    if value in stored:
        return 1
    equation = graph.equation(value)
    if equation is None or equation.op in ANCHORS or (equation.op in REDUCTIONS and not is_short(equation)):
        return 1
    if not is_inline(equation) or equation.op in DEAR or equation.op == "packed_dequant":
        return None
    total = MOVEMENT_COST.get(equation.op, 1)
    for place, operand in enumerate(equation.inputs):
        cost = operations(graph, operand, stored)
        if cost is None:
            return None
        # The index of a row is the same for all of its elements.
        total += 1 if equation.op == "gather" and place == 1 else cost
        if total > CHEAP_OPERATIONS:
            return None
    return total

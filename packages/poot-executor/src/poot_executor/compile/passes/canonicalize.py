"""Canonical form: equations that do nothing go, chains become one, operands have one order.

Every rule keeps every bit of the result, but that any NaN counts as any other. Rules are in a table
by operation; they apply to the new graph, so that one walk in order sees operands in final form.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from poot_executor.compile.passes import canonical_arithmetic as arithmetic
from poot_executor.compile.passes import canonical_movement as movement
from poot_executor.compile.passes.canonical_rule import Rule
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.graph.rewrite import Call, Rewriter

_CANONICAL: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        # Movement
        "reshape": (movement.same_type, movement.reshape_of_reshape, movement.splat_moved),
        "transpose": (
            movement.identity_permutation,
            movement.transpose_of_transpose,
            movement.transpose_of_ones,
            movement.splat_moved,
        ),
        "broadcast": (movement.same_type, movement.broadcast_of_broadcast),
        "slice": (movement.same_type, movement.slice_of_slice, movement.splat_moved),
        "concat": (movement.only_operand,),
        "pad": (movement.same_type,),
        "cast": (movement.same_type, movement.cast_of_lossless_cast),
        "bitcast": (movement.same_type, movement.bitcast_of_bitcast),
        # One operand
        "neg": (arithmetic.undo("neg"),),
        "not": (arithmetic.undo("not"),),
        "abs": (arithmetic.abs_of_sign,),
        "sum": (movement.reduction_of_one,),
        "reduce_max": (movement.reduction_of_one,),
        # Two operands
        "add": (arithmetic.neutral, arithmetic.operand_order),
        "sub": (arithmetic.neutral,),
        "mul": (arithmetic.neutral, arithmetic.absorbing, arithmetic.operand_order),
        "div": (arithmetic.neutral,),
        "max": (arithmetic.equal_operands,),
        "min": (arithmetic.equal_operands,),
        "and": (
            arithmetic.equal_operands,
            arithmetic.neutral,
            arithmetic.absorbing,
            arithmetic.operand_order,
        ),
        "or": (
            arithmetic.equal_operands,
            arithmetic.neutral,
            arithmetic.absorbing,
            arithmetic.operand_order,
        ),
        "xor": (arithmetic.neutral, arithmetic.operand_order),
        "shl": (arithmetic.neutral,),
        "shr": (arithmetic.neutral,),
        "eq": (arithmetic.operand_order,),
        "ne": (arithmetic.operand_order,),
        "gt": (arithmetic.turned("lt"),),
        "ge": (arithmetic.turned("le"),),
        "select": (arithmetic.select_known, arithmetic.select_not),
    }
)


def canonicalize(graph: Graph) -> Graph:
    """The graph in canonical form, as far as one walk goes."""
    rewriter = Rewriter(graph)
    for item in graph.inputs:
        rewriter.keep_input(item)
    for equation in graph.equations:
        _equation(rewriter, equation)
    return rewriter.result()


def _equation(rewriter: Rewriter, equation: Equation) -> None:
    call = rewriter.call(equation)
    simplified = simplify(rewriter, call)
    if simplified is call:
        rewriter.keep(equation)
    elif isinstance(simplified, Value):
        rewriter.replace(equation.output, simplified)
    else:
        rewriter.replace(equation.output, rewriter.emit(simplified))


def simplify(rewriter: Rewriter, call: Call) -> Call | Value:
    """Apply rules until none fires: the same call, another one, or a value that is there already."""
    found: Call | Value | None = call
    while isinstance(found, Call):
        call = found
        found = next((r for rule in _CANONICAL.get(call.op, ()) if (r := rule(rewriter, call))), None)
    return call if found is None else found

"""The bound of a region's result: the error rules walked over a graph, given the oracle's values.

Within one region, on the device's own inputs, the walk is tight: a wrong term, a lost element or a
1e-3 slip stands out. Over a whole model it grows vacuous; there `end_to_end_bound` is the measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.error_rules import ERROR_RULES, move
from poot_eval.error_steps import TINY, Errors, Operand, Step
from poot_eval.sampling_bounds import sampling_error
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.formats import format_named
from poot_executor.graph.graph import Equation, Graph, Value
from poot_executor.graph.keys import StateKey

Array = NDArray[Any]

KAPPA = 4.0
"""The one factor of the project between a device's end-to-end error and the float32 oracle's.

Both are sums of the same roundings in another order. The float32 oracle adds in ascending order,
which no device's blocked or tree order exceeds in expectation; two draws of such an error, each
measured by its greatest element, differ by less than 2 on the graphs of the tests, and a device's
transcendentals (up to 3 ULP where numpy has 1) add at most another 2.
"""

FLOOR_ULPS = 32.0
"""Below this many roundings of a tensor's greatest element, end to end, nothing is read into an
error: one draw of the float32 oracle may be small by luck."""

_KEEP_SIZE = frozenset({"reshape", "transpose", "broadcast", "slice", "concat", "gather"})


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Error arrays by value; infinity where the inputs do not decide an element."""

    errors: Mapping[Value, Errors]
    graph: Graph

    def output(self, name: str) -> Errors:
        """The bound of a named output."""
        return self.errors[self.graph.outputs[name]]

    def state(self, key: StateKey) -> Errors:
        """The bound of a state after the step."""
        return next(self.errors[pair.after] for pair in self.graph.state if pair.key == key)

    @property
    def undecided(self) -> int:
        """Elements of outputs and states that the inputs do not decide."""
        kept = {*self.graph.outputs.values(), *(pair.after for pair in self.graph.state)}
        return sum(int(np.isinf(self.errors[value]).sum()) for value in kept)


def bound_for(
    graph: Graph,
    environment: Mapping[Value, Array],
    caps: Caps,
    given: Mapping[Value, Errors] | None = None,
) -> Bounds:
    """The bound of every value of a graph on a target.

    `environment` is the oracle's (`EvalOptions(environment=True)`) on the device's own inputs;
    `given` are errors of inputs that are not exactly the device's.
    """
    errors: dict[Value, Errors] = {}
    sizes: dict[Value, Errors] = {}
    given = given or {}
    for entry in graph.inputs:
        value = entry.value
        errors[value] = given.get(value, _input_error(environment[value], value.dtype, caps))
    sums, products = _feeding(graph, {"add", "sub"}), _feeding(graph, {"mul"})
    with np.errstate(all="ignore"):
        for equation in graph.equations:
            operands = tuple(
                Operand(environment[v], errors[v], sizes[v] if v in sizes else _size(environment[v]))
                for v in equation.inputs
            )
            out = equation.output
            softmax = _softmax_of(graph, equation)
            fed = (out in sums, out in products)
            step = Step(equation, operands, environment[out], caps, *fed, softmax is not None, softmax)
            errors[out] = _settled(step, _error(step))
            size = _result_size(equation, operands, environment[out], sizes)
            if size is not None:
                sizes[out] = size
    return Bounds(MappingProxyType(errors), graph)


def _feeding(graph: Graph, readers: Set[str]) -> set[Value]:
    """Values that one of these operations reads, through signs and movement too: a kernel computes them where it
    needs them."""
    found: set[Value] = set()
    for equation in reversed(graph.equations):
        passed = equation.op == "neg" or equation.op in _KEEP_SIZE
        if equation.op in readers or (passed and equation.output in found):
            found.update(equation.inputs)
    return found


def end_to_end_bound(single: Array, oracle: Array) -> Errors:
    """The bound of a whole model's tensor: KAPPA times the distance between the float32 and the
    float64 oracle on the same input, as the greatest over the tensor, with a floor."""
    wide = oracle.astype(np.float64)
    finite = np.isfinite(wide)
    distance = np.abs(single.astype(np.float64) - wide)[finite]
    size = np.abs(wide[finite])
    scale = KAPPA * distance.max(initial=0.0) + FLOOR_ULPS * 2.0**-24 * size.max(initial=0.0)
    return np.full(oracle.shape, scale)


def _softmax_of(graph: Graph, equation: Equation) -> DType | None:
    """Where a matmul's left operand is exp(...) / ..., seen through casts and movement, the dtype that
    the quotient is rounded to before it is contracted; else None."""
    if equation.op != "matmul":
        return None
    rounded, value = DType.F32, equation.inputs[0]
    while (found := graph.equation(value)) is not None and found.op in _SEEN_THROUGH:
        if found.op == "cast" and value.dtype in (DType.F16, DType.BF16):
            rounded = value.dtype
        value = found.inputs[0]
    quotient = found is not None and found.op == "div" and _op(_seen_through(graph, found.inputs[0])) == "exp"
    return rounded if quotient else None


_SEEN_THROUGH = frozenset({"cast", "reshape", "transpose", "broadcast", "slice"})


def _seen_through(graph: Graph, value: Value) -> Equation | None:
    found = graph.equation(value)
    while found is not None and found.op in _SEEN_THROUGH:
        found = graph.equation(found.inputs[0])
    return found


def _op(equation: Equation | None) -> str | None:
    return None if equation is None else equation.op


def _input_error(value: Array, dtype: DType, caps: Caps) -> Errors:
    zero = np.zeros(value.shape)
    if not dtype.is_float or not caps.flushes_denormals:
        return zero
    size = np.abs(value.astype(np.float64))
    return np.where(size < TINY, size, zero)


def _size(value: Array) -> Errors:
    size = np.abs(value.astype(np.float64))
    return np.where(np.isfinite(size), size, 0.0)


def _error(step: Step) -> Errors:
    if step.equation.op == "sample_token":
        values = tuple(o.value for o in step.operands)
        return sampling_error(values, step.operands[0].error, step.caps)
    return ERROR_RULES[step.equation.op](step)


def _settled(step: Step, error: Errors) -> Errors:
    """Denormals that the target drops, and what no arithmetic on infinities can say."""
    out = step.equation.output
    error = np.broadcast_to(np.asarray(error, np.float64), out.shape)
    if out.dtype.is_float:
        if step.caps.flushes_denormals:
            small = (step.size - error < TINY) & ((step.size > 0) | (error > 0))
            error = np.where(small, error + TINY, error)
        finite = np.isfinite(step.result.astype(np.float64))
        # A result that is not finite must come out so: nothing bounds it.
        error = np.where(finite, np.where(np.isnan(error), np.inf, error), 0.0)
    return error


def _result_size(
    equation: Equation, operands: tuple[Operand, ...], result: Array, sizes: Mapping[Value, Errors]
) -> Errors | None:
    """What a decoded weight weighs in a sum: |scale · quant| + |minimum|, which a device may sum
    apart. None where that is |value|."""
    if equation.op == "packed_dequant":
        return _packed_size(operands[0].value, result, equation.params["format"])
    if equation.op in _KEEP_SIZE and any(v in sizes for v in equation.inputs):
        if equation.op == "gather":
            return operands[0].size[operands[1].value]
        return move(equation, tuple(o.size for o in operands))
    return None


def _packed_size(raw: Array, decoded: Array, name: str) -> Errors | None:
    format = format_named(name)
    field = next((f for f in format.fields if f.name == "minimum"), None)
    if field is None:
        return None
    blocks = np.ascontiguousarray(raw).reshape(-1, format.nbytes)
    half = np.ascontiguousarray(blocks[:, field.offset : field.offset + 2]).view("<f2")
    minimum = half.astype(np.float64)
    weights = decoded.astype(np.float64).reshape(-1, format.columns)
    return (np.abs(weights - minimum) + np.abs(minimum)).reshape(decoded.shape)

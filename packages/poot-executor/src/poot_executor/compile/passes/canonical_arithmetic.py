"""Canonical form of arithmetic: neutral and absorbing constants, one order of operands.

Nothing is reassociated and nothing distributed, since that would round otherwise. x + 0 stays, since
-0 + 0 is 0; x - 0 and x + (-0) go.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from poot_executor.compile.passes.canonical_rule import Rule
from poot_executor.dtype import BOOL, U32, DType
from poot_executor.graph.graph import Value
from poot_executor.graph.rewrite import Call, Rewriter, splat_of


def _constant(rewriter: Rewriter, value: Value) -> Any:
    """The Python number that a splat holds, or None."""
    found = splat_of(rewriter, value)
    return None if found is None else found.item()


def _is(number: Any, wanted: float) -> bool:
    """Whether a constant is this number, with its sign if it is zero."""
    if number is None or number != wanted:
        return False
    return wanted != 0 or bool(np.signbit(number)) == bool(np.signbit(wanted))


def _ones(dtype: DType) -> int | bool:
    """All bits set."""
    return True if dtype is BOOL else int(np.array(-1).astype(dtype.numpy))


def neutral(rewriter: Rewriter, call: Call) -> Value | None:
    """An operand that changes nothing: x * 1, x / 1, x - 0, integer x + 0, x & -1, x | 0 ..."""
    left, right = call.inputs
    wanted = _neutral_element(call.op, left.dtype)
    if wanted is None:
        return None
    if _is(_constant(rewriter, right), wanted):
        return left
    if call.op in ("add", "mul", "and", "or", "xor") and _is(_constant(rewriter, left), wanted):
        return right
    return None


def _neutral_element(op: str, dtype: DType) -> float | None:
    if op in ("mul", "div"):
        return 1
    if op == "add":
        return -0.0 if dtype.is_float else 0
    return _ones(dtype) if op == "and" else 0


def absorbing(rewriter: Rewriter, call: Call) -> Value | None:
    """An operand that is the result: integer x * 0, x & 0, x | -1."""
    dtype = call.inputs[0].dtype
    if dtype.is_float:
        return None
    wanted = _ones(dtype) if call.op == "or" else 0
    return next((v for v in call.inputs if _constant(rewriter, v) == wanted), None)


def equal_operands(rewriter: Rewriter, call: Call) -> Value | None:
    """max(x, x), min(x, x), x & x, x | x."""
    return call.inputs[0] if call.inputs[0] == call.inputs[1] else None


def operand_order(rewriter: Rewriter, call: Call) -> Call | None:
    """Of a commutative operation: constants last, otherwise what was defined first is first."""
    left, right = call.inputs
    if _rank(rewriter, left) <= _rank(rewriter, right):
        return None
    return Call(call.op, (right, left), call.params)


def _rank(rewriter: Rewriter, value: Value) -> tuple[bool, int]:
    return splat_of(rewriter, value) is not None, value.id


def turned(op: str) -> Rule:
    """a > b is b < a, which leaves two comparisons of order instead of four."""

    def rule(rewriter: Rewriter, call: Call) -> Call:
        return Call(op, call.inputs[::-1], call.params)

    return rule


def undo(op: str) -> Rule:
    """An operation that undoes itself."""

    def rule(rewriter: Rewriter, call: Call) -> Value | None:
        inner = rewriter.equation(call.inputs[0], op)
        return None if inner is None else inner.inputs[0]

    return rule


def abs_of_sign(rewriter: Rewriter, call: Call) -> Value | Call | None:
    """abs of abs, and of neg; abs of u32, where it does nothing and neg wraps."""
    x = call.inputs[0]
    if x.dtype is U32 or rewriter.equation(x, "abs"):
        return x
    negated = rewriter.equation(x, "neg")
    return None if negated is None else Call("abs", negated.inputs, call.params)


def select_known(rewriter: Rewriter, call: Call) -> Value | None:
    """A condition that is constant, or two choices that are one."""
    condition, a, b = call.inputs
    known = _constant(rewriter, condition)
    if known is not None:
        return a if known else b
    return a if a == b else None


def select_not(rewriter: Rewriter, call: Call) -> Call | None:
    """The choices change places instead of the condition being negated."""
    condition, a, b = call.inputs
    negated = rewriter.equation(condition, "not")
    return None if negated is None else Call("select", (negated.inputs[0], b, a), call.params)

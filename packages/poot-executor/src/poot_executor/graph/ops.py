"""The op table: every primitive of a graph, one row each.

Signatures are in shape letters; `...` stands for any leading dimensions. Dtype rules: float is f32,
f16 or bf16; int is i32 or u32; number is float or int; any includes i8, u8 and bool, which are for
storage: they are moved, selected and cast, and nothing is computed in them (bool apart, with not,
and, or, xor). Nothing broadcasts implicitly. An operation on f16 or bf16 is the operation in f32,
rounded. No dimension is below 1. Which NaN an arithmetic operation gives is unspecified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from poot_executor.dtype import I32, DType
from poot_executor.errors import GraphError
from poot_executor.formats import format_named
from poot_executor.graph import infer, rules
from poot_executor.graph.graph import TensorType
from poot_executor.graph.infer import BITS, FLOATS, INTS, NUMBERS, Inference
from poot_executor.graph.numerics import Arithmetic, Array
from poot_executor.graph.op_row import OpKind, OpRow, ParamKind
from poot_executor.graph.rules import Rule, compare, exact, transcendental
from poot_executor.graph.sampling import sampled_tokens
from poot_executor.graph.threefry import random_words


def _unary(name: str, doc: str, rule: Rule, allowed: Sequence[DType] = FLOATS) -> OpRow:
    words: dict[tuple[DType, ...], str] = {
        FLOATS: "float -> same",
        NUMBERS: "number -> same",
        BITS: "int or bool -> same",
    }
    return OpRow(
        name,
        OpKind.ELEMENTWISE,
        1,
        "[...] -> [...]",
        words[tuple(allowed)],
        doc,
        infer.unary(allowed),
        rule,
    )


def _binary(name: str, doc: str, rule: Rule, allowed: Sequence[DType] = NUMBERS, commutative: bool = False) -> OpRow:
    words: dict[tuple[DType, ...], str] = {
        FLOATS: "float, same -> same", NUMBERS: "number, same -> same",
        BITS: "int or bool, same -> same", INTS: "int, same -> same",
    }  # fmt: skip
    return OpRow(
        name, OpKind.ELEMENTWISE, 2, "[...], [...] -> [...]", words[tuple(allowed)], doc,
        infer.binary(allowed), rule, commutative=commutative,
    )  # fmt: skip


def _comparison(name: str, doc: str, rule: Rule, commutative: bool = False) -> OpRow:
    return OpRow(
        name, OpKind.ELEMENTWISE, 2, "[...], [...] -> [...]", "number, same -> bool", doc,
        infer.comparison, rule, commutative=commutative,
    )  # fmt: skip


def _row(
    name: str, kind: OpKind, arity: int | None, signature: str, dtypes: str, doc: str,
    inference: Inference, rule: Rule, /, **params: ParamKind,
) -> OpRow:  # fmt: skip
    return OpRow(name, kind, arity, signature, dtypes, doc, inference, rule, MappingProxyType(params))


def _packed_dequant(arrays: Sequence[Array], params: Mapping[str, Any], out: TensorType, _: Arithmetic) -> Array:
    return format_named(params["format"]).decode(arrays[0])


def _random_bits(arrays: Sequence[Array], params: Mapping[str, Any], out: TensorType, _: Arithmetic) -> Array:
    return random_words(arrays[0], arrays[1], params["count"])


def _sample(arrays: Sequence[Array], params: Mapping[str, Any], out: TensorType, arithmetic: Arithmetic) -> Array:
    logits, seed, position, settings, top_k = arrays
    return sampled_tokens(logits, seed, position, settings, top_k, arithmetic)


_E, _R, _C, _M, _I = (
    OpKind.ELEMENTWISE,
    OpKind.REDUCTION,
    OpKind.CONTRACTION,
    OpKind.MOVEMENT,
    OpKind.INDEXED,
)
_INT, _INTS, _NUMBER, _DTYPE, _NAME = ParamKind

_ROWS: tuple[OpRow, ...] = (
    # Elementwise, one operand
    _unary("neg", "-x; of a float the sign bit alone; integers wrap", rules.negate, NUMBERS),
    _unary("abs", "|x|; of a float the sign bit alone; integers wrap", rules.absolute, NUMBERS),
    _unary("exp", "e to the x", transcendental(np.exp)),
    _unary("log", "the natural logarithm", transcendental(np.log)),
    _unary("sqrt", "the square root", exact(np.sqrt)),
    _unary("recip", "1 / x", exact(lambda x: np.float32(1) / x)),
    _unary("tanh", "the hyperbolic tangent", transcendental(np.tanh)),
    _unary("erf", "the error function", transcendental(rules.erf)),
    _unary("sin", "the sine of radians", transcendental(np.sin)),
    _unary("cos", "the cosine of radians", transcendental(np.cos)),
    _unary("floor", "the greatest whole number not above x", exact(np.floor)),
    _unary("round", "the nearest whole number, halves to even", exact(np.rint)),
    _unary("not", "every bit flipped; on bool the logical negation", exact(np.invert), BITS),
    # Elementwise, two operands of one type
    _binary("add", "a + b; integers wrap", exact(np.add), commutative=True),
    _binary("sub", "a - b; integers wrap", exact(np.subtract)),
    _binary("mul", "a * b; integers wrap", exact(np.multiply), commutative=True),
    _binary("div", "a / b; integers truncate towards zero, by 0 undefined", exact(rules.divide)),
    _binary("max", "the greater; of two zeros or with NaN, either", exact(rules.maximum)),
    _binary("min", "the smaller; of two zeros or with NaN, either", exact(rules.minimum)),
    _binary("pow", "a to the b, for a >= 0", transcendental(np.power), FLOATS),
    _binary("rem", "of truncated division, signed as a; by 0, none", exact(rules.remainder), INTS),
    _binary("and", "bitwise, logical on bool", exact(np.bitwise_and), BITS, commutative=True),
    _binary("or", "bitwise, logical on bool", exact(np.bitwise_or), BITS, commutative=True),
    _binary("xor", "bitwise, logical on bool", exact(np.bitwise_xor), BITS, commutative=True),
    _binary("shl", "a shifted left by the low 5 bits of b", exact(rules.shift_left), INTS),
    _binary("shr", "a shifted right, likewise; i32 keeps its sign", exact(rules.shift_right), INTS),
    _comparison("eq", "a = b; false where one is NaN", compare(np.equal), commutative=True),
    _comparison("ne", "a != b; true where one is NaN", compare(np.not_equal), commutative=True),
    _comparison("lt", "a < b; false where one is NaN", compare(np.less)),
    _comparison("le", "a <= b; false where one is NaN", compare(np.less_equal)),
    _comparison("gt", "a > b; false where one is NaN", compare(np.greater)),
    _comparison("ge", "a >= b; false where one is NaN", compare(np.greater_equal)),
    # Elementwise, others
    _row("select", _E, 3, "[...], [...], [...] -> [...]", "bool, any, same -> same",
         "a where the condition holds, else b: bits of one, so NaN in the other does not show",
         infer.select, rules.select),
    _row("cast", _E, 1, "[...] -> [...]", "any -> dtype",
         "number conversion: to a float to nearest even through f32; float to integer towards zero "
         "(out of range or NaN unspecified; the oracle saturates and NaN is 0); integers wrap; to "
         "bool x != 0; a bool is 0 or 1",
         infer.cast, rules.cast, dtype=_DTYPE),
    _row("bitcast", _E, 1, "[...] -> [...]", "any but bool -> dtype of that size",
         "the same bits read as another dtype", infer.bitcast, rules.bitcast, dtype=_DTYPE),
    # Reductions over one axis, which goes away
    _row("sum", _R, 1, "[..., n, ...] -> [..., ...]", "number -> same",
         "the sum over an axis, accumulated in f32; integers wrap",
         infer.reduction(NUMBERS), rules.sum_, axis=_INT),
    _row("reduce_max", _R, 1, "[..., n, ...] -> [..., ...]", "number -> same",
         "the greatest over an axis; NaN counts as -inf",
         infer.reduction(NUMBERS), rules.reduce_max, axis=_INT),
    _row("argmax", _R, 1, "[..., n, ...] -> [..., ...]", "number -> i32",
         "the lowest index of the greatest over an axis; NaN counts as -inf",
         infer.reduction(NUMBERS, I32), rules.argmax, axis=_INT),
    # Contractions
    _row("matmul", _C, 2, "[..., m, k], [..., k, n] -> [..., m, n]", "float, float -> f32",
         "batched matrix product over equal leading dimensions, accumulated in f32",
         infer.matmul, rules.matmul, dtype=_DTYPE),
    _row("indexed_matmul", _C, 3, "[r, k], [e, k, n], [r] -> [r, n]", "float, float, i32 -> f32",
         "each row times the matrix that its index names; an index outside [0, e) is a fault",
         infer.indexed_matmul, rules.indexed_matmul),
    # Movement
    _row("reshape", _M, 1, "[...] -> shape", "any -> same", "the same elements in row-major order",
         infer.reshape, rules.reshape, shape=_INTS),
    _row("transpose", _M, 1, "[...] -> [...]", "any -> same",
         "axis i of the result is axis permutation[i] of x",
         infer.transpose, rules.transpose, permutation=_INTS),
    _row("broadcast", _M, 1, "[..., 1, ...] -> shape", "any -> same",
         "dimensions of 1 repeated; the rank stays",
         infer.broadcast, rules.broadcast, shape=_INTS),
    _row("slice", _M, 1, "[...] -> [...]", "any -> same",
         "start, stop and a step of 1 or more for every axis",
         infer.slice_, rules.slice_, start=_INTS, stop=_INTS, step=_INTS),
    _row("concat", _M, None, "[..., n, ...], [..., m, ...] ... -> [..., n + m ..., ...]",
         "any, same ... -> same",
         "operands one after another along an axis", infer.concat, rules.concat, axis=_INT),
    _row("pad", _M, 1, "[n, ...] -> [low + n + high, ...]", "any -> same",
         "low and high elements of a constant value around every axis",
         infer.pad, rules.pad, low=_INTS, high=_INTS, value=_NUMBER),
    # Sources and indexed movement
    _row("iota", OpKind.SOURCE, 0, "-> shape", "-> i32, u32 or f32", "0, 1, 2 ... along an axis",
         infer.iota, rules.iota, shape=_INTS, axis=_INT, dtype=_DTYPE),
    _row("gather", _I, 2, "[n, ...], [i...] -> [i..., ...]", "any, i32 -> same",
         "rows of the data by index; one outside [0, n) is a fault, never clamped silently",
         infer.gather, rules.gather),
    _row("scatter_update", _I, 3, "[n, ...], [m], [m, ...] -> [n, ...]", "any, i32, same -> same",
         "the data with rows replaced; a negative index drops its row, one of n or more is a "
         "fault, the others are unique",
         infer.scatter_update, rules.scatter_update),
    _row("dynamic_update_slice", _I, 3, "[..., n, ...], [..., m, ...], [] -> [..., n, ...]",
         "any, same, i32 -> same",
         "the data with a block replaced, from a start along one axis and from 0 along the others; "
         "out of range is a fault",
         infer.dynamic_update_slice, rules.dynamic_update_slice, axis=_INT),
    _row("arg_top_k", _R, 1, "[..., n] -> [..., k]", "number -> i32",
         "indices of the k greatest, descending, ties to the lowest index; NaN counts as -inf",
         infer.arg_top_k, rules.arg_top_k, k=_INT),
    _row("packed_dequant", _I, 1, "[..., bytes] -> [..., columns]", "u8 -> f32",
         "stored blocks of a weight format to numbers",
         infer.packed_dequant, _packed_dequant, format=_NAME),
    # Random bits and sampling
    _row("random_bits", OpKind.SAMPLING, 2, "[rows, 2], [rows] -> [rows, count]",
         "u32, i32 -> u32",
         "word 0 of Threefry-2x32; its key is the seed row, its counter (position, column)",
         infer.random_bits, _random_bits, count=_INT),
    _row("sample_token", OpKind.SAMPLING, 5,
         "[rows, v], [rows, 2], [rows], [rows, 4], [rows] -> [rows]",
         "f32, u32, i32, f32, i32 -> i32",
         "the token each row draws from logits by seed, position, (1/T, min-p, top-p, noise scale) "
         "and top-k; `graph.sampling` states the steps", infer.sample_token, _sample, rule=_NAME),
)  # fmt: skip

OPS: Mapping[str, OpRow] = MappingProxyType({row.name: row for row in _ROWS})
"""Every primitive by name."""


def op_named(name: str) -> OpRow:
    """The row of that name. Raises GraphError where there is none."""
    if name not in OPS:
        raise GraphError(f"there is no primitive {name!r}")
    return OPS[name]

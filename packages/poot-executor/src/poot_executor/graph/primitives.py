"""One function for each primitive: `exp(x)`, `matmul(a, b)`; the op table says what each gives.

Nothing broadcasts here: the operators of `Traced` do. Every function raises GraphError that names
the operation and its types. `iota` takes the builder, since it has no operand.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as to_int

from poot_executor.dtype import F32, DType
from poot_executor.errors import GraphError
from poot_executor.graph.builder import Builder
from poot_executor.graph.traced import Scalar, Traced


def neg(x: Traced) -> Traced:
    """-x."""
    return x.builder.apply("neg", x)


def abs_(x: Traced) -> Traced:
    """|x|."""
    return x.builder.apply("abs", x)


def exp(x: Traced) -> Traced:
    """e to the x."""
    return x.builder.apply("exp", x)


def log(x: Traced) -> Traced:
    """The natural logarithm."""
    return x.builder.apply("log", x)


def sqrt(x: Traced) -> Traced:
    """The square root."""
    return x.builder.apply("sqrt", x)


def recip(x: Traced) -> Traced:
    """1 / x."""
    return x.builder.apply("recip", x)


def tanh(x: Traced) -> Traced:
    """The hyperbolic tangent."""
    return x.builder.apply("tanh", x)


def erf(x: Traced) -> Traced:
    """The error function."""
    return x.builder.apply("erf", x)


def sin(x: Traced) -> Traced:
    """The sine of radians."""
    return x.builder.apply("sin", x)


def cos(x: Traced) -> Traced:
    """The cosine of radians."""
    return x.builder.apply("cos", x)


def floor(x: Traced) -> Traced:
    """The greatest whole number not above x."""
    return x.builder.apply("floor", x)


def round_(x: Traced) -> Traced:
    """The nearest whole number, halves to even."""
    return x.builder.apply("round", x)


def not_(x: Traced) -> Traced:
    """Every bit flipped; on bool the logical negation."""
    return x.builder.apply("not", x)


def add(a: Traced, b: Traced) -> Traced:
    """a + b."""
    return a.builder.apply("add", a, b)


def sub(a: Traced, b: Traced) -> Traced:
    """a - b."""
    return a.builder.apply("sub", a, b)


def mul(a: Traced, b: Traced) -> Traced:
    """a * b."""
    return a.builder.apply("mul", a, b)


def div(a: Traced, b: Traced) -> Traced:
    """a / b; integers truncate towards zero."""
    return a.builder.apply("div", a, b)


def maximum(a: Traced, b: Traced) -> Traced:
    """The greater of a and b."""
    return a.builder.apply("max", a, b)


def minimum(a: Traced, b: Traced) -> Traced:
    """The smaller of a and b."""
    return a.builder.apply("min", a, b)


def pow_(a: Traced, b: Traced) -> Traced:
    """a to the b, for a >= 0."""
    return a.builder.apply("pow", a, b)


def rem(a: Traced, b: Traced) -> Traced:
    """The remainder of truncated division."""
    return a.builder.apply("rem", a, b)


def and_(a: Traced, b: Traced) -> Traced:
    """Bitwise and; logical on bool."""
    return a.builder.apply("and", a, b)


def or_(a: Traced, b: Traced) -> Traced:
    """Bitwise or; logical on bool."""
    return a.builder.apply("or", a, b)


def xor(a: Traced, b: Traced) -> Traced:
    """Bitwise exclusive or; logical on bool."""
    return a.builder.apply("xor", a, b)


def shl(a: Traced, b: Traced) -> Traced:
    """a shifted left by b."""
    return a.builder.apply("shl", a, b)


def shr(a: Traced, b: Traced) -> Traced:
    """a shifted right by b."""
    return a.builder.apply("shr", a, b)


def eq(a: Traced, b: Traced) -> Traced:
    """a = b, as bool."""
    return a.builder.apply("eq", a, b)


def ne(a: Traced, b: Traced) -> Traced:
    """a != b, as bool."""
    return a.builder.apply("ne", a, b)


def lt(a: Traced, b: Traced) -> Traced:
    """a < b, as bool."""
    return a.builder.apply("lt", a, b)


def le(a: Traced, b: Traced) -> Traced:
    """a <= b, as bool."""
    return a.builder.apply("le", a, b)


def gt(a: Traced, b: Traced) -> Traced:
    """a > b, as bool."""
    return a.builder.apply("gt", a, b)


def ge(a: Traced, b: Traced) -> Traced:
    """a >= b, as bool."""
    return a.builder.apply("ge", a, b)


def select(condition: Traced, a: Traced, b: Traced) -> Traced:
    """a where the condition holds, else b."""
    return condition.builder.apply("select", condition, a, b)


def cast(x: Traced, dtype: DType) -> Traced:
    """The numbers in another dtype; `x` itself where it has that dtype."""
    return x if x.dtype is dtype else x.builder.apply("cast", x, dtype=dtype)


def bitcast(x: Traced, dtype: DType) -> Traced:
    """The bits read as another dtype of that size."""
    return x.builder.apply("bitcast", x, dtype=dtype)


def sum_(x: Traced, axis: int) -> Traced:
    """The sum over an axis, which goes away."""
    return x.builder.apply("sum", x, axis=axis)


def reduce_max(x: Traced, axis: int) -> Traced:
    """The greatest over an axis, which goes away."""
    return x.builder.apply("reduce_max", x, axis=axis)


def argmax(x: Traced, axis: int) -> Traced:
    """The lowest index of the greatest over an axis, as i32."""
    return x.builder.apply("argmax", x, axis=axis)


def matmul(a: Traced, b: Traced) -> Traced:
    """a[..., m, k] @ b[..., k, n] -> f32[..., m, n]; leading dimensions are equal."""
    return a.builder.apply("matmul", a, b, dtype=F32)


def indexed_matmul(x: Traced, w: Traced, index: Traced) -> Traced:
    """Row i of x[r, k] times w[index[i]], of w[e, k, n] -> f32[r, n]."""
    return x.builder.apply("indexed_matmul", x, w, index)


def reshape(x: Traced, shape: Sequence[int]) -> Traced:
    """The same elements in row-major order."""
    return x.builder.apply("reshape", x, shape=_ints(shape))


def transpose(x: Traced, permutation: Sequence[int]) -> Traced:
    """Axis i of the result is axis permutation[i] of x."""
    return x.builder.apply("transpose", x, permutation=_ints(permutation))


def broadcast(x: Traced, shape: Sequence[int]) -> Traced:
    """Dimensions of 1 repeated; the rank stays. `Builder.broadcast_to` also extends the rank."""
    return x.builder.apply("broadcast", x, shape=_ints(shape))


def slice_(x: Traced, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None) -> Traced:
    """[start, stop) of every axis, every step-th element; a step that is not given is 1."""
    steps = (1,) * len(x.shape) if step is None else _ints(step)
    return x.builder.apply("slice", x, start=_ints(start), stop=_ints(stop), step=steps)


def concat(xs: Sequence[Traced], axis: int) -> Traced:
    """Operands one after another along an axis. Raises GraphError for none."""
    if not xs:
        raise GraphError("concat() takes 1 or more operands, not 0")
    return xs[0].builder.apply("concat", *xs, axis=axis)


def pad(x: Traced, low: Sequence[int], high: Sequence[int], value: Scalar = 0) -> Traced:
    """low[i] and high[i] elements of `value` before and after axis i."""
    return x.builder.apply("pad", x, low=_ints(low), high=_ints(high), value=value)


def iota(builder: Builder, shape: Sequence[int], axis: int, dtype: DType) -> Traced:
    """0, 1, 2 ... along an axis, in i32, u32 or f32."""
    return builder.apply("iota", shape=_ints(shape), axis=axis, dtype=dtype)


def gather(data: Traced, index: Traced) -> Traced:
    """Rows data[index[...]] of data[n, ...] -> index.shape + data.shape[1:]."""
    return data.builder.apply("gather", data, index)


def scatter_update(data: Traced, index: Traced, updates: Traced) -> Traced:
    """data[n, ...] with row index[i] replaced by updates[i]; a negative index drops its row."""
    return data.builder.apply("scatter_update", data, index, updates)


def dynamic_update_slice(data: Traced, update: Traced, start: Traced, axis: int) -> Traced:
    """data with a block replaced by `update`, from start (i32[]) along the axis and from 0 along
    the others.
    """
    return data.builder.apply("dynamic_update_slice", data, update, start, axis=axis)


def arg_top_k(x: Traced, k: int) -> Traced:
    """Indices of the k greatest of the last axis, descending, ties to the lowest -> i32[..., k]."""
    return x.builder.apply("arg_top_k", x, k=k)


def packed_dequant(x: Traced, format: str) -> Traced:
    """Stored blocks u8[..., bytes] of a weight format -> f32[..., columns]."""
    return x.builder.apply("packed_dequant", x, format=format)


def random_bits(seed: Traced, position: Traced, count: int) -> Traced:
    """seed u32[rows, 2], position i32[rows] -> u32[rows, count]."""
    return seed.builder.apply("random_bits", seed, position, count=count)


def sample_token(logits: Traced, seed: Traced, position: Traced, settings: Traced, top_k: Traced) -> Traced:
    """The tokens i32[rows] that rows draw by the rule "sampled" (see `graph.sampling`) from
    f32[rows, vocabulary].
    """
    operands = (logits, seed, position, settings, top_k)
    return logits.builder.apply("sample_token", *operands, rule="sampled")


def _ints(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(to_int(v) for v in values)

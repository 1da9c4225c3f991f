"""One step as a tracer sees it: its shape, its slots, its checks, and what every layer shares."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.dtype import BOOL, F32, I32, DType
from poot_executor.errors import GraphError
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.functional import causal_mask, written_mask
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.graph.traced import Traced

TOKEN = SlotKey(SlotKind.TOKEN)
POS = SlotKey(SlotKind.POS)
LAST = SlotKey(SlotKind.LAST)
LAST_TOKEN = StateKey(None, "last_token")
FROM_STATE = -1
"""In TOKEN of a step of one token: take the token that the row's last step gave."""
SPARE = -1
"""In LAST: the row is not used. It writes nothing, and its outputs mean nothing."""


@dataclass(frozen=True, slots=True, order=True)
class StepShape:
    """rows × tokens of a step; each row owns `capacity` positions, of which the step sees `span`.

    States depend on rows and capacity alone, so that steps of other tokens and spans share them. A
    step of fewer rows shares their first part.
    """

    rows: int
    tokens: int
    capacity: int
    span: int

    def __post_init__(self) -> None:
        if min(self.rows, self.tokens, self.span) < 1 or self.span > self.capacity:
            raise GraphError(f"{self} is no step: counts are 1 or more, the span within capacity")
        if self.tokens > self.span:
            raise GraphError(f"{self}: a row of {self.tokens} tokens does not fit its span")

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.tokens} tokens x {self.span} of {self.capacity} positions"


@dataclass(frozen=True, slots=True)
class Step:
    """A step being recorded.

    - `tokens` i32[rows · tokens]: ids, every one inside the vocabulary.
    - `position` i32[rows], that of a row's first token; `last` i32[rows], the index of its last
      token, -1 in a spare row.
    - `places` i32[rows · tokens]: the place in KV states that a token writes, -1 for none.
    - `mask` bool[rows, tokens, span]: the positions that a token sees; `visible` bool[rows, span]:
      those that hold something of the row.
    - `activations`: what activations are rounded to before a contraction, and the dtype of KV.
    """

    builder: Builder
    shape: StepShape
    activations: DType
    tokens: Traced
    position: Traced
    last: Traced
    places: Traced
    mask: Traced
    visible: Traced

    @property
    def count(self) -> int:
        """Tokens of all rows."""
        return self.shape.rows * self.shape.tokens

    def last_of(self, x: Traced) -> Traced:
        """Of x[rows · tokens, n] the row of each last token -> [rows, n]."""
        rows, tokens = self.shape.rows, self.shape.tokens
        if tokens == 1:
            return x
        last = p.minimum(_at_least_zero(self.last), _splat(self.last, tokens - 1))
        return p.gather(x, p.iota(self.builder, (rows,), 0, I32) * tokens + last)


def begin_step(builder: Builder, shape: StepShape, vocabulary: int, activations: DType) -> Step:
    """Record a step's slots, its checks and what layers share.

    Checks: 0, a token id outside [0, vocabulary), at its index in TOKEN; 1, a row whose position is
    below 0, whose last index is not in [-1, tokens), or whose last position is not below the span.
    A rejected step reads and writes nothing out of range, and nothing of another row.
    """
    if activations not in (F32, DType.F16, DType.BF16):
        raise GraphError(f"activations are f32, f16 or bf16, not {activations}")
    rows, tokens, span = shape.rows, shape.tokens, shape.span
    per_row = TensorType((rows,), I32)
    given = builder.slot(TOKEN, TensorType((rows, tokens), I32))
    position, last = builder.slot(POS, per_row), builder.slot(LAST, per_row)
    before = builder.state(LAST_TOKEN, per_row)
    if tokens == 1:
        given = p.select(given == FROM_STATE, p.reshape(before, (rows, 1)), given)
    ids = p.reshape(given, (rows * tokens,))
    builder.check(first_index((ids < 0) | (ids >= vocabulary)))
    end = position + last
    wrong = (position < 0) | (last < SPARE) | (last >= tokens) | (end >= span)
    builder.check(first_index(wrong))
    return Step(
        builder=builder,
        shape=shape,
        activations=activations,
        tokens=p.minimum(_at_least_zero(ids), _splat(ids, vocabulary - 1)),
        position=position,
        last=last,
        places=_places(position, last, shape),
        mask=causal_mask(position, last, tokens, span),
        visible=written_mask(position, last, span),
    )


def _places(position: Traced, last: Traced, shape: StepShape) -> Traced:
    builder, both = position.builder, (shape.rows, shape.tokens)
    token = p.iota(builder, both, 1, I32)
    at = p.reshape(position, (shape.rows, 1)) + token
    written = (token <= p.reshape(last, (shape.rows, 1))) & (at >= 0) & (at < shape.span)
    place = p.iota(builder, both, 0, I32) * shape.capacity + at
    return p.reshape(p.select(written, place, _splat(place, -1)), (shape.rows * shape.tokens,))


def first_index(bad: Traced) -> Traced:
    """The lowest index at which bool[n] holds, -1 where it never does -> i32[]."""
    assert bad.dtype is BOOL and len(bad.shape) == 1
    n = bad.shape[0]
    # The greatest of n - index is that of the lowest index; 0 stands for none.
    left = p.iota(bad.builder, (n,), 0, I32) * -1 + n
    most = p.reduce_max(p.select(bad, left, _splat(left, 0)), 0)
    return p.select(most == 0, _splat(most, -1), most * -1 + n)


def _at_least_zero(x: Traced) -> Traced:
    return p.maximum(x, _splat(x, 0))


def _splat(like: Traced, value: int) -> Traced:
    return like.builder.splat(value, like.type)

"""One step as a tracer sees it: its shape, its slots, its checks, and what every layer shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

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
SLOT_MAP = SlotKey(SlotKind.SLOT_MAP)
WRITE_MAP = SlotKey(SlotKind.WRITE_MAP)
ROW = SlotKey(SlotKind.INPUT, "row")
LAST_TOKEN = StateKey(None, "last_token")
FROM_STATE = -1
"""In TOKEN of a step of one token: take the token that the row's last step gave."""
SPARE = -1
"""In LAST: the row is not used. It writes nothing, and its outputs mean nothing."""


BLOCK = 16
"""Positions of a block of paged KV."""
NO_PLACE = -1
"""In WRITE_MAP: the token's K and V go nowhere."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """rows × tokens of a step that sees `span` positions of each row; a row has `capacity` of them at most.

    KV is contiguous where `blocks` is None: each row owns `capacity` positions of the states, and a step of fewer rows
    shares their first part. Otherwise it is paged: the states are a pool of `blocks` blocks of 16 positions, block 0
    reserved and all zero, and slots say which blocks a row has. States depend on nothing else, so that steps of other
    tokens and spans share them. A `window` gives logits of every token, not of the last one of each row alone.
    A step `among` so many contiguous rows has one row, whichever of them the slot ROW names.
    """

    rows: int
    tokens: int
    capacity: int
    span: int
    blocks: int | None = None
    window: bool = False
    among: int | None = None

    def __post_init__(self) -> None:
        if min(self.rows, self.tokens, self.span) < 1 or self.span > self.capacity:
            raise GraphError(f"{self} is no step: counts are 1 or more, the span within capacity")
        if self.tokens > self.span:
            raise GraphError(f"{self}: a row of {self.tokens} tokens does not fit its span")
        if self.blocks is not None and (self.blocks < 2 or self.span % BLOCK):
            raise GraphError(f"{self}: a pool has 2 blocks or more, and a span is whole blocks of {BLOCK}")
        if self.among is not None and (self.rows != 1 or self.among < 1 or self.blocks is not None or self.window):
            raise GraphError(f"{self}: a step among rows has one of them, of contiguous KV, and is no window")

    @property
    def positions(self) -> int:
        """Positions that the KV states hold."""
        if self.blocks is not None:
            return self.blocks * BLOCK
        return (self.rows if self.among is None else self.among) * self.capacity

    @property
    def drawing_rows(self) -> int:
        """Rows of logits."""
        return self.rows * self.tokens if self.window else self.rows

    @property
    def last_tokens(self) -> int:
        """Tokens that the state LAST_TOKEN holds."""
        return self.drawing_rows if self.among is None else self.among

    @property
    def size(self) -> tuple[int, ...]:
        """An order in which what needs more memory is greater."""
        return self.drawing_rows, self.rows, self.tokens, self.capacity, self.span

    def __str__(self) -> str:
        pool = "" if self.blocks is None else f", pool of {self.blocks} blocks"
        window = ", window" if self.window else ""
        rows = f"{self.rows} rows" if self.among is None else f"any of {self.among} rows"
        return f"{rows} x {self.tokens} tokens x {self.span} of {self.capacity} positions{pool}{window}"


@dataclass(frozen=True, slots=True)
class Supplied:
    """Values that a prompt gives in place of what the model computes for some of its tokens: `rows` f32[rows · tokens,
    width] where `given` bool[rows · tokens] holds.
    """

    rows: Traced
    given: Traced


@dataclass(frozen=True, slots=True)
class Step:
    """A step being recorded.

    - `tokens` i32[rows · tokens]: ids, every one inside the vocabulary.
    - `position` i32[rows], that of a row's first token; `last` i32[rows], the index of its last
      token, -1 in a spare row.
    - `places` i32[rows · tokens]: the place in KV states that a token writes, -1 for none; None in a pass over whole
      texts, which keeps no K and V.
    - `held` i32[rows, span]: the place in KV states of each position of a row; None where the rows of the step are the
      first of contiguous KV.
    - `row` i32[1]: the row of the states that a step among several has; None elsewhere.
    - `mask` bool[rows, tokens, span]: the positions that a token sees; `visible` bool[rows, span]:
      those that hold something of the row.
    - `activations`: what activations are rounded to before a contraction, and the dtype of KV.
    - `supplied`: what a prompt gives beside its tokens, by input name.
    """

    builder: Builder
    shape: StepShape
    activations: DType
    tokens: Traced
    position: Traced
    last: Traced
    places: Traced | None
    held: Traced | None
    mask: Traced
    visible: Traced
    row: Traced | None = None
    supplied: Mapping[str, Supplied] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def count(self) -> int:
        """Tokens of all rows."""
        return self.shape.rows * self.shape.tokens

    def last_of(self, x: Traced) -> Traced:
        """Of x[rows · tokens, n] the row of each last token -> [rows, n]; all of x in a window."""
        rows, tokens = self.shape.rows, self.shape.tokens
        if tokens == 1 or self.shape.window:
            return x
        last = p.minimum(_at_least_zero(self.last), _splat(self.last, tokens - 1))
        return p.gather(x, p.iota(self.builder, (rows,), 0, I32) * tokens + last)

    def drawing(self) -> Step:
        """The step as what chooses tokens sees it: in a window every token is a row of its own."""
        shape, builder = self.shape, self.builder
        if not shape.window or shape.tokens == 1:
            return self
        both, flat = (shape.rows, shape.tokens), (shape.drawing_rows,)
        token = p.iota(builder, both, 1, I32)
        real = token <= p.reshape(self.last, (shape.rows, 1))
        last = p.select(real, _splat(token, 0), _splat(token, SPARE))
        position = p.reshape(self.position, (shape.rows, 1)) + token
        single = replace(shape, rows=shape.drawing_rows, tokens=1, window=False)
        return replace(self, shape=single, position=p.reshape(position, flat), last=p.reshape(last, flat))


def begin_step(
    builder: Builder,
    shape: StepShape,
    vocabulary: int,
    activations: DType,
    inputs: Mapping[str, int] = MappingProxyType({}),
) -> Step:
    """Record a step's slots, its checks and what layers share. `inputs` are the names and widths of the values that it
    takes beside its tokens: INPUT slots f32[rows, tokens, width], and i32[rows, tokens] of the name with ".given",
    which is 1 where a token's value is given.

    Checks: 0, a token id outside [0, vocabulary), at its index in TOKEN; 1, a row whose position is
    below 0, whose last index is not in [-1, tokens), or whose last position is not below the span; with paged KV also
    2, an entry of SLOT_MAP that is no block of the pool, and 3, one of WRITE_MAP that is neither -1 nor a place in a
    block from 1 up; in a step among rows also 2, a ROW that there is none of. A rejected step reads and writes nothing
    out of range, and nothing of another contiguous row.
    """
    if activations not in (F32, DType.F16, DType.BF16):
        raise GraphError(f"activations are f32, f16 or bf16, not {activations}")
    rows, tokens, span = shape.rows, shape.tokens, shape.span
    per_row = TensorType((rows,), I32)
    given = builder.slot(TOKEN, TensorType((rows, tokens), I32))
    position, last = builder.slot(POS, per_row), builder.slot(LAST, per_row)
    row = chosen = None
    if shape.among is not None:
        row = builder.slot(ROW, per_row)
        chosen = _within(row, shape.among)
    before = last_token(builder, shape, chosen)
    if tokens == 1:
        given = p.select(given == FROM_STATE, p.reshape(before, (rows, 1)), given)
    ids = p.reshape(given, (rows * tokens,))
    builder.check(first_index((ids < 0) | (ids >= vocabulary)))
    end = position + last
    wrong = (position < 0) | (last < SPARE) | (last >= tokens) | (end >= span)
    builder.check(first_index(wrong))
    if row is not None and shape.among is not None:
        builder.check(first_index((row < 0) | (row >= shape.among)))
    start = None if chosen is None else p.reshape(chosen * shape.capacity, (1, 1))
    if shape.blocks is None:
        held = None if start is None else start + p.iota(builder, (1, span), 1, I32)
        places = _places(position, last, shape, start)
    else:
        held, places = _held(builder, shape), _mapped_places(position, last, shape)
    return Step(
        builder=builder,
        shape=shape,
        activations=activations,
        tokens=p.minimum(_at_least_zero(ids), _splat(ids, vocabulary - 1)),
        position=position,
        last=last,
        places=places,
        held=held,
        mask=causal_mask(position, last, tokens, span),
        visible=written_mask(position, last, span),
        row=chosen,
        supplied={name: _supplied(builder, shape, name, width) for name, width in inputs.items()},
    )


def _supplied(builder: Builder, shape: StepShape, name: str, width: int) -> Supplied:
    rows = builder.slot(SlotKey(SlotKind.INPUT, name), TensorType((shape.rows, shape.tokens, width), F32))
    given = builder.slot(SlotKey(SlotKind.INPUT, f"{name}.given"), TensorType((shape.rows, shape.tokens), I32))
    count = shape.rows * shape.tokens
    return Supplied(p.reshape(rows, (count, width)), p.reshape(given, (count,)) != 0)


def last_token(builder: Builder, shape: StepShape, row: Traced | None) -> Traced:
    """The token that each of a step's rows got last -> i32[drawing rows]."""
    before = builder.state(LAST_TOKEN, TensorType((shape.last_tokens,), I32))
    return before if row is None else p.gather(before, row)


def _within(row: Traced, rows: int) -> Traced:
    return p.minimum(_at_least_zero(row), _splat(row, rows - 1))


def _places(position: Traced, last: Traced, shape: StepShape, start: Traced | None) -> Traced:
    """Contiguous KV: position n of row r lies at r · capacity + n. `start` i32[1, 1] is the place of position 0 in a
    step among rows.
    """
    builder, both = position.builder, (shape.rows, shape.tokens)
    token = p.iota(builder, both, 1, I32)
    at = p.reshape(position, (shape.rows, 1)) + token
    written = (token <= p.reshape(last, (shape.rows, 1))) & (at >= 0) & (at < shape.span)
    place = (p.iota(builder, both, 0, I32) * shape.capacity if start is None else start) + at
    return p.reshape(p.select(written, place, _splat(place, -1)), (shape.rows * shape.tokens,))


def _mapped_places(position: Traced, last: Traced, shape: StepShape) -> Traced:
    """Paged KV: WRITE_MAP, where the token is one and the place is in a block that may be written."""
    builder, both = position.builder, (shape.rows, shape.tokens)
    count = shape.rows * shape.tokens
    place = builder.slot(WRITE_MAP, TensorType(both, I32))
    inside = (place >= BLOCK) & (place < shape.positions)
    builder.check(first_index(p.reshape(p.not_(inside | (place == NO_PLACE)), (count,))))
    token = p.iota(builder, both, 1, I32)
    at = p.reshape(position, (shape.rows, 1)) + token
    written = inside & (token <= p.reshape(last, (shape.rows, 1))) & (at >= 0) & (at < shape.span)
    return p.reshape(p.select(written, place, _splat(place, NO_PLACE)), (count,))


def _held(builder: Builder, shape: StepShape) -> Traced:
    """SLOT_MAP, an entry a block, as a place for each position: i32[rows, span]."""
    assert shape.blocks is not None
    rows, count = shape.rows, shape.span // BLOCK
    block = builder.slot(SLOT_MAP, TensorType((rows, count), I32))
    builder.check(first_index(p.reshape((block < 0) | (block >= shape.blocks), (rows * count,))))
    block = p.minimum(_at_least_zero(block), _splat(block, shape.blocks - 1))
    place = p.reshape(block * BLOCK, (rows, count, 1)) + p.iota(builder, (rows, count, BLOCK), 2, I32)
    return p.reshape(place, (rows, shape.span))


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

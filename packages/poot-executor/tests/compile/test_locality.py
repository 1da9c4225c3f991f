"""How far an epilogue looks, and which rows a group has for it: a wrong yes would compute with rows that another group
holds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from poot_eval import EvalOptions, eval
from poot_executor.compile import Caps
from poot_executor.compile.locality import is_local
from poot_executor.compile.lower.row_map import RowMap
from poot_executor.compile.schedule import ROWS_MOST, contraction_schedule, fits_block, lane_count
from poot_executor.dtype import F32, I32
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind

TOKENS, HEADS, HEAD = 2, 4, 8


class Product:
    """The product of a contraction [tokens, heads · head], as heads, and questions about what is made of it."""

    def __init__(self):
        self.b = Builder("product")
        self.count = 0
        self.product = self.slot(TOKENS, 16) @ self.slot(16, HEADS * HEAD)
        self.heads = p.reshape(self.product, (1, TOKENS, HEADS, HEAD))

    def slot(self, *shape):
        self.count += 1
        return self.b.slot(SlotKey(SlotKind.INPUT, str(self.count)), TensorType(shape, F32))

    def columns(self, x, start, stop, step=1):
        lead = x.shape[:-1]
        return p.slice_(x, (*(0 for _ in lead), start), (*lead, stop), (*(1 for _ in lead), step))

    def local(self, value, block=HEAD, stride=1, stored=()):
        graph_inputs = frozenset(x.value for x in stored)
        self.b.output(f"y{len(self.b._outputs)}", value)
        return is_local(self.b.build(), value.value, self.product.value, block, stride, graph_inputs)


@pytest.fixture
def q():
    return Product()


def turned(q, interleaved):
    cos, sin = (q.slot(1, TOKENS, HEAD // 2) for _ in "cs")
    return f.rope(q.heads, cos, sin, interleaved)


# What stays inside a head


def test_elementwise_work_stays_at_its_place(q):
    y = p.tanh(q.product + q.slot(TOKENS, HEADS * HEAD)) * 2.0
    assert q.local(y, block=1)
    assert q.local(y, block=HEAD)
    assert q.local(y, block=HEAD, stride=HEAD // 2)


def test_reshapes_keep_every_block(q):
    for shape in ((TOKENS * HEADS * HEAD,), (TOKENS, HEADS, 2, HEAD // 2), (1, TOKENS, HEADS * 2, HEAD // 2)):
        assert q.local(p.exp(p.reshape(q.product, shape)), block=1)
        assert q.local(p.exp(p.reshape(q.product, shape)))


@pytest.mark.parametrize("interleaved", [True, False])
def test_a_rotation_stays_in_its_head(q, interleaved):
    y = turned(q, interleaved)
    assert q.local(y)
    assert not q.local(y, block=1)
    assert q.local(y, block=2) == interleaved
    assert q.local(y, stride=HEAD // 2) == (not interleaved)


def test_a_norm_over_the_head_stays_in_it(q):
    assert q.local(f.rms_norm(q.heads, q.slot(HEAD), 1e-5))
    assert not q.local(f.rms_norm(q.heads, q.slot(HEAD), 1e-5), block=2)
    assert not q.local(f.rms_norm(q.heads, q.slot(HEAD), 1e-5), stride=HEAD // 2)


def test_columns_of_a_head_may_go_anywhere_inside_it(q):
    back = p.concat([q.columns(q.heads, 5, 8), q.columns(q.heads, 0, 5)], 3)
    assert q.local(back)
    assert not q.local(back, stride=HEAD // 2)
    halves = p.concat([q.columns(q.heads, 4, 8), q.columns(q.heads, 0, 4)], 3)
    assert q.local(halves, stride=HEAD // 2)
    assert not q.local(halves, stride=HEAD)
    split = p.reshape(q.product, (TOKENS, HEADS, 2, HEAD // 2))
    assert q.local(p.transpose(split, (0, 1, 3, 2)))
    assert not q.local(p.transpose(split, (0, 1, 3, 2)), stride=HEAD // 2)


def test_a_head_may_be_padded_and_repeated(q):
    assert q.local(p.pad(q.heads, (0, 0, 0, 4), (0, 0, 0, 0), 0.0))
    assert q.local(p.pad(q.heads, (0, 0, 0, 4), (0, 0, 0, 0), 0.0), stride=4)
    assert not q.local(p.pad(q.heads, (0, 0, 0, 3), (0, 0, 0, 1), 0.0), stride=4)
    first = q.columns(q.heads, 2, 3)
    assert q.local(p.broadcast(first, (1, TOKENS, HEADS, HEAD)))
    assert not q.local(p.broadcast(first, (1, TOKENS, HEADS, HEAD)), stride=4)


def test_what_does_not_depend_on_the_product_is_free(q):
    other = p.transpose(q.slot(HEADS, TOKENS, HEAD), (1, 0, 2))
    assert q.local(p.reshape(q.product, (TOKENS, HEADS, HEAD)) + other, block=1)
    table = p.gather(q.slot(5, HEAD), p.cast(q.slot(TOKENS, HEADS), I32))
    assert q.local(p.reshape(q.product, (TOKENS, HEADS, HEAD)) * table, block=1)


def test_a_stored_value_is_no_expression_of_the_product(q):
    """It is read from where another dispatch left it."""
    total = p.sum_(q.product, 1)
    y = q.product - p.broadcast(p.reshape(total, (TOKENS, 1)), q.product.shape)
    assert q.local(y, block=1, stored=[total])
    assert not q.local(y, block=1)


# What leaves it


def test_heads_are_not_mixed(q):
    split = p.reshape(q.product, (TOKENS, HEADS, HEAD))
    assert not q.local(p.transpose(split, (0, 2, 1)))
    assert not q.local(p.transpose(split, (1, 0, 2)))
    assert not q.local(p.sum_(split, 1))
    assert not q.local(p.concat([split, split], 1))
    rolled = [p.slice_(split, (0, a, 0), (TOKENS, b, HEAD)) for a, b in ((1, HEADS), (0, 1))]
    assert not q.local(p.concat(rolled, 1))
    assert not q.local(p.broadcast(p.slice_(split, (0, 0, 0), (TOKENS, 1, HEAD)), split.shape))
    assert not q.local(p.pad(p.slice_(split, (0, 1, 0), (TOKENS, HEADS, HEAD)), (0, 0, 0), (0, 1, 0), 0.0))


def test_heads_are_not_skipped(q):
    split = p.reshape(q.product, (TOKENS, HEADS, HEAD))
    assert not q.local(p.slice_(split, (0, 0, 0), (TOKENS, HEADS, HEAD), (1, 2, 1)))
    assert not q.local(p.gather(p.reshape(q.product, (TOKENS * HEADS, HEAD)), p.iota(q.b, (8,), 0, I32)))


def test_tokens_are_not_mixed(q):
    assert not q.local(p.transpose(q.heads, (0, 2, 1, 3)))
    assert not q.local(p.sum_(q.heads, 1))
    assert not q.local(f.softmax(q.product))


def test_blocks_that_no_axis_counts(q):
    """Three columns are no part of a head of eight: nothing but what keeps the row-major order is local."""
    assert q.local(p.exp(q.product), block=1)
    assert not q.local(q.columns(q.heads, 0, 4), block=HEAD * 2)
    assert not q.local(turned(q, False), block=HEAD // 2)


def test_products_of_a_square_are_told_apart():
    """As many tokens as heads: only the order of axes tells a head from a token."""
    q = Product()
    square = p.reshape(q.slot(HEADS, 16) @ q.slot(16, HEADS * HEAD), (HEADS, HEADS, HEAD))
    q.product = square
    assert not q.local(p.transpose(square, (1, 0, 2)))
    assert q.local(p.exp(square), block=1)


# Against the definition, by perturbing products one at a time


@pytest.mark.parametrize("kind", ["halves", "pairs", "norm", "rolled", "transposed"])
def test_what_is_said_to_be_local_is(rng, kind):
    q = Product()
    split = p.reshape(q.product, (TOKENS, HEADS, HEAD))
    y = {
        "halves": lambda: turned(q, False),
        "pairs": lambda: turned(q, True),
        "norm": lambda: f.rms_norm(q.heads, q.slot(HEAD), 1e-5),
        "rolled": lambda: p.concat([q.columns(split, 3, 8), q.columns(split, 0, 3)], 2),
        "transposed": lambda: p.reshape(p.transpose(split, (0, 2, 1)), split.shape),
    }[kind]()
    q.b.output("y", y)
    graph = q.b.build()
    inputs = {i.key: rng.standard_normal(i.value.shape).astype(np.float32) for i in graph.inputs if i.key is not None}
    left = next(i.key for i in graph.inputs if i.value.shape == (TOKENS, 16))
    right = next(i.key for i in graph.inputs if i.value.shape == (16, HEADS * HEAD))
    inputs[left] = np.eye(TOKENS, 16, dtype=np.float32)
    before = eval(graph, inputs, EvalOptions()).outputs["y"].ravel()
    reach = set()
    for token, column in itertools.product(range(TOKENS), range(HEADS * HEAD)):
        changed = inputs[right].copy()
        changed[token, column] += 1.0
        after = eval(graph, inputs | {right: changed}, EvalOptions()).outputs["y"].ravel()
        (moved,) = np.nonzero(before != after)
        reach |= {(int(at), token * HEADS * HEAD + column) for at in moved}
    for block, stride in ((1, 1), (2, 1), (HEAD, HEAD // 2), (HEAD, 1), (HEADS * HEAD, 1)):
        inside = all(a // block == b // block and a % stride == b % stride for a, b in reach)
        if q.local(y, block, stride):
            assert inside, (block, stride)
    assert q.local(y) == (kind != "transposed")


# Rows of a group


MAPS = [
    (columns, block, stride)
    for columns in (4, 8, 12, 16, 24, 32, 64)
    for block in (0, 1, 2, 4, 8, 16, 64)
    for stride in ((1, block // 2) if block > 2 else (1,))
    if fits_block(columns, block, stride)
]


@pytest.mark.parametrize(("columns", "block", "stride"), MAPS)
def test_every_row_is_of_one_group_at_one_place(columns, block, stride):
    rows_of = RowMap(columns, block, stride)
    rows = 4 * max(columns, block, 1)
    found = {}
    for group, place in itertools.product(range(rows_of.groups(rows)), range(columns)):
        row = rows_of.row(group, place)
        assert row not in found
        found[row] = group
        assert rows_of.local(group, row) == place
    assert sorted(found) == list(range(rows))
    for row, group in found.items():  # what an epilogue looks at is of the same group
        if block > 1:
            first = row // block * block
            together = (
                range(first, first + block)
                if stride == 1
                else range(first + row % block % stride, first + block, stride)
            )
            assert all(found[other] == group for other in together)


def test_a_group_has_whole_blocks_or_none():
    assert fits_block(8, 4, 1) and fits_block(8, 8, 4) and fits_block(16, 8, 1)
    assert not fits_block(8, 16, 1), "half a block"
    assert fits_block(8, 16, 8), "four places in both halves"
    assert not fits_block(6, 16, 8), "three do not divide a half"
    assert not fits_block(12, 8, 1)
    assert fits_block(5, 0, 1) and fits_block(5, 1, 1)


@pytest.mark.parametrize("tile_rows", [1, 8])
@pytest.mark.parametrize("threads", [8, 32, 64])
@pytest.mark.parametrize(("block", "stride"), [(0, 1), (2, 1), (16, 8), (64, 1), (64, 32), (96, 48)])
def test_schedules_have_the_rows_that_they_promise(tile_rows, threads, block, stride):
    features = frozenset(["subgroup"])
    caps = Caps(tile_rows=tile_rows, group_threads=threads, subgroup_width=8, features=features)
    for rows, units, tile in itertools.product((1, 64, 4096), (1, 16, 300), (1, 4, 8)):
        schedule = contraction_schedule(rows, units, tile, caps, block=block, stride=stride)
        if schedule is None:
            slots = threads // lane_count(units, caps)
            assert not any(fits_block(slots * r, block, stride) for r in range(1, ROWS_MOST + 1))
            continue
        assert schedule.threads == threads and schedule.tile == tile
        assert 1 <= schedule.rows <= ROWS_MOST
        assert fits_block(schedule.columns, block, stride)
        assert schedule.lanes == 1 or tile_rows == 1


# What the compiler makes of it


def joined(run, g, epilogue):
    product = f.linear(g.floats(TOKENS, 16), g.weight(FORMATS["f32"], HEADS * HEAD, 16), FORMATS["f32"])
    g.output(epilogue(p.reshape(product, (TOKENS, HEADS, HEAD))))
    return run(g, Caps(tile_rows=4, group_threads=32)).regions


def test_an_epilogue_that_mixes_heads_does_not_join(g, run):
    assert joined(run, g, lambda x: p.exp(p.transpose(x, (0, 2, 1)))) == ("contraction", "pointwise")


def test_an_epilogue_that_rolls_heads_does_not_join(g, run):
    """Within reach of the whole last axis of the product, but a head further than its own."""
    roll = lambda x: p.concat([p.slice_(x, (0, 1, 0), x.shape), p.slice_(x, (0, 0, 0), (TOKENS, 1, HEAD))], 1)  # noqa: E731
    assert joined(run, g, lambda x: p.exp(roll(x)) * 2.0) == ("contraction", "pointwise")


def test_an_epilogue_that_turns_a_head_joins(g, run):
    turn = lambda x: p.concat([p.slice_(x, (0, 0, 3), x.shape), p.slice_(x, (0, 0, 0), (TOKENS, HEADS, 3))], 2)  # noqa: E731
    assert joined(run, g, lambda x: p.exp(turn(x)) * 2.0) == ("projection",)


@pytest.mark.parametrize(("groups", "rows"), [(1023, 2), (1024, 4)])
def test_lanes_take_more_rows_of_what_fills_the_device_several_times(groups: int, rows: int) -> None:
    """Groups are counted as they are then: four slots of four rows each."""
    caps = Caps(group_threads=128, parallel_groups=256, subgroup_width=32, features=frozenset({"subgroup"}))
    schedule = contraction_schedule(groups * 16, 100, 1, caps)
    assert schedule is not None and (schedule.lanes, schedule.rows) == (32, rows)
    several = contraction_schedule(groups * 16, 100, 4, caps)
    assert several is not None and several.rows == 2, "several tokens reuse a weight as it is"

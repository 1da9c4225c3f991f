"""The arena: nothing alive at once overlaps, and hardly more is taken than is alive."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_executor.compile import Caps, Target, compile
from poot_executor.compile.memory import Block, Span, align, plan_arena
from poot_executor.compile.program import CopyCommand, Space
from poot_executor.dtype import BF16, F32
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p

CAPS = Caps(group_threads=8, max_bindings=31)
ALIGNMENTS = st.sampled_from([4, 16, 32, 256])


@st.composite
def spans(draw):
    first = draw(st.integers(0, 12))
    return Span(draw(st.integers(1, 4000)), first, first + draw(st.integers(0, 6)))


@settings(deadline=None, max_examples=300)
@given(st.lists(spans(), max_size=24), ALIGNMENTS)
def test_spans_alive_at_once_do_not_overlap(lives, alignment):
    plan = plan_arena(lives, alignment)
    assert len(plan.offsets) == len(lives)
    for (a, at), (b, other) in combinations(zip(lives, plan.offsets, strict=True), 2):
        if a.first <= b.last and b.first <= a.last:
            assert at + a.nbytes <= other or other + b.nbytes <= at
    for span, at in zip(lives, plan.offsets, strict=True):
        assert at % alignment == 0
        assert at + span.nbytes <= plan.nbytes
    assert plan.nbytes % alignment == 0


@settings(deadline=None, max_examples=300)
@given(st.lists(spans(), max_size=24), ALIGNMENTS)
def test_the_floor_is_what_is_alive_at_once(lives, alignment):
    plan = plan_arena(lives, alignment)
    most = max(
        (sum(align(s.nbytes, alignment) for s in lives if s.first <= at <= s.last) for at in range(20)), default=0
    )
    assert plan.floor == most <= plan.nbytes


def decoder_spans(layers, tokens, width, ffn, rng):
    """Lives of a decoder layer's values: the residual, the products, the attention, the gated product."""
    lives, at = [], 0
    for _ in range(layers):
        heads = int(rng.integers(1, 4)) * width // 4
        lives += [
            Span(4 * tokens * width, at, at + 2),  # what the layer was given
            Span(4 * tokens * heads, at, at + 1),  # queries
            Span(4 * tokens * heads, at + 1, at + 2),  # what attention mixed
            Span(4 * tokens * width, at + 2, at + 4),  # the residual
            Span(4 * tokens * ffn, at + 3, at + 4),
        ]
        at += 5
    return lives


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 12), st.sampled_from([1, 3, 7, 64, 512]), st.sampled_from([32, 576, 2048]),
    st.sampled_from([48, 1536, 5632]), st.integers(0, 1000),
)  # fmt: skip
def test_decoders_take_at_most_a_tenth_more_than_they_must(layers, tokens, width, ffn, seed):
    plan = plan_arena(decoder_spans(layers, tokens, width, ffn, np.random.default_rng(seed)), 256)
    assert plan.nbytes <= 1.1 * plan.floor


def test_a_long_program_is_planned_quickly():
    """A thousand layers, within the tries that are allowed."""
    lives = decoder_spans(1000, 512, 2048, 5632, np.random.default_rng(0))
    assert plan_arena(lives, 256).nbytes <= 1.1 * plan_arena(lives, 256).floor


@pytest.mark.parametrize(("rows", "tokens"), [(4, 1), (1, 5)])
def test_a_decoder_s_program(decoder, rows, tokens):
    program = compile(decoder(rows, tokens, layers=3).graph(), Target("paper", CAPS))
    assert 0 < program.arena_floor <= program.arena_bytes <= 1.1 * program.arena_floor
    deeper = compile(decoder(rows, tokens, layers=6).graph(), Target("paper", CAPS))
    assert deeper.arena_bytes == program.arena_bytes, "layers use the same memory one after another"


def test_every_argument_is_aligned_and_inside_its_block(decoder):
    for alignment in (16, 256):
        caps = Caps(group_threads=8, max_bindings=31, offset_alignment=alignment)
        program = compile(decoder(2, 3, layers=1).graph(), Target("paper", caps))
        sizes = {
            Space.ARENA: program.arena_bytes, Space.INPUT: program.input_bytes, Space.OUTPUT: program.output_bytes,
            Space.CONSTANT: len(program.constants),
        }  # fmt: skip
        for command in program.commands:
            copy = isinstance(command, CopyCommand)
            places = [command.source, command.target] if copy else [a.place for a in command.args]
            for place in places:
                assert place.offset % alignment == 0 and place.nbytes % 4 == 0
                if place.key is None:
                    assert place.offset + place.nbytes <= sizes[place.space]


def test_what_is_written_is_not_what_is_read(decoder):
    """Within one dispatch the result's bytes are no operand's, unless it is an update in place."""
    program = compile(decoder(2, 3, layers=1).graph(), Target("paper", CAPS))
    for dispatch in program.dispatches:
        out = [a.place for a, q in zip(dispatch.args, dispatch.kernel.params, strict=True) if q.name.startswith("out")]
        rest = [a.place for a, q in zip(dispatch.args, dispatch.kernel.params, strict=True) if q.name.startswith("in")]
        assert out
        for one in out:
            for other in rest:
                apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
                assert apart or (one.space, one.key) != (other.space, other.key)


def test_fields_of_a_block_follow_each_other():
    block = Block(16)
    assert [block.add(n) for n in (1, 16, 17, 0)] == [0, 16, 32, 64]
    assert block.nbytes == 80


def test_one_buffer_serves_values_that_follow_each_other(g, run):
    """A chain of stored values ping-pongs between two places."""
    x = g.floats(16, 16)
    for _ in range(6):
        x = f.softmax(p.transpose(x, (1, 0))) @ g.floats(16, 16)
    g.output(x)
    match = run(g)
    assert match.program.arena_bytes <= 3 * 16 * 16 * 4


def test_constants_are_stored_once_each(g, run):
    table = np.arange(7.0)
    for _ in range(3):
        g.output(p.exp(g.floats(7)) * g.builder.computed(table, F32))
    g.output(p.cast(g.floats(7), BF16) * g.builder.computed(table, BF16))
    match = run(g)
    assert len(match.program.constants) <= 256 + 28

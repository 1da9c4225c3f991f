"""Which step shape runs: the fewest passes over the weights, then the least work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poot_llm.blocks.step import StepShape
from poot_llm.driver import DriverOptions, StepSet
from poot_llm.driver.choice import RowWork, choose_shape, shapes_for
from poot_llm.driver.sequence import Sequence
from poot_llm.sampling import SamplingParams


def shapes(rows: int = 1, spans: tuple[int, ...] = (), chunk: int = 128) -> tuple[StepShape, ...]:
    options = DriverOptions(rows=rows, capacity=1024, chunk=chunk, spans=spans)
    return tuple(StepSet.of(options, 8192).shapes())


def test_the_finite_set() -> None:
    assert [s.tokens for s in shapes()] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert sorted({s.rows for s in shapes(rows=6)}) == [1, 2, 4, 6]
    assert sorted({s.rows for s in shapes(rows=8)}) == [1, 2, 4, 8]
    assert sorted({s.span for s in shapes(spans=(512, 256))}) == [256, 512, 1024]
    assert len(shapes(rows=4, spans=(256,))) == 3 * 8 * 2
    assert max(s.tokens for s in shapes(spans=(16,))) == 16
    assert StepSet.of(DriverOptions(), 8192).capacity == 2048
    assert StepSet.of(DriverOptions(), 512).capacity == 512


@pytest.mark.parametrize(
    ("pending", "tokens"),
    [(1, 1), (2, 2), (3, 4), (65, 128), (127, 128), (128, 128), (129, 128), (5000, 128)],
)
def test_a_run_is_padded_up(pending: int, tokens: int) -> None:
    chosen = choose_shape(shapes(), [RowWork(0, 0, pending)])
    assert chosen is not None and chosen.tokens == tokens


def test_rows_and_spans_are_the_smallest_that_fit() -> None:
    all_shapes = shapes(rows=4, spans=(256,))
    chosen = choose_shape(all_shapes, [RowWork(2, 100, 1), RowWork(0, 255, 1)])
    assert chosen == StepShape(4, 1, 1024, 256)
    chosen = choose_shape(all_shapes, [RowWork(1, 256, 1)])
    assert chosen == StepShape(2, 1, 1024, 1024)
    chosen = choose_shape(all_shapes, [RowWork(0, 1, 1), RowWork(1, 0, 20)])
    assert chosen == StepShape(2, 32, 1024, 256)


def test_padding_may_pass_the_span_and_ids_may_not() -> None:
    few = [StepShape(1, 4, 8, 8), StepShape(1, 1, 8, 8)]
    assert choose_shape(few, [RowWork(0, 5, 3)]) == few[0]
    assert choose_shape(few, [RowWork(0, 6, 3)]) == few[1]
    assert choose_shape(few, [RowWork(0, 8, 1)]) is None
    assert choose_shape(few, [RowWork(1, 0, 1)]) is None


@pytest.mark.parametrize("prompt", [1, 2, 100, 128, 129, 200, 300, 1000])
@pytest.mark.parametrize("spans", [(), (256,), (256, 512)])
def test_what_a_request_needs_is_what_it_then_takes(prompt: int, spans: tuple[int, ...]) -> None:
    all_shapes = shapes(spans=spans)
    end = min(prompt + 300, 1023)
    needed = shapes_for(all_shapes, 0, 0, prompt, end)
    cached, pending, taken = 0, prompt, set()
    while cached < end:
        shape = choose_shape(needed, [RowWork(0, cached, pending)])
        assert shape is not None and shape == choose_shape(all_shapes, [RowWork(0, cached, pending)])
        taken.add(shape)
        step = min(pending, shape.tokens)
        cached, pending = cached + step, max(pending - step, 1)
    assert taken == set(needed)


def test_the_ids_of_a_sequence_that_are_not_cached() -> None:
    sequence = Sequence((1, 2, 3), SamplingParams(), 0, frozenset(), 9, tokens=[4, 5])
    got = []
    for cached in range(6):
        sequence.cached = cached
        assert sequence.pending == 5 - cached
        got.append(list(sequence.ids(cached, cached + 3)))
    assert got == [[1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5], [5], []]


def test_one_row_at_a_time_reads_where_programs_are_dear() -> None:
    """A prompt is read by a step of one row, in whole chunks: it brings no work for each of the other rows."""
    options = DriverOptions(rows=16, chunk=128, capacity=512)
    shapes = {(shape.rows, shape.tokens) for shape in StepSet.of(options, 512, few=True).shapes()}
    assert shapes == {(1, 1), (1, 16), (1, 128), (4, 1), (16, 1)}
    odd = {
        (shape.rows, shape.tokens) for shape in StepSet.of(replace(options, rows=6, chunk=4), 512, few=True).shapes()
    }
    assert odd == {(1, 1), (1, 4), (4, 1), (6, 1)}
    plain = {(shape.rows, shape.tokens) for shape in StepSet.of(options, 512).shapes()}
    assert {(16, 128), (8, 64), (2, 2)} <= plain

"""Embedding rows in place of some tokens': bound by value, checked before any work, never taken for a cached prompt."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_executor.errors import RequestError
from poot_executor.formats import FORMATS
from poot_llm.driver import InputRows, Layout
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)
driving, greedy = fixture.driving, fixture.greedy

PROMPT = [104, 277, 102, 110, 35, 101, 117, 114, 122, 113, 290, 7, 300, 9, 12, 60, 44, 45, 46, 47, 48]
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True)
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {"prefix_cache": True},
    "paged": {"layout": Layout.PAGED, "rows": 2},
}


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


def table(handle: ModelHandle) -> NDArray[np.float32]:
    stored = handle.store.tensor("token_embd.weight")
    assert stored.format is FORMATS["f32"]
    return stored.data.view("<f4").reshape(stored.shape)


def rows(handle: ModelHandle, at: tuple[int, ...], ids: list[int]) -> dict[str, InputRows]:
    return {"embeddings": InputRows(at, table(handle)[[ids[place] for place in at]])}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("at", [(0,), (3,), (2, 5, 11), (20,), tuple(range(21))])
def test_rows_of_the_table_are_the_tokens(handle: ModelHandle, layout: str, at: tuple[int, ...]) -> None:
    """Other ids stand in the prompt where rows are supplied, so that nothing else can give the answer."""
    hidden = [9 if place in at else id for place, id in enumerate(PROMPT)]
    with driving(handle, capacity=48, **LAYOUTS[layout]) as rig:
        stream = rig.driver.generate_with_inputs(hidden, rows(handle, at, PROMPT), PARAMS)
        assert [item.token for item in stream] == greedy(handle, PROMPT, 6)
        prepared, stats = rig.driver.prepared, rig.engine.stats()
        again = rig.driver.generate_with_inputs(hidden, rows(handle, at, PROMPT), PARAMS)
        assert [item.token for item in again] == greedy(handle, PROMPT, 6)
        after = rig.engine.stats()
        assert rig.driver.prepared == prepared
        assert (after.recordings, after.allocations) == (stats.recordings, stats.allocations)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_supplied_rows_are_no_cached_prompt(handle: ModelHandle, layout: str) -> None:
    """The same ids with rows, without, and with other rows: each gets its own answer."""
    with driving(handle, capacity=48, **LAYOUTS[layout]) as rig:
        driver = rig.driver
        plain = greedy(handle, PROMPT, 6)
        assert [i.token for i in driver.generate(PROMPT, PARAMS)] == plain
        for id in (9, 10):
            shown = [*PROMPT[:4], id, *PROMPT[5:]]
            given = {"embeddings": InputRows((4,), table(handle)[[id]])}
            stream = driver.generate_with_inputs(PROMPT, given, PARAMS)
            assert stream.sequence.timings.kept_tokens <= 4
            assert [i.token for i in stream] == greedy(handle, shown, 6)
        assert [i.token for i in driver.generate(PROMPT, PARAMS)] == plain


def test_rows_are_bound_by_value(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        given = table(handle)[[PROMPT[3]]].copy()
        stream = rig.driver.generate_with_inputs(PROMPT, {"embeddings": InputRows((3,), given)}, PARAMS)
        given[:] = 0
        assert [item.token for item in stream] == greedy(handle, PROMPT, 6)


def test_they_survive_preemption_and_a_reset(handle: ModelHandle) -> None:
    with driving(handle, capacity=48, **LAYOUTS["paged"]) as rig:
        driver = rig.driver
        sequence = driver.open([9] * 21, PARAMS, inputs=rows(handle, tuple(range(21)), PROMPT))
        assert sequence is not None
        while len(sequence.tokens) < 2:
            (result,) = driver.step([sequence])
            for token in result.given:
                driver.commit(sequence, token)
        driver.preempt(sequence)
        assert driver.resume(sequence) and sequence.cached == 0
        while sequence.finish_reason is None:
            for token in driver.step([sequence])[0].given:
                driver.commit(sequence, token)
        assert sequence.tokens == greedy(handle, PROMPT, 6)


@pytest.mark.parametrize(
    ("at", "change", "message"),
    [
        ((0,), lambda r: r.astype(np.float64), "float64"),
        ((0,), lambda r: r[:, :-1], r"float32\[1, 31\], not float32\[1, 32\] for 1 positions"),
        ((0, 1), lambda r: r, r"\[1, 32\], not float32\[2, 32\]"),
        ((21,), lambda r: r, "0 to 20, not"),
        ((-1,), lambda r: r, "0 to 20, not"),
        ((1, 1), lambda r: np.concatenate([r, r]), "ascend"),
        ((2,), lambda r: r * np.float32(np.nan), "the row of position 2 holds NaN"),
        ((2,), lambda r: r + np.float32(np.inf), "the row of position 2 holds NaN or infinity"),
    ],
)
def test_inputs_that_are_refused(handle: ModelHandle, at: tuple[int, ...], change: Any, message: str) -> None:
    with driving(handle) as rig:
        given = {"embeddings": InputRows(at, change(table(handle)[[7]]))}
        with pytest.raises(RequestError, match=message):
            rig.driver.generate_with_inputs(PROMPT, given, PARAMS)
        assert rig.driver.prepared == () and rig.driver.use().rows_taken == 0

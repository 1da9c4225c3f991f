"""Where programs are dear, prompts are read by steps of one row, whichever row that is, beside those that decode."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_executor.errors import CheckFailed
from poot_llm.driver import Layout, Scheduler
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams, Suffix

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)
CAPACITY = 192
OPTIONS: dict[str, Any] = {
    "capacity": CAPACITY, "chunk": 128, "rows": 16, "layout": Layout.CONTIGUOUS, "few_programs": True,
}  # fmt: skip
ALONE: dict[str, Any] = {"capacity": CAPACITY, "chunk": 64, "layout": Layout.CONTIGUOUS}


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"), context=256)


def prompt_of(rng: np.random.Generator, handle: ModelHandle, count: int) -> list[int]:
    return rng.integers(5, handle.config.vocabulary, count).tolist()


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


def test_a_prompt_beside_fifteen_that_decode_is_read_in_whole_chunks(rng, handle: ModelHandle) -> None:
    prompts = [prompt_of(rng, handle, 3) for _ in range(15)]
    long = prompt_of(rng, handle, 140)
    with fixture.driving(handle, **OPTIONS) as rig, fixture.driving(handle, **ALONE) as other:
        rig.driver.prepare([Suffix.GREEDY, Suffix.FULL])
        scheduler = Scheduler(rig.driver, prefill_tokens=128)
        before = rig.engine.stats()
        requests = [scheduler.add(prompt, greedy(24)) for prompt in prompts]
        while any(r.sequence is None or len(r.sequence.tokens) < 3 for r in requests):
            scheduler.step()
        added = scheduler.add(long, greedy(4))
        rig.device.replayed.clear()
        turns = []
        while added.sequence is None or not added.sequence.tokens:
            tokens = sum(len(d.tokens) for d in scheduler.step() if d.request is not added)
            turns.append(([name.removeprefix("llama_") for name in rig.device.replayed], tokens))
            rig.device.replayed.clear()
        # 140 ids are 128 and 12. All others decode once 128 were read, in a step that was submitted ahead.
        assert [tokens for _, tokens in turns] == [0, 15, 0]
        assert [names for names, _ in turns] == [[f"1x128x{CAPACITY}_greedy"], [], [f"1x16x{CAPACITY}_greedy"]]
        while scheduler.busy:
            scheduler.step()
        after = rig.engine.stats()
        assert (after.recordings, after.allocations) == (before.recordings, before.allocations)
        for request in (*requests, added):
            assert request.sequence is not None
            alone = [item.token for item in other.driver.generate(request.prompt_ids, request.params)]
            assert request.sequence.tokens == alone


def test_prompts_that_come_together_are_answered_one_after_the_other(rng, handle: ModelHandle) -> None:
    """None waits for those behind it, and once enough was read those that decode go on."""
    with fixture.driving(handle, **OPTIONS) as rig, fixture.driving(handle, **ALONE) as other:
        rig.driver.prepare([Suffix.GREEDY])
        scheduler = Scheduler(rig.driver, prefill_tokens=300)
        requests = [scheduler.add(prompt_of(rng, handle, 100), greedy(6)) for _ in range(5)]
        turns = [[requests.index(d.request) for d in scheduler.step()] for _ in range(7)]
        assert turns == [[0], [1], [2], [0, 1, 2], [3], [4], [0, 1, 2, 3, 4]]
        # Three that decode take one step, and none a step of its own.
        names = [name.removeprefix("llama_") for name in rig.device.replayed]
        assert f"1x1x{CAPACITY}_greedy" not in names and names.count(f"1x128x{CAPACITY}_greedy") == 5
        while scheduler.busy:
            scheduler.step()
        for request in requests:
            assert request.sequence is not None
            assert request.sequence.tokens == [t.token for t in other.driver.generate(request.prompt_ids, greedy(6))]


def test_one_that_runs_alone_decodes_by_itself_whatever_its_row_is(rng, handle: ModelHandle) -> None:
    with fixture.driving(handle, **OPTIONS) as rig, fixture.driving(handle, **ALONE) as other:
        rig.driver.prepare([Suffix.GREEDY])
        prompts = [prompt_of(rng, handle, 9) for _ in range(6)]
        opened = [rig.driver.open(prompt, greedy(12)) for prompt in prompts]
        for sequence in opened[:5]:
            assert sequence is not None
            rig.driver.release(sequence)
        last = opened[5]
        assert last is not None and last.row == 5
        rig.device.replayed.clear()
        while last.finish_reason is None:
            rig.driver.commit_given(rig.driver.step([last]))
        ran = Counter(name.removeprefix("llama_") for name in rig.device.replayed)
        assert ran == {f"1x16x{CAPACITY}_greedy": 1, f"1x1x{CAPACITY}_greedy": 11}
        alone = [item.token for item in other.driver.generate(prompts[5], greedy(12))]
        assert last.tokens == alone


def test_what_is_opened_later_needs_no_step_that_was_not_prepared(rng, handle: ModelHandle) -> None:
    """Each `open` prepares what its request will take, with those that run beside it."""
    with fixture.driving(handle, **OPTIONS) as rig:
        opened = [rig.driver.open(prompt_of(rng, handle, 5), greedy(6)) for _ in range(3)]
        prepared = rig.driver.prepared
        assert {(key.shape.rows, key.shape.tokens) for key in prepared} >= {(1, 16), (1, 1), (4, 1)}
        running = [sequence for sequence in opened if sequence is not None]
        while running:
            rig.driver.commit_given(rig.driver.step(running))
            running = [sequence for sequence in running if sequence.finish_reason is None]
        assert rig.driver.prepared == prepared


def test_a_row_that_there_is_none_of_is_refused(handle: ModelHandle) -> None:
    from poot_llm.blocks.step import LAST, POS, ROW, TOKEN

    with fixture.driving(handle, **OPTIONS) as rig:
        rig.driver.prepare([Suffix.GREEDY])
        decoding = rig.driver._decoding
        step = next(s for s in decoding.entries.decoding(Suffix.GREEDY) if s.key.shape.among == 16)
        inputs = {TOKEN: np.full((1, 1), 7, np.int32), POS: np.zeros(1, np.int32), LAST: np.zeros(1, np.int32)}
        executor, executable = rig.engine, rig.driver._executable
        for row in (-1, 16):
            submitted = executor.submit(executable, step.entry, {**inputs, ROW: np.array([row], np.int32)})
            with pytest.raises(CheckFailed):
                executor.collect(submitted)
            executor.reset_state(executable)
        assert executor.collect(executor.submit(executable, step.entry, {**inputs, ROW: np.array([15], np.int32)}))

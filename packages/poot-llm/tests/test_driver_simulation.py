"""Ten thousand requests through block tables, prefix cache and preemption, without a device."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from poot_llm.driver import Driver, DriverOptions, FinishReason, Layout, Request, Scheduler
from poot_llm.driver.paged_kv import PagedKv
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)
paper = fixture.sibling("paper_executor")

ROWS, CAPACITY, VOCABULARY, BLOCKS = 16, 192, 320, 36


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"), vocab=VOCABULARY)


@dataclass
class Load:
    """Requests that come four at a time, some of them given up at a random place, and what became of them."""

    scheduler: Scheduler
    rng: np.random.Generator
    count: int
    answers: dict[Request, list[int]] = field(default_factory=dict)
    ends: dict[Request, FinishReason] = field(default_factory=dict)
    given_up: set[Request] = field(default_factory=set)

    def run(self) -> None:
        """Until all have ended."""
        beginnings = [self._ids(60) for _ in range(24)]
        while len(self.answers) < self.count or self.scheduler.busy:
            while len(self.answers) < self.count and self.scheduler.waiting < 4:
                prompt = beginnings[self.rng.integers(24)] + self._ids(24)
                self.answers[self.scheduler.add(prompt, self._params())] = []
            for delivery in self.scheduler.step():
                self.answers[delivery.request] += delivery.tokens
                if delivery.finish_reason is not None:
                    self.ends[delivery.request] = delivery.finish_reason
            self._give_up()

    def _ids(self, most: int) -> list[int]:
        return self.rng.integers(3, VOCABULARY, self.rng.integers(1, most)).tolist()

    def _params(self) -> SamplingParams:
        long = self.rng.random() < 0.2
        return SamplingParams(max_tokens=int(self.rng.integers(40, 90) if long else self.rng.integers(1, 12)))

    def _give_up(self) -> None:
        alive = [r for r in list(self.answers)[-ROWS - 4 :] if r not in self.ends and r not in self.given_up]
        if alive and self.rng.random() < 0.08:
            victim = alive[self.rng.integers(len(alive))]
            self.scheduler.finish(victim)
            self.given_up.add(victim)

    def check(self, eos: frozenset[int]) -> None:
        """Every answer is the one that its prompt gets alone, as far as it was waited for."""
        for request, tokens in self.answers.items():
            wanted = request.params.max_tokens
            assert wanted is not None
            whole = paper.answer(list(request.prompt_ids), wanted, VOCABULARY, eos)
            if request in self.given_up:
                assert tokens == whole[: len(tokens)]
            else:
                assert tokens == whole
                assert self.ends[request] is (FinishReason.STOP if whole[-1] in eos else FinishReason.LENGTH)


@pytest.mark.parametrize(("count", "cache"), [(10_000, True), (1_000, False)])
def test_ten_thousand_requests(handle: ModelHandle, rng: np.random.Generator, count: int, cache: bool) -> None:
    """A pool of a fifth of what full rows take makes sequences give way; blocks and references return to zero."""
    options = DriverOptions(
        rows=ROWS, capacity=CAPACITY, layout=Layout.PAGED, pool_blocks=BLOCKS, chunk=64, prefix_cache=cache
    )
    executor = paper.PaperExecutor(VOCABULARY, BLOCKS, ROWS)
    with Driver(handle, executor, options) as driver:
        driver.prepare([SamplingParams().suffix])
        prepared = driver.prepared
        load = Load(Scheduler(driver, spare=0), rng, count)
        load.run()
        load.check(handle.tokenizer.eos_ids)
        assert sum(request.preemptions for request in load.answers) > count // 50
        assert len(load.given_up) > count // 50
        assert driver.prepared == prepared
        use = driver.use()
        assert (use.rows_taken, use.blocks_held, use.blocks_free) == (0, 0, BLOCKS - 1)
        assert (use.reused > 0, use.evicted > 0) == (cache, cache)
        kv = driver.kv
        assert isinstance(kv, PagedKv)
        if kv.cache is not None:
            assert len(kv.cache) == kv.cache.idle == kv.pool.count - kv.pool.free
            assert kv.cache.evict(BLOCKS) == use.blocks_cached and len(kv.cache) == 0
        assert kv.pool.free == BLOCKS - 1
        assert all(kv.pool.references(block) == 0 for block in range(BLOCKS))

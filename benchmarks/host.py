"""What a step costs the host: `hatch run bench:host [MODEL] [--rows N] ...`.

Many requests decode together through the scheduler and the driver on an executor that takes no time at all: what is
left is the host's work. `step` is all of it between two steps, `gap` the part from one step's outputs to the next one's
submission, which a device waits for where no step was submitted ahead. The tokens are checked to be those that the
executor gave. Times are medians and first deciles of wall time.
"""

from __future__ import annotations

import argparse
from collections import deque
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.program import Program
from poot_executor.compile.target import Caps, Granularity, Target
from poot_executor.device import BufferKind, MemoryInfo
from poot_executor.executor import EntryId, ExecutableId, Executor, StepId, StepInputs, StepOutputs
from poot_executor.stats import Counters, EngineStats
from poot_executor.weights import WeightMap, WeightStore
from poot_llm.blocks.step import LAST
from poot_llm.driver import Driver, DriverOptions, Layout, Scheduler
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import MOST_LOGPROBS, SamplingParams

KINDS = {
    "greedy": SamplingParams(ignore_eos=True),
    "sampled": SamplingParams(ignore_eos=True, temperature=0.8, top_p=0.9, seed=1),
    "penalties": SamplingParams(ignore_eos=True, temperature=0.8, seed=1, repetition_penalty=1.1),
    "logprobs": SamplingParams(ignore_eos=True, logprobs=5),
}


class FreeExecutor(Executor):
    """Gives every row token 5 and up, at once."""

    def __init__(self) -> None:
        self._entries: list[tuple[Program, StepOutputs]] = []
        self._steps: deque[tuple[StepId, StepOutputs]] = deque()
        self.collected = 0.0
        self.gaps: list[float] = []
        self._count = 0

    @property
    def target_set(self) -> tuple[Target, ...]:
        """A target that compiles nothing."""
        return (Target("free", Caps(granularity=Granularity.GRAPH)),)

    def load_weights(self, store: WeightStore, weight_map: WeightMap) -> ExecutableId:
        """Nothing is read."""
        return ExecutableId(1)

    def add_entry(self, executable: ExecutableId, program: Program) -> EntryId:
        """The outputs of each of its steps are made here."""
        rows = next(slot.type.shape[0] for slot in program.slots if slot.key == LAST)
        held: dict[str, NDArray[Any]] = {
            "token": np.arange(5, 5 + rows, dtype=np.int32), "non_finite": np.zeros(rows, np.int32),
            "logprob": np.full(rows, -1, np.float32), "top_ids": np.zeros((rows, MOST_LOGPROBS), np.int32),
            "top_logprobs": np.full((rows, MOST_LOGPROBS), -1, np.float32),
        }  # fmt: skip
        self._entries.append((program, StepOutputs(held)))
        return EntryId(len(self._entries) - 1)

    def prepare(self, executable: ExecutableId, entry: EntryId, *, ahead: bool = False) -> None:
        """Nothing is recorded."""

    def submit(self, executable: ExecutableId, entry: EntryId, inputs: StepInputs) -> StepId:
        """Over at once."""
        self.gaps.append(perf_counter() - self.collected)
        self._count += 1
        step = StepId(self._count)
        self._steps.append((step, self._entries[entry][1]))
        return step

    def collect(self, step: StepId) -> StepOutputs:
        """The oldest one's."""
        _, outputs = self._steps.popleft()
        self.collected = perf_counter()
        return outputs

    def step(self, executable: ExecutableId, entry: EntryId, inputs: StepInputs) -> StepOutputs:
        """See `Executor`."""
        return self.collect(self.submit(executable, entry, inputs))

    def reset_state(self, executable: ExecutableId) -> None:
        """There is none."""

    def remove_entry(self, executable: ExecutableId, entry: EntryId) -> None:
        """Its id stays."""

    def stats(self) -> EngineStats:
        """Nothing is counted."""
        unknown: dict[BufferKind, int] = dict.fromkeys(BufferKind, 0)
        memory: Any = MemoryInfo(unknown, None, None)
        return Counters().freeze(1, len(self._entries), memory, None)

    def unload(self, executable: ExecutableId) -> None:
        """Nothing was loaded."""

    def close(self) -> None:
        """Nothing was opened."""


def measure(handle: ModelHandle, params: SamplingParams, rows: int, steps: int, ahead: bool) -> tuple[Any, Any]:
    """Seconds of each step, and of each gap."""
    options = DriverOptions(rows=rows, capacity=1024, layout=Layout.PAGED, pool_blocks=rows * 64 + 1, ahead=ahead)
    executor = FreeExecutor()
    rng = np.random.default_rng(0)
    with Driver(handle, executor, options) as driver:
        driver.prepare_batch(rows, params.suffix)
        scheduler = Scheduler(driver)
        for _ in range(rows):
            scheduler.add(rng.integers(5, handle.config.vocabulary, 100).tolist(), params)
        while len(scheduler.step()) < rows:
            pass
        for _ in range(10):
            scheduler.step()
        executor.gaps.clear()
        times = []
        for _ in range(steps):
            started = perf_counter()
            given = scheduler.step()
            times.append(perf_counter() - started)
            assert sorted(delivery.tokens[0] for delivery in given) == list(range(5, 5 + rows))
        return np.array(times), np.array(executor.gaps)


def main() -> None:
    """Measure each kind, with a step submitted ahead and without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    handle = Models().open(arguments.model)
    print(f"{handle.name}, {arguments.rows} rows; microseconds, median (first decile)")
    print(f"{'':12}{'step, one ahead':>20}{'step, none ahead':>20}{'gap, none ahead':>20}")
    for name, params in KINDS.items():
        ahead, _ = measure(handle, params, arguments.rows, arguments.steps, True)
        plain, gaps = measure(handle, params, arguments.rows, arguments.steps, False)
        cells = (f"{np.median(t) * 1e6:.0f} ({np.percentile(t, 10) * 1e6:.0f})" for t in (ahead, plain, gaps))
        print(f"{name:12}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()

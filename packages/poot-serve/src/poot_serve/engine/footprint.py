"""Rows on a device where each prepared step holds weights of its own: how many suit it, and what they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from poot_executor.errors import SettingsError
from poot_llm.driver import DriverOptions
from poot_llm.driver.kv_fit import kv_price
from poot_llm.driver.step_set import StepSet, wanted_capacity
from poot_llm.registry import ModelHandle
from poot_llm.sampling import Suffix

SUFFIXES = (Suffix.GREEDY, Suffix.FULL)
"""Of the steps that are prepared there: FULL serves every request, and takes twice as long as GREEDY at 16 rows."""
STEP_SHARE = 2.3
"""What a step holds at most, as a multiple of the checkpoint's bytes: weights laid out anew, room for what it computes.
`benchmarks/footprint.py` measures it: ten steps of SmolLM2-135M Q4_1 on OpenVINO's CPU plug-in took 2.00 GB beside the
KV, 2.1 times the checkpoint each, the first one 2.4 times.
"""
KV_SHARE = 3
"""Likewise of the KV: itself, and what steps hold of it while they run. With full rows, 8 of 1,024 positions, 378 MB of
KV took 1.14 GB.
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a number of rows takes in host memory, about, with weights and KV."""

    rows: int
    capacity: int
    steps: int
    nbytes: int

    @classmethod
    def of(cls, handle: ModelHandle, options: DriverOptions, rows: int) -> Footprint:
        """Raises SettingsError for a capacity above the model's context."""
        capacity = wanted_capacity(options, handle.config.context)
        shapes = StepSet.of(replace(options, rows=rows), handle.config.context, few=True).shapes()
        steps = len(SUFFIXES) * sum(1 for _ in shapes)
        kv = rows * capacity * kv_price(handle, options.activations).position
        return cls(rows, capacity, steps, round(steps * STEP_SHARE * handle.stored_bytes + KV_SHARE * kv))

    def __str__(self) -> str:
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"{rows} of {self.capacity:,} positions: {self.steps} steps, about {size(self.nbytes)}"


def suited(handle: ModelHandle, options: DriverOptions, *, chosen: bool, free: int | None) -> Footprint:
    """Of the options' rows, or, where nobody has `chosen` them, of those that fit, a quarter of them and so on: `free`
    are the bytes of host memory that are free, None where that is not known.

    Raises SettingsError where even the fewest do not fit, with the numbers.
    """
    budget = None if free is None else int(free * options.memory_fraction)
    candidates = [Footprint.of(handle, options, rows) for rows in _rows(options.rows, chosen)]
    for candidate in candidates:
        if budget is None or candidate.nbytes <= budget:
            return candidate
    assert budget is not None
    smaller = [Footprint.of(handle, options, rows) for rows in _rows(options.rows, False)][1:]
    fits = next((one for one in smaller if one.nbytes <= budget), None)
    hint = "take a smaller model or --capacity, or --lazy" if fits is None else f"--rows {fits.rows} would fit: {fits}"
    raise SettingsError(f"{candidates[-1]}, and {size(budget)} may be used: {hint}")


def _rows(most: int, chosen: bool) -> Iterator[int]:
    """Rows to try, in order."""
    rows = most
    while rows > 0:
        yield rows
        rows = 0 if chosen or rows == 1 else max(rows // 4, 1)


def size(count: int) -> str:
    """Bytes for people."""
    return f"{count / 1e9:.1f} GB" if count >= 10**9 else f"{count / 1e6:.0f} MB"

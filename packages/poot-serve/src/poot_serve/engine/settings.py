"""What an engine may be told. Everything is finite."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from poot_executor.errors import SettingsError
from poot_llm.driver import DriverOptions
from poot_llm.guided.limits import GuideLimits


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Raises SettingsError naming the field that is out of range. Times are in seconds.

    - `model`: a known name, a GGUF file or a folder; `device`: as `poot devices` lists them.
    - `driver`: rows, capacity, KV, chunk, an encoder's rows: see `DriverOptions`. Nothing is guessed unless its
      `window` says so. By default prompts that begin alike are read once, also where KV is contiguous: the answers of a
      request, say.
    - `fit_rows`: nobody asked for the driver's rows: they are fewer where steps are dear and fewer fit.
    - `guides`: what compiling and following a constraint may cost.
    - `prefill_tokens`: of prompts that are read beside the rows that decode, in one turn of the loop.
    - `queue`: requests that may wait for a row; one more is refused as Overloaded.
    - `buffer_tokens`: of one answer that may wait to be read; one that is read more slowly is given up.
    - `request_seconds`: how long a request may take that names no time of its own.
    - `start_seconds`: how long an engine may load. `stall_seconds`: how long one with requests may say nothing.
    - `prepare_all`: every step is compiled before the engine is ready, so that none is while requests run. Otherwise
      the first request that needs one waits for it, and those that run wait too.
    - `loss_seconds`: a second loss within that time ends the client for good.
    """

    model: str | Path
    device: str = "auto"
    driver: DriverOptions = field(default_factory=lambda: DriverOptions(rows=16, prefix_cache=True))
    fit_rows: bool = False
    guides: GuideLimits = field(default_factory=GuideLimits)
    prefill_tokens: int = 512
    queue: int = 256
    buffer_tokens: int = 65536
    request_seconds: float = 3600.0
    start_seconds: float = 1800.0
    stall_seconds: float = 900.0
    prepare_all: bool = True
    loss_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in ("prefill_tokens", "queue", "buffer_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingsError(f"{name} is {value!r}: a whole number from 1 up")
        for name in ("request_seconds", "start_seconds", "stall_seconds", "loss_seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise SettingsError(f"{name} is {value!r}: a positive, finite number of seconds")

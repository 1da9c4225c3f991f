"""What an engine counts: a snapshot that reports of the loop carry, once a second where nothing but tokens is new."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets of `EngineStats.step_buckets`; one more bucket is above them."""
HOST_SECONDS = (0.00005, 0.0001, 0.0002, 0.0004, 0.0008, 0.0016, 0.0032, 0.0064, 0.0128, 0.0256, 0.1)
"""Upper bounds of the buckets of `EngineStats.host_buckets`; one more bucket is above them."""
GAUGES = frozenset(
    (
        "waiting", "running", "compiling", "rows", "blocks_total", "blocks_held", "blocks_cached", "device_bytes",
        "device_free",
    )
)  # fmt: skip
"""Fields that say how things are now; all others are sums."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since the engine process began, and states as they are now. Seconds are wall time, apart from
    those of the processor.

    - `waiting`, `running`: answers (`n` of a request) without and with a row; `compiling`: requests whose constraint is
      being compiled; `rows`: answers that can run at once. Of an encoder, all are texts.
    - `blocks_total`, `blocks_held`, `blocks_cached`: of paged KV; None where KV is contiguous. Held are those of open
      answers, cached those that the prefix cache knows, held ones among them.
    - `prompt_tokens`: of answers that got a row; `prefix_tokens` of them were found computed.
    - `generated_tokens`: committed. `preemptions`: how often an answer gave its room to others.
    - `finished`, `cancelled`, `failed`: answers by how they ended; one that a stop string ended has finished.
    - `steps`, `step_seconds`, `step_buckets`: turns of the loop that stepped, and what they took in all.
    - `host_seconds`, `host_buckets`: of the processor, what a turn took in the loop's thread; apart from that,
      `device_seconds` are what it took there inside the executor, where a device begins and ends its steps.
    - `wait_seconds`: how long turns waited for steps.
    - `queue_seconds`, `queued`: how long answers waited for a row, in sum, and how many got one.
    - `guessed_tokens`, `accepted_tokens`: of prompt lookup.
    - `device_bytes`: what the process holds on the device, None where it is not known; `device_free`: free on it. Both
      are looked at about once a second.
    """

    waiting: int = 0
    running: int = 0
    compiling: int = 0
    rows: int = 0
    blocks_total: int | None = None
    blocks_held: int | None = None
    blocks_cached: int | None = None
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    step_buckets: tuple[int, ...] = (0,) * (len(STEP_SECONDS) + 1)
    host_seconds: float = 0.0
    host_buckets: tuple[int, ...] = (0,) * (len(HOST_SECONDS) + 1)
    device_seconds: float = 0.0
    wait_seconds: float = 0.0
    queue_seconds: float = 0.0
    queued: int = 0
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    device_bytes: int | None = None
    device_free: int | None = None

    def after(self, earlier: EngineStats) -> EngineStats:
        """These with the sums of an engine that ran before added to them."""
        sums = {}
        for item in fields(self):
            mine, other = getattr(self, item.name), getattr(earlier, item.name)
            if item.name.endswith("_buckets"):
                sums[item.name] = tuple(a + b for a, b in zip(mine, other, strict=True))
            elif item.name not in GAUGES:
                sums[item.name] = mine + other
        return replace(self, **sums)

    def ended(self) -> EngineStats:
        """These once the process is gone: it holds nothing any more, and its answers are lost."""
        unknown = {name: None for name in GAUGES if name.startswith(("blocks", "device"))}
        return replace(self, **(dict.fromkeys(GAUGES, 0) | unknown))

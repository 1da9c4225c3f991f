"""A request in the loop: its message, and those of its answers that have not ended."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from secrets import randbits
from typing import Self

from poot_llm.driver import Request
from poot_llm.guided.guide import Guide
from poot_llm.sampling import SamplingParams
from poot_serve.engine.messages import Generate


@dataclass(slots=True, eq=False)
class Job:
    """A request with those of its answers that have not ended."""

    message: Generate
    seed: int
    guide: Future[Guide] | None = None
    until: float = 0.0
    live: dict[int, Request] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Generate) -> Self:
        """Its seed is drawn where the request names none."""
        seed = message.params.seed
        return cls(message, randbits(64) if seed is None else seed)

    @property
    def open(self) -> list[int]:
        """Its answers that have not ended."""
        return list(self.live)

    def answer(self, choice: int) -> SamplingParams:
        """The parameters of one of its answers, with a seed of its own."""
        return replace(self.message.params, n=1, seed=(self.seed + choice) % (1 << 64))

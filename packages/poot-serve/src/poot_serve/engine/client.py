"""`EngineClient`: the process of the engine as the server sees it. One asyncio loop calls it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from poot_llm.encoders import EncoderHandle
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams
from poot_serve.engine.generation import Generation
from poot_serve.engine.messages import EngineFacts
from poot_serve.engine.settings import EngineSettings
from poot_serve.engine.stats import EngineStats


class Phase(Enum):
    """Where an engine is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class EngineState:
    """`reason` says why it is not READY; "" where it is. FAILED and CLOSED are for good."""

    phase: Phase
    reason: str = ""

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self.phase is Phase.READY


class EngineClient:
    """Starts the engine, hands requests to it, starts another one where it is lost.

    `handle` is the checkpoint as far as this process needs it: tokenizer, chat template, configuration.
    """

    handle: ModelHandle | EncoderHandle
    settings: EngineSettings

    def __init__(self, settings: EngineSettings) -> None:
        """Opens the checkpoint's light parts. Raises what opening it raises."""
        raise NotImplementedError

    @property
    def state(self) -> EngineState:
        """Where the engine is, and why."""
        raise NotImplementedError

    @property
    def facts(self) -> EngineFacts | None:
        """What it serves with; None before it was ready once."""
        raise NotImplementedError

    @property
    def stats(self) -> EngineStats:
        """Its counts after the last turn of its loop, those of engines that were lost included."""
        raise NotImplementedError

    @property
    def open_requests(self) -> int:
        """Requests that were handed in and have not ended."""
        raise NotImplementedError

    @property
    def losses(self) -> int:
        """Engines that were lost so far."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the engine's process; it loads from now on, and `state` says how that went."""
        raise NotImplementedError

    async def ready(self) -> EngineFacts:
        """Wait until it is ready. Raises NotReady with the reason where it never will be."""
        raise NotImplementedError

    async def ended(self) -> EngineState:
        """Wait until it is FAILED or CLOSED: the server has nothing more to do then."""
        raise NotImplementedError

    def check(self, prompt_ids: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
        """The prompt's ids, where the engine would take the request, its structure apart.

        Raises RequestError naming the field, ContextExceeded with both numbers, and NotReady before the engine's first
        READY, as only it knows how much fits.
        """
        raise NotImplementedError

    async def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, seconds: float | None = None
    ) -> Generation:
        """Hand in a request of `params.n` answers. When this returns, nothing of it can be refused any more.

        Raises as `check`, RequestError for a structure that cannot be compiled, Overloaded, NotReady, Draining, and
        EngineLost or DeadlineExceeded where those came first. `seconds` bound it from now on.
        """
        raise NotImplementedError

    async def encode(
        self, items: Sequence[tuple[Sequence[int], int]], *, seconds: float | None = None
    ) -> NDArray[np.float32]:
        """f32[items, columns] of texts as `Encoder.tokenize` gives them (ids, second). Raises as `submit`."""
        raise NotImplementedError

    async def drain(self, seconds: float) -> int:
        """Take no more requests, wait for those that are open, and give up those that are not done by then: how many
        that were. Idempotent: a later call may shorten the time.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """End the engine's process, within a few seconds; requests that are open end with Draining. Idempotent."""
        raise NotImplementedError

"""`EngineClient`: requests handed to the engine, checked first. One asyncio loop calls it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams
from poot_serve.engine.checking import check_request, check_texts
from poot_serve.engine.errors import Draining, NotReady
from poot_serve.engine.generation import Generation
from poot_serve.engine.life import EngineLife, EngineState, Phase
from poot_serve.engine.messages import EngineFacts, Generate
from poot_serve.engine.requests import LONGEST_RETRY
from poot_serve.engine.settings import EngineSettings
from poot_serve.engine.stats import EngineStats


class EngineClient:
    """Starts the engine, hands requests to it, starts another one where it is lost.

    `handle` is the checkpoint as far as this process needs it: tokenizer, chat template, configuration.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Opens the checkpoint's light parts. Raises what opening it raises."""
        self.settings = settings
        self.handle: ModelHandle = Models().open(settings.model)
        self._life = EngineLife(settings)
        self._requests = self._life.requests

    # What is known

    @property
    def state(self) -> EngineState:
        """Where the engine is, and why."""
        return self._life.state

    @property
    def facts(self) -> EngineFacts | None:
        """What it serves with; None before it was ready once."""
        return self._life.facts

    @property
    def stats(self) -> EngineStats:
        """Its counts after the last turn of its loop, those of engines that were lost included."""
        return self._life.stats

    @property
    def open_requests(self) -> int:
        """Requests that were handed in and have not ended."""
        return len(self._requests)

    @property
    def losses(self) -> int:
        """Engines that were lost so far."""
        return self._life.losses

    @property
    def pid(self) -> int | None:
        """The engine's process id; None where there is none."""
        return self._life.pid

    async def ready(self) -> EngineFacts:
        """Wait until it is ready. Raises NotReady with the reason where it never will be."""
        return await self._life.ready()

    async def ended(self) -> EngineState:
        """Wait until it is FAILED or CLOSED: the server has nothing more to do then."""
        return await self._life.ended()

    # Requests

    def check(self, prompt_ids: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
        """The prompt's ids, where the engine would take the request, its structure apart.

        Raises RequestError naming the field, ContextExceeded with both numbers, and NotReady before the engine's first
        READY, as only it knows how much fits.
        """
        return check_request(prompt_ids, params, self._known(), self.handle)

    async def submit(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, seconds: float | None = None
    ) -> Generation:
        """Hand in a request of `params.n` answers. When this returns, nothing of it can be refused any more.

        Raises as `check`, RequestError for a structure that cannot be compiled, Overloaded, NotReady, Draining, and
        EngineLost or DeadlineExceeded where those came first. `seconds` bound it from now on, and so do those of the
        settings.
        """
        ids = self.check(prompt_ids, params)
        self._admit()
        if params.structured_outputs is not None:
            self._requests.admit_structure(self.settings.guides.pending)
        generation = self._requests.generation(ids, params, self.handle.tokenizer, self._limit(seconds))
        self._life.send(Generate(generation.id, ids, params))
        if params.structured_outputs is not None:
            await generation.accepted()
        return generation

    async def encode(
        self, items: Sequence[tuple[Sequence[int], int]], *, seconds: float | None = None
    ) -> NDArray[np.float32]:
        """f32[items, columns] of texts as `Encoder.tokenize` gives them (ids, second). Raises as `submit`."""
        checked = check_texts(items, self._known())
        self._admit()
        return await self._requests.vectors(checked, self._limit(seconds))

    def _limit(self, seconds: float | None) -> float:
        """How long a request may take that names so many seconds, or none."""
        most = self.settings.request_seconds
        return most if seconds is None else min(seconds, most)

    def _known(self) -> EngineFacts:
        if self.facts is None:
            raise self._not_ready()
        return self.facts

    def _admit(self) -> None:
        """Raises where no request is taken now."""
        if self.state.phase is Phase.DRAINING:
            raise Draining(self.state.reason)
        if not self.state.ready:
            raise self._not_ready()
        self._requests.admit(self._known().rows + self.settings.queue)

    def _not_ready(self) -> NotReady:
        if self.state.over or self.state.phase is Phase.DRAINING:
            return NotReady(self.state.reason, None)
        # A new process takes about as long as the last one did.
        took = 5.0 if self.facts is None else self.facts.load_seconds
        return NotReady(self.state.reason, max(1, min(LONGEST_RETRY, math.ceil(took))))

    # Life

    async def start(self) -> None:
        """Start the engine's process; it loads from now on, and `state` says how that went."""
        self._life.start()

    async def drain(self, seconds: float) -> int:
        """Take no more requests, wait for those that are open, and give up those that are not done by then: how many
        that were. Idempotent: a later call may shorten the time.
        """
        self._life.drain()
        try:
            async with asyncio.timeout(seconds):
                await self._requests.none_left()
        except TimeoutError:
            return self._requests.give_up_all(lambda: Draining("the server ends, and the time to finish is over"))
        return 0

    async def close(self) -> None:
        """End the engine's process, within a few seconds; requests that are open end with Draining. Idempotent."""
        self._requests.give_up_all(lambda: Draining("the server ends"))
        await self._life.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

"""A model that a worker serves: batches, chat, streams and their asynchronous forms."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from secrets import randbits
from typing import Any, Self

from poot_executor.errors import PootError, RequestError
from poot_llm.answers import CompletionOutput, GrowingAnswer, RequestOutput
from poot_llm.batching import Ticket
from poot_llm.driver import Delivery
from poot_llm.generation import TextPiece
from poot_llm.progress import progress_bar
from poot_llm.sampling import SamplingParams
from poot_llm.served_texts import Prompt, ServedTexts, listed_prompts

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Job:
    """A prompt that was checked, with the parameters of each of its answers."""

    prompt: str | None
    ids: tuple[int, ...]
    answers: tuple[SamplingParams, ...]


class ServedModel(ServedTexts):
    """A model that a worker serves. Requests of one call, of several threads and of asynchronous callers run together.
    Close it, or use it in `with`.
    """

    # Batches

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """The answers to one prompt or several, in their order. One `params` is for all, several are one a prompt.

        `progress` shows a bar on standard error; None shows one where that is a terminal. Raises RequestError naming
        the prompt that is refused, before anything runs, and what ended the device, if anything did. A request that
        fails by itself has its failure in its output.
        """
        jobs = self._jobs(listed_prompts(prompts), params)
        return self._run(jobs, sys.stderr.isatty() if progress is None else progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        progress: bool | None = None,
        **variables: Any,
    ) -> list[RequestOutput]:
        """The answers to one conversation or several, through the checkpoint's chat template, which `variables` reach
        by name. Raises as `generate` does, and where there is no template.
        """
        return self.generate(self._conversations(messages, tools, variables), params, progress=progress)

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> RequestOutput:  # fmt: skip
        """As `generate`, for one prompt; other tasks go on meanwhile. Cancelling the task gives the request up."""
        (job,) = self._jobs([prompt], params)
        outputs = await asyncio.gather(*(self._whole(job, index) for index in range(len(job.answers))))
        return RequestOutput(job.prompt, job.ids, tuple(outputs))

    async def achat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> RequestOutput:
        """As `chat`, for one conversation."""
        (ids,) = self._conversations([messages], tools, variables)
        return await self.agenerate(ids, params)

    # Streams

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[TextPiece]:
        """One answer piece by piece; joined, the texts are the whole answer's. Closing the iterator gives the request
        up. Raises as `generate` does, and what fails the request.
        """
        job = self._single(prompt, params)
        return self._pieces(job)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> Iterator[TextPiece]:
        """As `stream`, for a conversation."""
        (ids,) = self._conversations([messages], tools, variables)
        return self.stream(ids, params)

    async def astream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[TextPiece]:
        """As `stream`, for asynchronous callers."""
        job = self._single(prompt, params)
        answer = GrowingAnswer(self.driver.handle.tokenizer, job.answers[0])
        async for delivery in self._deliveries(job, 0):
            for piece in answer.take(delivery):
                yield piece
                if piece.finish_reason is not None:
                    return
            if delivery.failure is not None:
                raise delivery.failure

    # Life

    def close(self) -> None:
        """Give up what is running, and the device; idempotent."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # How

    def _jobs(self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None) -> list[_Job]:
        """Every prompt checked. Raises RequestError naming the first that is refused."""
        if params is None or isinstance(params, SamplingParams):
            each: Sequence[SamplingParams] = [SamplingParams() if params is None else params] * len(prompts)
        else:
            each = params
        if len(each) != len(prompts):
            raise RequestError(f"params: {len(each)} of them for {len(prompts)} prompts")
        jobs = []
        tokenizer = self.driver.handle.tokenizer
        for place, (prompt, one) in enumerate(zip(prompts, each, strict=True)):
            try:
                text = prompt if isinstance(prompt, str) else None
                ids = (
                    tokenizer.encode(prompt, add_special=True, parse_special=False)
                    if isinstance(prompt, str)
                    else prompt
                )
                checked = self.driver.check(ids, one)
            except RequestError as error:
                raise RequestError(f"prompts[{place}]: {error}") from None
            seed = randbits(64) if one.seed is None else one.seed
            answers = tuple(replace(one, n=1, seed=(seed + i) % (1 << 64)) for i in range(one.n))
            jobs.append(_Job(text, checked, answers))
        return jobs

    def _single(self, prompt: Prompt, params: SamplingParams | None) -> _Job:
        (job,) = self._jobs([prompt], params)
        if len(job.answers) != 1:
            raise RequestError(f"n is {len(job.answers)}: a stream has one answer")
        return job

    def _conversations(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
    ) -> list[list[int]]:
        handle = self.driver.handle
        several: Any = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        return [handle.template.encode(one, handle.tokenizer, tools=tools, **variables) for one in several]

    def _run(self, jobs: Sequence[_Job], progress: bool) -> list[RequestOutput]:
        """Hand everything in at once and read until all is there."""
        arrived: SimpleQueue[tuple[tuple[int, int], Delivery | PootError]] = SimpleQueue()
        tickets: dict[tuple[int, int], Ticket] = {}
        answers: dict[tuple[int, int], GrowingAnswer] = {}
        done: dict[tuple[int, int], CompletionOutput] = {}
        try:
            for place, job in enumerate(jobs):
                for index, params in enumerate(job.answers):
                    key = place, index
                    answers[key] = GrowingAnswer(self.driver.handle.tokenizer, params)
                    tickets[key] = self._worker.submit(job.ids, params, lambda item, key=key: arrived.put((key, item)))
            with progress_bar(len(answers), progress) as advance:
                while len(done) < len(answers):
                    key, item = arrived.get()
                    if key in done:
                        continue
                    if isinstance(item, PootError):
                        raise item
                    reason = item.finish_reason
                    for piece in answers[key].take(item):
                        reason = piece.finish_reason or reason
                    if reason is not None:
                        done[key] = answers[key].done(key[1], reason, item.failure)
                        if item.finish_reason is None:
                            self._worker.cancel(tickets[key])
                        advance()
        finally:
            for key, ticket in tickets.items():
                if key not in done:
                    self._worker.cancel(ticket)
        return [
            RequestOutput(job.prompt, job.ids, tuple(done[place, index] for index in range(len(job.answers))))
            for place, job in enumerate(jobs)
        ]

    def _pieces(self, job: _Job) -> Iterator[TextPiece]:
        arrived: SimpleQueue[Delivery | PootError] = SimpleQueue()
        answer = GrowingAnswer(self.driver.handle.tokenizer, job.answers[0])
        ticket = self._worker.submit(job.ids, job.answers[0], arrived.put)
        try:
            while True:
                item = arrived.get()
                if isinstance(item, PootError):
                    raise item
                for piece in answer.take(item):
                    yield piece
                    if piece.finish_reason is not None:
                        return
                if item.failure is not None:
                    raise item.failure
        finally:
            self._worker.cancel(ticket)

    async def _deliveries(self, job: _Job, index: int) -> AsyncIterator[Delivery]:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Delivery | PootError] = asyncio.Queue()

        def deliver(item: Delivery | PootError) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        ticket = self._worker.submit(job.ids, job.answers[index], deliver)
        try:
            while True:
                item = await arrived.get()
                if isinstance(item, PootError):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            self._worker.cancel(ticket)

    async def _whole(self, job: _Job, index: int) -> CompletionOutput:
        answer = GrowingAnswer(self.driver.handle.tokenizer, job.answers[index])
        deliveries = self._deliveries(job, index)
        try:
            async for delivery in deliveries:
                reason = delivery.finish_reason
                for piece in answer.take(delivery):
                    reason = piece.finish_reason or reason
                if reason is not None:
                    return answer.done(index, reason, delivery.failure)
        finally:
            await deliveries.aclose()  # type: ignore[attr-defined]
        raise AssertionError("an answer ends with a reason")

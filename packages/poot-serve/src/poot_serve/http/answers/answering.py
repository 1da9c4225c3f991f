"""From a checked request to its answer: handing in, reading pieces, and an end that is counted whatever happens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import Request, Response

from poot_executor.errors import PootError
from poot_llm.sampling import SamplingParams
from poot_serve.engine.generation import Generation, Piece
from poot_serve.http.attend import ClientLeft, attended
from poot_serve.http.errors import ApiError, from_poot
from poot_serve.http.json_response import JsonResponse
from poot_serve.http.metrics import Outcome, Record
from poot_serve.http.service import Service
from poot_serve.http.sse import EventStream, frame

_LOG = logging.getLogger("poot_serve")
Job = tuple[Sequence[int], SamplingParams]
"""A prompt with the parameters of its answers."""
LEFT = 499
"""The status of an answer that nobody is there to read; never written."""


def counted(
    service: Service, work: Callable[[Request, Record], Awaitable[Response]], prompt_field: str
) -> Callable[[Request], Awaitable[Response]]:
    """A route whose requests are counted, and whose errors name `prompt_field` where the prompt is at fault."""

    async def route(request: Request) -> Response:
        record = service.metrics.begin()
        request.state.record = record
        try:
            return await work(request, record)
        except ClientLeft:
            record.end(Outcome.CANCELLED)
            return Response(status_code=LEFT)
        except PootError as error:
            answer = from_poot(error, prompt_field)
            record.end(Outcome.REFUSED if answer.status < 500 else Outcome.ERRORED)
            raise answer from error
        except asyncio.CancelledError:
            record.end(Outcome.CANCELLED)
            raise
        except BaseException:
            record.end(Outcome.ERRORED)
            raise

    return route


async def submit_all(service: Service, jobs: Sequence[Job], seconds: float | None) -> list[Generation]:
    """Hand in every prompt of a request, or none of them; `seconds` bound each. Raises as `EngineClient.submit`."""
    accepted: list[Generation] = []
    try:
        for ids, params in jobs:
            accepted.append(await service.client.submit(ids, params, seconds=seconds))
    except BaseException:
        cancel_all(accepted)
        raise
    return accepted


def cancel_all(generations: Sequence[Generation]) -> None:
    """Give up what is not finished."""
    for generation in generations:
        generation.cancel()


async def pieces(generations: Sequence[Generation]) -> AsyncGenerator[tuple[int, Piece], None]:
    """The pieces of all answers as they come, each with the answer's place: those of the first prompt, then others."""
    if len(generations) == 1:
        async for piece in generations[0]:
            yield piece.choice, piece
        return
    arrived: asyncio.Queue[tuple[int, Piece] | BaseException | None] = asyncio.Queue(maxsize=64)
    bases = [sum(one.params.n for one in generations[:place]) for place in range(len(generations))]

    async def read(base: int, generation: Generation) -> None:
        try:
            async for piece in generation:
                await arrived.put((base + piece.choice, piece))
        except Exception as error:  # noqa: BLE001 - raised again where the pieces are read
            await arrived.put(error)
        else:
            await arrived.put(None)

    readers = [asyncio.create_task(read(*one)) for one in zip(bases, generations, strict=True)]
    try:
        left = len(readers)
        while left:
            item = await arrived.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def whole(
    request: Request,
    service: Service,
    record: Record,
    jobs: Sequence[Job],
    answer: Callable[[list[Generation], AsyncIterator[tuple[int, Piece]]], Awaitable[Any]],
    seconds: float | None,
) -> Response:
    """The answer at once, as JSON; `seconds` bound it beside the server's own limit. Where the client leaves,
    everything is given up; raises ClientLeft then.
    """

    async def work() -> Any:
        generations = await submit_all(service, jobs, seconds)
        try:
            async with aclosing(pieces(generations)) as coming:
                return await answer(generations, coming)
        finally:
            _count(record, generations)
            cancel_all(generations)

    value = await attended(request, work())
    record.end(Outcome.COMPLETED)
    return JsonResponse(value)


async def streamed(
    request: Request,
    service: Service,
    record: Record,
    jobs: Sequence[Job],
    frames: Callable[[list[Generation], AsyncIterator[tuple[int, Piece]]], AsyncGenerator[bytes, None]],
    last: Callable[[list[Generation]], bytes],
    seconds: float | None,
    failed: Callable[[ApiError], bytes] = lambda error: frame(error.body()),
) -> Response:
    """The answer as events; `last` ends it. What fails after the first byte is the one event `failed`, and no end."""
    generations = await attended(request, submit_all(service, jobs, seconds))

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(pieces(generations)) as coming, aclosing(frames(generations, coming)) as made:
                async for data in made:
                    yield data
            _count(record, generations)
            record.end(Outcome.COMPLETED)
            yield last(generations)
        except Exception as error:  # noqa: BLE001 - whatever it is, the stream ends with it
            if not isinstance(error, PootError):
                _LOG.exception("a stream failed")
            _count(record, generations)
            record.end(Outcome.ERRORED)
            yield failed(from_poot(error))
        finally:
            _count(record, generations)
            record.end(Outcome.CANCELLED)
            cancel_all(generations)

    settings = service.settings
    return EventStream(events(), comment_seconds=settings.comment_seconds, write_seconds=settings.write_seconds)


def _count(record: Record, generations: Sequence[Generation]) -> None:
    record.prompt_tokens = sum(len(one.prompt_ids) for one in generations)
    record.completion_tokens = sum(one.generated_tokens for one in generations)
    if record.outcome is None:
        for one in generations:
            if one.queue_seconds is not None:
                record.queued(one.queue_seconds)


def usage_of(generations: Sequence[Generation]) -> dict[str, Any]:
    """Counts of tokens as an answer states them: each prompt once, and all of its answers."""
    prompt = sum(len(one.prompt_ids) for one in generations)
    completion = sum(one.generated_tokens for one in generations)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in generations)},
    }

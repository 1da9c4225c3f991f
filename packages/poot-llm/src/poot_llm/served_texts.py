"""What a worker's model gives of whole texts: embeddings, scores, rankings, and their asynchronous forms."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import RequestError
from poot_llm.batching import BatchWorker
from poot_llm.driver import Driver, Encoded, NonFiniteEmbedding
from poot_llm.encoders.ranking import Reading, ranked
from poot_llm.encoders.reading import TextReader
from poot_llm.models.pooling import Pooling

Prompt = str | Sequence[int]
"""Text, or token ids."""
Rows = NDArray[np.float32]


class ServedTexts:
    """A model that a worker serves. Texts of one call are read a few at a time, between the steps of requests that run
    beside it.
    """

    def __init__(self, worker: BatchWorker) -> None:
        self._worker = worker

    @property
    def driver(self) -> Driver:
        """What serves: its plan, capacity and model are here to be read; only the worker's thread may call it."""
        return self._worker.driver

    def embed(
        self, texts: Prompt | Sequence[Prompt], *, pooling: Pooling | None = None, truncate: bool = False
    ) -> Rows:  # fmt: skip
        """f32[texts, width]: embeddings of one text or several, or of token ids, pooled and normalized as the
        checkpoint says, or as `pooling` does; of a model that generates, those of its hidden states.

        Raises RequestError naming the text that is empty or too long (with `truncate` it is cut), before anything runs,
        Unsupported for a cross-encoder, NonFiniteEmbedding by index, and what ended the device, if anything did.
        """
        return self._encoded(self._embedded(texts, pooling, truncate), pooling)

    async def aembed(
        self, texts: Prompt | Sequence[Prompt], *, pooling: Pooling | None = None, truncate: bool = False
    ) -> Rows:  # fmt: skip
        """As `embed`; other tasks go on meanwhile. Cancelling the task gives up what was not begun."""
        return await self._aencoded(self._embedded(texts, pooling, truncate), pooling)

    def score(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> Rows:
        """f32[documents]: a cross-encoder's raw score of each with the query, or the cosine of the embeddings.

        Raises as `embed` does, and Unsupported for a classifier of several labels.
        """
        reading = self._scored(query, documents, truncate)
        return reading.scores(self._encoded(reading.items, None))

    async def ascore(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> Rows:
        """As `score`, for asynchronous callers."""
        reading = self._scored(query, documents, truncate)
        return reading.scores(await self._aencoded(reading.items, None))

    def rerank(
        self, query: str, documents: Sequence[str], top: int | None = None, *, truncate: bool = False
    ) -> list[tuple[int, float]]:
        """The `top` best documents, by default all, as (index, score), best first; ties stay in their order. Raises as
        `score` does.
        """
        return ranked(self.score(query, documents, truncate=truncate), top)

    async def arerank(
        self, query: str, documents: Sequence[str], top: int | None = None, *, truncate: bool = False
    ) -> list[tuple[int, float]]:
        """As `rerank`, for asynchronous callers."""
        return ranked(await self.ascore(query, documents, truncate=truncate), top)

    # How

    def _reader(self, truncate: bool) -> TextReader:
        return TextReader(self.driver.handle, self.driver.encode_limit, truncate)

    def _embedded(self, texts: Prompt | Sequence[Prompt], pooling: Pooling | None, truncate: bool) -> list[Encoded]:
        reader = self._reader(truncate)
        if pooling is None:
            reader.require_embeddings()
        items = []
        for place, text in enumerate(listed_prompts(texts)):
            try:
                items.append(reader.read(text) if isinstance(text, str) else Encoded.single(text))
            except RequestError as error:
                raise RequestError(f"input[{place}]: {error}") from None
        self.driver.check_encode(items)
        return items

    def _scored(self, query: str, documents: Sequence[str], truncate: bool) -> Reading:
        reading = Reading.of(self._reader(truncate), query, documents)
        self.driver.check_encode(reading.items)
        return reading

    def _encoded(self, items: Sequence[Encoded], pooling: Pooling | None) -> Rows:
        result = self._room(items, pooling)
        parts = self._parts(items, pooling)
        try:
            for places, done in parts:
                with _placed(places):
                    result[places] = done.result()
        finally:
            for _, done in parts:
                done.cancel()
        return result

    async def _aencoded(self, items: Sequence[Encoded], pooling: Pooling | None) -> Rows:
        result = self._room(items, pooling)
        parts = self._parts(items, pooling)
        try:
            for places, done in parts:
                with _placed(places):
                    result[places] = await asyncio.wrap_future(done)
        finally:
            for _, done in parts:
                done.cancel()
        return result

    def _room(self, items: Sequence[Encoded], pooling: Pooling | None) -> Rows:
        handle = self.driver.handle
        columns = handle.labels if pooling is None else None
        return np.empty((len(items), columns or handle.config.width), np.float32)

    def _parts(self, items: Sequence[Encoded], pooling: Pooling | None) -> list[tuple[list[int], Future[Rows]]]:
        """Hand the texts in, those of like length together: parts that a pass holds, each with its places."""
        order = sorted(range(len(items)), key=lambda place: -len(items[place].ids))
        rows = self.driver.options.encode_rows
        parts = [order[start : start + rows] for start in range(0, len(order), rows)]

        def encode(driver: Driver, part: list[int]) -> Rows:
            driver.prepare_encode([len(items[place].ids) for place in part], pooling)
            return driver.encode([items[place] for place in part], pooling)

        return [(part, self._worker.call(lambda driver, part=part: encode(driver, part))) for part in parts]


@contextmanager
def _placed(places: Sequence[int]) -> Iterator[None]:
    """A text that is not finite is named by its place among all."""
    try:
        yield
    except NonFiniteEmbedding as error:
        raise NonFiniteEmbedding(places[error.index]) from None


def listed_prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """One prompt as a list of it: a text, or ids."""
    if isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], str | Sequence)):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]

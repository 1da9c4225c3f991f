"""Passes over whole texts on a driver's executable: embeddings, scores of pairs, hidden states."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import BindError, PootError, RequestError
from poot_executor.executor import EntryId
from poot_llm.blocks.step import LAST, TOKEN
from poot_llm.blocks.text_pass import TextShape
from poot_llm.driver.flights import Flight
from poot_llm.driver.inputs import SlotArrays
from poot_llm.driver.loaded import LoadedModel
from poot_llm.models.pooling import Pool, Pooling
from poot_llm.models.text_graph import TEXTS, TYPES, trace_texts


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one text, or of a pair, with what goes around them; `second` is where the second text begins, their
    number where there is none.
    """

    ids: tuple[int, ...]
    second: int

    @classmethod
    def single(cls, ids: Iterable[int]) -> Encoded:
        """Of one text."""
        known = tuple(ids)
        return cls(known, len(known))


class NonFiniteEmbedding(PootError):
    """The embedding or score of the text at `index` holds NaN or infinity: the others are not returned either."""

    def __init__(self, index: int) -> None:
        super().__init__(f"what the model gives for input {index} holds NaN or infinity")
        self.index = index


@dataclass(frozen=True, slots=True)
class _Pass:
    """What an entry is for: its shape, and how texts are pooled, None for a classifier's scores."""

    shape: TextShape
    pooling: Pooling | None


class Encoding:
    """The passes of one model. `limit` is the most tokens of a text."""

    def __init__(self, model: LoadedModel, limit: int) -> None:
        self._model = model
        self._handle = model.handle
        self._options = model.options
        self._flights = model.flights
        self.limit = limit
        self._entries: dict[_Pass, EntryId] = {}
        self.seconds = 0.0
        """Wall time spent on compiling and adding."""

    @property
    def shapes(self) -> tuple[TextShape, ...]:
        """Every shape that a pass may have: rows in powers of 4 up to their most, tokens in powers of 2 from 16 on, and
        of many rows no more tokens than `encode_tokens` in all.
        """
        most = self._options.encode_rows
        rows = [*(n for n in (1, 4, 16, 64, 256) if n < most), most]
        tokens = [*(n for n in (16 << i for i in range(27)) if n < self.limit), self.limit]
        return tuple(TextShape(r, t) for r in rows for t in tokens if r == 1 or r * t <= self._options.encode_tokens)

    def prepare(self, lengths: Iterable[int] | None, pooling: Pooling | None) -> None:
        """Compile the passes that texts of these lengths take together, None for all. See `Driver.prepare_encode`."""
        pooling = self._pooling(pooling)
        wanted = self.shapes
        if lengths is not None:
            counts = list(lengths)
            for place, count in enumerate(counts):
                self._check_length(place, count)
            wanted = tuple(dict.fromkeys(shape for shape, _ in _passes(counts, self.shapes)))
        missing = [shape for shape in wanted if _Pass(shape, pooling) not in self._entries]
        if not missing:
            return
        started = perf_counter()
        try:
            for shape in sorted(missing, key=lambda s: (s.rows * s.tokens, s), reverse=True):
                self._add(_Pass(shape, pooling))
        finally:
            self.seconds += perf_counter() - started

    def encode(self, items: Items[Encoded], pooling: Pooling | None) -> NDArray[np.float32]:
        """See `Driver.encode`."""
        pooling = self._pooling(pooling)
        if pooling is not None and pooling.pool is Pool.TOKENS:
            raise RequestError("pooling is tokens: hidden_states gives a row a token")
        columns = self._handle.labels if pooling is None else None
        result = np.empty((len(items), columns or self._handle.config.width), np.float32)
        for places, rows in self._run(items, pooling):
            result[places] = rows[: len(places)]
        wrong = np.flatnonzero(~np.isfinite(result).all(axis=1))
        if wrong.size:
            raise NonFiniteEmbedding(int(wrong[0]))
        return result

    def hidden_states(self, items: Items[Encoded]) -> list[NDArray[np.float32]]:
        """See `Driver.hidden_states`."""
        found: dict[int, NDArray[np.float32]] = {}
        for places, rows in self._run(items, Pooling(Pool.TOKENS)):
            for place, row in zip(places, rows, strict=False):
                found[place] = row[: len(items[place].ids)].copy()
        return [found[place] for place in range(len(items))]

    def _pooling(self, pooling: Pooling | None) -> Pooling | None:
        """What a pass is compiled for: the limit is not part of it."""
        if pooling is None and self._handle.scores_pairs:
            return None
        return replace(self._handle.pooling if pooling is None else pooling, limit=None)

    # Checks

    def check(self, items: Iterable[Encoded]) -> None:
        """See `Driver.check_encode`."""
        for place, item in enumerate(items):
            self._check(place, item)

    def _check(self, place: int, item: Encoded) -> None:
        self._check_length(place, len(item.ids))
        vocabulary = self._handle.config.vocabulary
        for token in item.ids:
            if not 0 <= token < vocabulary:
                raise RequestError(f"input[{place}] holds {token}: token ids are 0 to {vocabulary - 1}")
        if item.second < len(item.ids) and self._handle.family.token_types is None:
            raise RequestError(f"input[{place}] is a pair of texts: {self._handle.name} reads single ones")

    def _check_length(self, place: int, count: int) -> None:
        if not 1 <= count <= self.limit:
            raise RequestError(f"input[{place}] has {count} tokens: 1 to {self.limit}")

    # Passes

    def _run(
        self, items: Items[Encoded], pooling: Pooling | None
    ) -> Iterator[tuple[list[int], NDArray[np.float32]]]:  # fmt: skip
        """The outputs of the passes that hold all items, with the places of these; one pass is under way while the one
        before is read.
        """
        self.check(items)
        prepared = [key.shape for key in self._entries if key.pooling == pooling]
        passes = _passes([len(item.ids) for item in items], prepared)
        self._flights.drain()
        under_way: deque[tuple[Flight, list[int]]] = deque()
        for shape, places in passes:
            inputs = self._inputs(shape, [items[place] for place in places])
            entry, lanes = self._entries[_Pass(shape, pooling)], 2 if self._options.ahead else 1
            under_way.append((self._flights.submit(entry, inputs, lanes), places))
            if len(under_way) > 1:
                yield self._finished(*under_way.popleft())
        while under_way:
            yield self._finished(*under_way.popleft())

    def _finished(self, flight: Flight, places: list[int]) -> tuple[list[int], NDArray[np.float32]]:
        self._flights.finish(flight)
        if flight.error is not None:
            raise flight.error
        assert flight.outputs is not None
        return places, flight.outputs[TEXTS]

    def _inputs(self, shape: TextShape, items: Items[Encoded]) -> SlotArrays:
        tokens = np.zeros((shape.rows, shape.tokens), np.int32)
        types = np.zeros((shape.rows, shape.tokens), np.int32)
        last = np.full(shape.rows, -1, np.int32)
        for row, item in enumerate(items):
            count = len(item.ids)
            tokens[row, :count] = item.ids
            types[row, item.second : count] = 1
            last[row] = count - 1
        inputs: dict[Any, NDArray[Any]] = {TOKEN: tokens, LAST: last}
        return inputs if self._handle.family.token_types is None else inputs | {TYPES: types}

    def _add(self, key: _Pass) -> None:
        options, handle = self._options, self._handle
        graph = trace_texts(
            handle.family, handle.config, key.shape, handle.weights, key.pooling, options.activations
        )  # fmt: skip
        self._entries[key] = self._model.add(graph, ahead=options.ahead)


def _passes(lengths: Items[int], shapes: Iterable[TextShape]) -> list[tuple[TextShape, list[int]]]:
    """Texts of these lengths cut into passes of the given shapes, the longest first: each with the places of its texts.
    Texts of like length share one. Raises BindError where no shape holds one.
    """
    known = sorted(shapes)
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    passes = []
    while order:
        fits = [shape for shape in known if shape.tokens >= lengths[order[0]]]
        if not fits:
            raise BindError(f"no pass over {lengths[order[0]]} tokens is prepared: call prepare_encode before")
        least = min(shape.tokens for shape in fits)
        count = min(len(order), max(shape.rows for shape in fits if shape.tokens == least))
        shape = min((s for s in fits if s.rows >= count), key=lambda s: (s.rows * s.tokens, s))
        passes.append((shape, order[:count]))
        order = order[count:]
    return passes

"""Scores of documents for a query, by a cross-encoder or by the cosine of two embeddings, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import RequestError, Unsupported
from poot_llm.driver import Encoded
from poot_llm.encoders.reading import TextReader


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model must encode to score documents: the `pairs` of a cross-encoder, or the query and each document."""

    items: tuple[Encoded, ...]
    pairs: bool

    @classmethod
    def of(cls, reader: TextReader, query: str, documents: Sequence[str]) -> Reading:
        """Raises RequestError for texts that are too long, and Unsupported for a classifier of several labels."""
        handle = reader.handle
        if not isinstance(query, str):
            raise RequestError(f"query is {query!r}: a text")
        if not handle.scores_pairs:
            return cls((*reader.texts([query], "query"), *reader.texts(documents, "documents")), pairs=False)
        if handle.labels != 1:
            raise Unsupported(f"scores of {handle.name}", f"it gives {handle.labels} labels and no score")
        return cls(tuple(reader.pairs(query, documents)), pairs=True)

    def scores(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """f32[documents] of what the model gave for the items: a cross-encoder's raw scores, or cosines."""
        if self.pairs:
            return rows[:, 0]
        exact = rows.astype(np.float64)
        exact /= np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-12)
        return (exact[1:] @ exact[0]).astype(np.float32)


def ranked(found: NDArray[np.float32], top: int | None) -> list[tuple[int, float]]:
    """The `top` best places, by default all, with their scores, best first; ties stay in their order.

    Raises RequestError for a `top` below 1.
    """
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise RequestError(f"top is {top!r}: a whole number from 1 up")
    order = np.argsort(-found, kind="stable")[: len(found) if top is None else top]
    return [(int(place), float(found[place])) for place in order]

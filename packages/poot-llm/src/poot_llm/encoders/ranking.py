"""Scores of documents for a query, by a cross-encoder or by the cosine of two embeddings, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import RequestError, Unsupported
from poot_llm.driver import Encoded
from poot_llm.encoders.reading import TextReader

Encode = Callable[[Sequence[Encoded]], NDArray[np.float32]]
"""What a model gives of texts, as `Driver.encode` does."""


def embeddings(reader: TextReader, encode: Encode, texts: Sequence[str]) -> NDArray[np.float32]:
    """f32[texts, width], pooled and normalized as the checkpoint says.

    Raises RequestError for a text that is too long, and Unsupported for a cross-encoder.
    """
    if reader.handle.scores_pairs:
        raise Unsupported(f"embeddings of {reader.handle.name}", "it is a cross-encoder: it scores pairs of texts")
    return encode(reader.texts(texts))


def scores(reader: TextReader, encode: Encode, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
    """f32[documents]: a cross-encoder's raw score of each pair, or the cosine of two embeddings.

    Raises RequestError for texts that are too long, and Unsupported for a classifier of several labels.
    """
    handle = reader.handle
    if not isinstance(query, str):
        raise RequestError(f"query is {query!r}: a text")
    if not handle.scores_pairs:
        read = [*reader.texts([query], "query"), *reader.texts(documents, "documents")]
        rows = encode(read).astype(np.float64)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return (rows[1:] @ rows[0]).astype(np.float32)
    if handle.labels != 1:
        raise Unsupported(f"scores of {handle.name}", f"it gives {handle.labels} labels and no score")
    return encode(reader.pairs(query, documents))[:, 0]


def ranked(found: NDArray[np.float32], top: int | None) -> list[tuple[int, float]]:
    """The `top` best places, by default all, with their scores, best first; ties stay in their order.

    Raises RequestError for a `top` below 1.
    """
    if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
        raise RequestError(f"top is {top!r}: a whole number from 1 up")
    order = np.argsort(-found, kind="stable")[: len(found) if top is None else top]
    return [(int(place), float(found[place])) for place in order]

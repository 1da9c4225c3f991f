"""Natural logarithms of a row's probabilities, of its raw logits: what a step outputs, and how a host reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from poot_executor.dtype import I32
from poot_executor.graph import primitives as p
from poot_executor.graph.traced import Traced
from poot_llm.sampling.keys import MOST_LOGPROBS


class TokenLogprobs(NamedTuple):
    """A chosen token's logprob, and the most likely ids with theirs, descending."""

    logprob: float
    top: tuple[tuple[int, float], ...]


class LogprobTable:
    """Those of a step with the suffix FULL, read from its outputs when a row is first asked for."""

    __slots__ = ("_chosen", "_ids", "_logprobs", "_outputs")

    def __init__(self, outputs: Mapping[str, NDArray[Any]]) -> None:
        self._outputs = outputs
        self._chosen: list[float] | None = None

    def row(self, row: int, count: int) -> TokenLogprobs:
        """A row's, with the `count` most likely ids."""
        if self._chosen is None:
            self._chosen = self._outputs["logprob"].tolist()
            self._ids, self._logprobs = self._outputs["top_ids"].tolist(), self._outputs["top_logprobs"].tolist()
        return TokenLogprobs(self._chosen[row], tuple(zip(self._ids[row][:count], self._logprobs[row], strict=False)))


def output_logprobs(logits: Traced, token: Traced) -> None:
    """Name the outputs `logprob` f32[rows] of token i32[rows], `top_ids` i32[rows, k] and `top_logprobs` f32[rows, k],
    of logits f32[rows, vocabulary]; k is 20, or the vocabulary where that is smaller. Ties go to the lowest id.
    """
    builder = logits.builder
    rows, vocabulary = logits.shape
    count = min(MOST_LOGPROBS, vocabulary)
    most = p.reshape(p.reduce_max(logits, 1), (rows, 1))
    total = p.reshape(p.log(p.sum_(p.exp(logits - most), 1)), (rows, 1))
    flat = p.reshape(logits, (rows * vocabulary,))
    top = p.arg_top_k(logits, count)
    base = p.iota(builder, (rows, count), 0, I32) * vocabulary
    values = p.gather(flat, base + top)
    chosen = p.gather(flat, p.iota(builder, (rows,), 0, I32) * vocabulary + token)
    builder.output("logprob", p.reshape(p.reshape(chosen, (rows, 1)) - most - total, (rows,)))
    builder.output("top_ids", top)
    builder.output("top_logprobs", values - most - total)

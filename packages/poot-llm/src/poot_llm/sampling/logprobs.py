"""Natural logarithms of a row's probabilities, of its raw logits: what a step outputs, and how a host reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from poot_executor.dtype import I32
from poot_executor.graph import primitives as p
from poot_executor.graph.traced import Traced
from poot_llm.sampling.keys import MOST_LOGPROBS


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A chosen token's logprob, and the most likely ids with theirs, descending."""

    logprob: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def read(cls, outputs: Mapping[str, NDArray[Any]], row: int, count: int) -> TokenLogprobs:
        """Those of a row of a step with the suffix FULL, with the `count` most likely ids."""
        ids = outputs["top_ids"][row, :count].tolist()
        logprobs = outputs["top_logprobs"][row, :count].tolist()
        return cls(float(outputs["logprob"][row]), tuple(zip(ids, logprobs, strict=True)))


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

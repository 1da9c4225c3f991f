"""Natural logarithms of a row's probabilities, of its raw logits: what a step outputs, and how a host reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import I32
from poot_executor.graph import primitives as p
from poot_executor.graph.traced import Traced
from poot_llm.sampling.keys import MOST_LOGPROBS


@dataclass(frozen=True, slots=True, eq=False)
class StepLogprobs:
    """Those of n rows of a step: of the chosen tokens f32[n], and the k most likely ids i32[n, k] with theirs
    f32[n, k], descending.
    """

    chosen: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top: NDArray[np.float32]


class TokenLogprobs:
    """A chosen token's logprob, and the most likely ids with theirs. They stay in the arrays of their step, which cross
    a process as such, until they are asked for.
    """

    __slots__ = ("_count", "_row", "_step")

    def __init__(self, step: StepLogprobs, row: int, count: int) -> None:
        self._step = step
        self._row = row
        self._count = count

    @property
    def logprob(self) -> float:
        """The chosen token's."""
        return float(self._step.chosen[self._row])

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """Ids with their logprobs, descending."""
        ids, values = self._step.top_ids[self._row, : self._count], self._step.top[self._row, : self._count]
        return tuple(zip(ids.tolist(), values.tolist(), strict=True))

    def __reduce__(self) -> tuple[type[TokenLogprobs], tuple[StepLogprobs, int, int]]:
        return TokenLogprobs, (self._step, self._row, self._count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenLogprobs) and (self.logprob, self.top) == (other.logprob, other.top)

    def __hash__(self) -> int:
        return hash((self.logprob, self.top))

    def __repr__(self) -> str:
        return f"TokenLogprobs(logprob={self.logprob}, top={self.top})"


def read_logprobs(outputs: Mapping[str, NDArray[Any]], wanted: Mapping[int, int]) -> dict[int, TokenLogprobs]:
    """Those of some rows of a step with the suffix FULL, each with as many most likely ids as it wants, or all that
    there are.
    """
    rows, most = list(wanted), max(wanted.values())
    step = StepLogprobs(outputs["logprob"][rows], outputs["top_ids"][rows, :most], outputs["top_logprobs"][rows, :most])
    return {row: TokenLogprobs(step, place, count) for place, (row, count) in enumerate(wanted.items())}


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

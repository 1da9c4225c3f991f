"""A sequence: one prompt with its answer so far, in a row of the KV states."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum

from poot_executor.errors import PootError
from poot_llm.sampling import SamplingParams


class FinishReason(Enum):
    """Why an answer ended: a stop token or stop string; max_tokens or a full row; a failure."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


class NonFiniteLogits(PootError):
    """The model's logits held NaN or +inf: this request failed, others go on."""

    def __init__(self, position: int) -> None:
        super().__init__(
            f"the logits after position {position} hold NaN or infinity: the checkpoint is damaged, "
            "or its numbers leave the range of the activations' dtype (try activations f32)"
        )
        self.position = position


@dataclass(slots=True)
class Timings:
    """Tokens and seconds of a request, in prefill and in decoding. The token that ends a prefill is
    counted with it; seconds are wall time inside the driver.
    """

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """An open request. The driver alone changes it.

    `tokens` are the committed ids of the answer. The first `cached` ids of prompt and answer have
    their K and V in the row. `finish_reason` is None while it can go on; `failure` says what ended
    it where that was an error.
    """

    row: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    limit: int
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    finish_reason: FinishReason | None = None
    failure: PootError | None = None
    released: bool = False
    timings: Timings = field(default_factory=Timings)

    def __len__(self) -> int:
        """Ids of prompt and answer."""
        return len(self.prompt_ids) + len(self.tokens)

    @property
    def pending(self) -> int:
        """Ids whose K and V are still to be computed."""
        return len(self) - self.cached

    def count(self, ids: int, seconds: float) -> None:
        """Count a step that cached this many ids."""
        timings = self.timings
        if self.tokens:
            timings.decode_tokens += ids
            timings.decode_seconds += seconds
        else:
            timings.prefill_tokens += ids
            timings.prefill_seconds += seconds

    def next_ids(self, count: int) -> Items[int]:
        """Up to `count` ids from the first that is not cached."""
        known = len(self.prompt_ids)
        if self.cached >= known:
            return self.tokens[self.cached - known : self.cached - known + count]
        ids = self.prompt_ids[self.cached : self.cached + count]
        return [*ids, *self.tokens[: count - len(ids)]]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave a sequence: a token once all of its ids are cached, else None. It is not part
    of the answer until it is committed. `failure` is what ended the sequence instead.
    """

    sequence: Sequence
    token: int | None
    failure: PootError | None = None

"""A sequence: one prompt with its answer so far, and where its K and V are."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import PootError
from poot_llm.driver.kv import Lease
from poot_llm.sampling import History, SamplerRow, SamplingParams, Suffix, TokenLogprobs

if TYPE_CHECKING:
    from poot_llm.driver.inputs import InputRows
    from poot_llm.driver.runs import Run


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


class NoRoom(PootError):
    """The blocks of paged KV are used up: preempt or release a sequence, or open the driver with a larger pool."""

    def __init__(self, lacking: int, blocks: int) -> None:
        super().__init__(
            f"{lacking} sequences find no free block among the pool's {blocks}: preempt or release others, "
            "or give the driver more pool_blocks"
        )
        self.lacking = lacking
        self.blocks = blocks


class Guide(Protocol):
    """What the rest of an answer may be. The driver asks for a mask before each token, and says which one came."""

    def mask(self) -> NDArray[np.uint32]:
        """u32[ceil(vocabulary / 32)]: a bit for each id that may come next, at least one. A RequestError ends the
        request.
        """
        ...

    def accept(self, token: int) -> None:
        """The token is committed. A RequestError ends the request."""
        ...


@runtime_checkable
class ForcingGuide(Guide, Protocol):
    """A guide that knows what must come."""

    def forced_after(self, token: int) -> tuple[int, ...]:
        """The ids that must come after a token that may come next: each the only one that is legal in its place."""
        ...


@dataclass(slots=True)
class Timings:
    """Tokens and seconds of a request, in prefill and in decoding. The token that ends a prefill is
    counted with it; seconds are wall time inside the driver. `kept_tokens` of the prompt were found computed;
    `guessed_tokens` were checked in windows, and `accepted_tokens` of them were right. `forced_tokens` were the only
    ones that a guide allowed, and were not waited for.
    """

    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    kept_tokens: int = 0
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """An open request. The driver alone changes it.

    `tokens` are the committed ids of the answer. The first `cached` ids of prompt and answer have
    their K and V on the device; `drawn` are tokens that a step gave and nobody committed yet. `finish_reason` is None
    while it can go on; `failure` says what ended it where that was an error. Where it was preempted, `lease` is None.
    With `reserve` its lease has room for the whole answer. `length` is that of prompt and answer: the sequence's `len`,
    for those who ask often.
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    limit: int
    lease: Lease | None = None
    inputs: Mapping[str, InputRows] = field(default_factory=dict)
    guide: Guide | None = None
    history: History | None = None
    reserve: bool = True
    tokens: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    cached: int = 0
    finish_reason: FinishReason | None = None
    failure: PootError | None = None
    released: bool = False
    ahead: Run | None = None
    suffix: Suffix = field(init=False)
    forcing: ForcingGuide | None = field(init=False)
    length: int = field(init=False)
    timings: Timings = field(default_factory=Timings)
    _rows: tuple[SamplerRow, SamplerRow] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.suffix = self.params.suffix
        # The logprobs of a token that was not waited for are not known.
        forcing = self.params.logprobs is None and isinstance(self.guide, ForcingGuide)
        self.forcing = self.guide if forcing and isinstance(self.guide, ForcingGuide) else None
        self.length = len(self.prompt_ids) + len(self.tokens)
        if self.guide is None and not self.params.min_tokens:
            # Every token is chosen by the same: of these rows the slots know that nothing changed.
            now, ahead = (SamplerRow(self.seed, self.params, self.history, late) for late in (False, True))
            self._rows = now, ahead

    def __len__(self) -> int:
        """Ids of prompt and answer."""
        return self.length

    @property
    def row(self) -> int | None:
        """Its row among those of open sequences; None while it is preempted."""
        return None if self.lease is None else self.lease.row

    @property
    def name(self) -> str:
        """What messages call it."""
        return "a preempted sequence" if self.lease is None else f"the sequence of row {self.lease.row}"

    @property
    def pending(self) -> int:
        """Ids whose K and V are still to be computed."""
        return self.length - self.cached

    def count(self, ids: int, seconds: float) -> None:
        """Count a step that cached this many ids."""
        timings = self.timings
        if self.tokens:
            timings.decode_tokens += ids
            timings.decode_seconds += seconds
        else:
            timings.prefill_tokens += ids
            timings.prefill_seconds += seconds

    def ids(self, start: int, stop: int) -> Items[int]:
        """The ids of prompt and answer from one place to before another, as far as there are any."""
        known = len(self.prompt_ids)
        if start >= known:
            return self.tokens[start - known : stop - known]
        if stop <= known:
            return self.prompt_ids[start:stop]
        return [*self.prompt_ids[start:], *self.tokens[: stop - known]]

    def at(self, place: int) -> int:
        """The id in one place of prompt and answer."""
        known = len(self.prompt_ids)
        return self.prompt_ids[place] if place < known else self.tokens[place - known]

    @property
    def steady(self) -> bool:
        """Whether every token is chosen by the same, but for the history."""
        return self._rows is not None

    def sampler_row(self, ahead: bool = False) -> SamplerRow:
        """What its next token is chosen by; `ahead`: the one after the token that a step under way will give."""
        if self._rows is not None:
            return self._rows[ahead]
        params = self.params
        mask = None if self.guide is None else self.guide.mask()
        banned = params.banned(len(self.tokens) + ahead, self.stop_ids) if params.min_tokens else ()
        return SamplerRow(self.seed, params, self.history, ahead, mask, banned)

    def accept(self, token: int) -> FinishReason | None:
        """Make a token part of the answer; why that ends it, if it does. Where it is not the one that was drawn, what
        was computed after it is not counted any more. Raises what the guide raises, and changes nothing then.
        """
        if self.guide is not None:
            self.guide.accept(token)
        if self.drawn and self.drawn[0] == token:
            del self.drawn[0]
        else:
            self.drawn.clear()
            self.cached = min(self.cached, self.length)
        self.tokens.append(token)
        self.length += 1
        if self.history is not None:
            self.history.add(token)
        if token in self.stop_ids:
            self.finish_reason = FinishReason.STOP
        elif len(self.tokens) >= self.limit:
            self.finish_reason = FinishReason.LENGTH
        return self.finish_reason

    def repeat(self) -> None:
        """Tokens that were given and not committed are computed again, from the last id before them."""
        self.drawn.clear()
        self.cached = min(self.cached, self.length - 1)


@dataclass(slots=True, eq=False)  # not frozen, which takes longer to make: there is one a row and step
class StepResult:
    """What a step gave a sequence: a token once all of its ids are cached, else None. It is not part of the answer
    until it is committed. `more` are to be committed after it: tokens that were guessed and turned out right, with the
    one that follows them, or those that its guide forces. `failure` is what ended the sequence instead. `logprobs` are
    those of each token, where the request wants them.
    """

    sequence: Sequence
    token: int | None
    failure: PootError | None = None
    more: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def given(self) -> tuple[int, ...]:
        """All tokens, in order."""
        return () if self.token is None else (self.token, *self.more)

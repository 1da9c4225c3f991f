"""An answer as text: tokens detokenized as they come, stop strings held back and never shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from poot_llm.detokenizer import Detokenizer
from poot_llm.driver import Driver, FinishReason, Timings
from poot_llm.sampling import SamplingParams
from poot_llm.tokenizer import Tokenizer


class StopStrings:
    """Watches a text for strings that end it. What could still become one of them is held back.

    The text ends where the first stop string is complete, wherever the text was cut into pieces; of
    two that are complete at one character, the longer counts.
    """

    __slots__ = ("_held", "_stops", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that was found."""

    def push(self, text: str) -> str:
        """What can be shown now. Nothing more comes once `found` is set."""
        if self.found is not None:
            return ""
        whole = self._held + text
        ends = [(place + len(stop), place, stop) for stop in self._stops if (place := whole.find(stop)) >= 0]
        if ends:
            _, place, self.found = min(ends)
            self._held = ""
            return whole[:place]
        kept = self._longest_beginning(whole)
        self._held = whole[len(whole) - kept :]
        return whole[: len(whole) - kept]

    def finish(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _longest_beginning(self, text: str) -> int:
        """Characters at the end of a text that a stop string begins with."""
        longest = max(map(len, self._stops), default=1) - 1
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return count
        return 0


@dataclass(frozen=True, slots=True)
class TextPiece:
    """What one token adds to the text: often less than its own characters, or more. `finish_reason`
    is set on the last piece.
    """

    token: int
    text: str
    finish_reason: FinishReason | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. A token that ended it is in `tokens` and not in `text`."""

    prompt_ids: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    seed: int
    timings: Timings


class AnswerText:
    """The text of one answer as its tokens come: control tokens left out or in, stop strings held back."""

    __slots__ = ("_detokenizer", "_stops")

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._stops = StopStrings(params.stop)
        self._detokenizer = Detokenizer(tokenizer, skip_special=params.skip_special_tokens, continues=True)

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    def push(self, token: int, reason: FinishReason | None) -> str:
        """What a token adds, and all that was held back where it is the last one. A token that ended the answer has no
        text.
        """
        text = ""
        if reason is not FinishReason.STOP:
            text = self._stops.push(self._detokenizer.push(token))
        return text if reason is None else text + self.finish()

    def finish(self) -> str:
        """What was held back, once no more tokens come."""
        return self._stops.push(self._detokenizer.finish()) + self._stops.finish()


class TextStream(Iterator[TextPiece]):
    """The pieces of one answer. Joined, their texts are the answer's. Close it, or use it in `with`,
    where it may not be read to its end.
    """

    __slots__ = ("_answer", "_tokens")

    def __init__(self, driver: Driver, prompt_ids: Sequence[int], params: SamplingParams | None = None) -> None:
        """Raises RequestError as `Driver.generate` does."""
        self._answer = AnswerText(driver.handle.tokenizer, SamplingParams() if params is None else params)
        self._tokens = driver.generate(prompt_ids, params)

    def __next__(self) -> TextPiece:
        item = next(self._tokens)
        reason = item.finish_reason
        text = self._answer.push(item.token, reason)
        if self._answer.stopped is not None:
            reason = FinishReason.STOP
            self._tokens.stop()
        return TextPiece(item.token, text, reason)

    def complete(self) -> Completion:
        """Read to the end. Raises what fails the request."""
        text = "".join(piece.text for piece in self)
        sequence = self._tokens.sequence
        reason = FinishReason.STOP if self._answer.stopped is not None else sequence.finish_reason
        assert reason is not None
        return Completion(
            sequence.prompt_ids,
            tuple(sequence.tokens),
            text,
            reason,
            sequence.seed,
            sequence.timings,
        )

    @property
    def timings(self) -> Timings:
        """So far."""
        return self._tokens.sequence.timings

    @property
    def tokens(self) -> tuple[int, ...]:
        """The ids of the answer so far."""
        return tuple(self._tokens.sequence.tokens)

    @property
    def seed(self) -> int:
        """What the answer is drawn with: the request's, or one that was drawn for it."""
        return self._tokens.sequence.seed

    def close(self) -> None:
        """Stop generating and release the row; idempotent."""
        self._tokens.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def complete(driver: Driver, prompt_ids: Sequence[int], params: SamplingParams | None = None) -> Completion:
    """The whole answer to a prompt. Raises RequestError as `Driver.generate` does, and what fails the
    request.
    """
    with TextStream(driver, prompt_ids, params) as stream:
        return stream.complete()

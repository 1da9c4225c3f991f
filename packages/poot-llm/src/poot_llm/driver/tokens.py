"""The tokens of one answer as an iterator, with the next step under way while one is looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from poot_llm.driver.sequence import FinishReason, Sequence
from poot_llm.sampling import TokenLogprobs

if TYPE_CHECKING:
    from poot_llm.driver.driver import Driver


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """A committed token; `finish_reason` where it is the last one, `logprobs` where the request wants them."""

    token: int
    finish_reason: FinishReason | None
    logprobs: TokenLogprobs | None = None


class TokenStream(Iterator[GeneratedToken]):
    """Drives one sequence to its end and releases its room, also where it fails or is closed early.

    `next` raises what failed the request: NonFiniteLogits, or the error of the step.
    """

    __slots__ = ("_driver", "_given", "sequence")

    def __init__(self, driver: Driver, sequence: Sequence) -> None:
        self._driver = driver
        self._given: deque[tuple[int, TokenLogprobs | None]] = deque()
        self.sequence = sequence

    def __next__(self) -> GeneratedToken:
        if self.sequence.released or self.sequence.finish_reason is not None:
            self.close()
            raise StopIteration
        while not self._given:
            (result,) = self._driver.step([self.sequence])
            if result.failure is not None:
                self.close()
                raise result.failure
            logprobs = result.logprobs or (None,) * len(result.given)
            self._given.extend(zip(result.given, logprobs, strict=True))
        token, of_token = self._given.popleft()
        reason = self._driver.commit(self.sequence, token)
        if reason is not None:
            self.close()
        return GeneratedToken(token, reason, of_token)

    def stop(self) -> None:
        """End the answer here, for the reason STOP."""
        self._driver.finish(self.sequence, FinishReason.STOP)
        self.close()

    def close(self) -> None:
        """Release the room; idempotent. A step that is under way is not waited for."""
        self._given.clear()
        self._driver.release(self.sequence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

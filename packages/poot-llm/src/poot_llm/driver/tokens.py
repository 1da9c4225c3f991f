"""The tokens of one answer as an iterator, with the next step under way while one is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from poot_llm.driver.flights import Flight
from poot_llm.driver.sequence import FinishReason, Sequence

if TYPE_CHECKING:
    from poot_llm.driver.driver import Driver


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """A committed token; `finish_reason` where it is the last one."""

    token: int
    finish_reason: FinishReason | None


class TokenStream(Iterator[GeneratedToken]):
    """Drives one sequence to its end and releases its row, also where it fails or is closed early.

    `next` raises what failed the request: NonFiniteLogits, or the error of the step.
    """

    __slots__ = ("_ahead", "_driver", "sequence")

    def __init__(self, driver: Driver, sequence: Sequence) -> None:
        self._driver = driver
        self._ahead: Flight | None = None
        self.sequence = sequence

    def __next__(self) -> GeneratedToken:
        if self.sequence.released or self.sequence.finish_reason is not None:
            self.close()
            raise StopIteration
        token: int | None = None
        while token is None:
            result, self._ahead = self._driver.advance(self.sequence, self._ahead)
            if result.failure is not None:
                self.close()
                raise result.failure
            token = result.token
        reason = self._driver.commit(self.sequence, token)
        if reason is not None:
            self.close()
        return GeneratedToken(token, reason)

    def stop(self) -> None:
        """End the answer here, for the reason STOP."""
        self._driver.finish(self.sequence, FinishReason.STOP)
        self.close()

    def close(self) -> None:
        """Release the row; idempotent. A step that is under way is not waited for."""
        self._ahead = None
        self._driver.release(self.sequence)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

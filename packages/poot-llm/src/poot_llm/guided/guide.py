"""`Guide`: what may come next in one answer, computed while the device is at work."""

from __future__ import annotations

from concurrent.futures import Executor, Future

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from poot_executor.errors import RequestError


class GuideFailed(RequestError):
    """An answer's constraint cannot be followed further: a limit of a step, or a token that it does not allow."""


class Guide:
    """Where one answer is in its constraint. Made by `GuideCompiler`; one thread calls it.

    `mask` gives the legal ids of the next token, `accept` goes on by one, and the mask after it is computed by a worker
    from then on: fill the slots last. Where the constraint is complete, only what ends the answer is legal.
    """

    __slots__ = ("_matcher", "_next", "_words", "_workers")

    def __init__(self, matcher: LLMatcher, words: int, workers: Executor) -> None:
        self._matcher = matcher
        self._words = words
        self._workers = workers
        self._next: Future[NDArray[np.uint32]] | None = None

    def copy(self) -> Guide:
        """Another answer at the same place."""
        self._settle()
        return Guide(self._matcher.deep_copy(), self._words, self._workers)

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        self._settle()
        return self._matcher.is_accepting()

    @property
    def finished(self) -> bool:
        """Whether nothing more may come: the answer ends, whatever a model says."""
        self._settle()
        return self._matcher.is_stopped()

    def prefetch(self) -> None:
        """Begin to compute the mask, if that is not under way."""
        if self._next is None:
            self._next = self._workers.submit(mask_of, self._matcher, self._words)

    def mask(self) -> NDArray[np.uint32]:
        """u32[ceil(vocabulary / 32)], at least one bit of it set. Raises GuideFailed where a step's limits are met."""
        self.prefetch()
        assert self._next is not None
        return self._next.result()

    def allows(self, token: int) -> bool:
        """Whether a token may come next."""
        word, bit = divmod(token, 32)
        return 0 <= word < self._words and bool(int(self.mask()[word]) >> bit & 1)

    def accept(self, token: int) -> None:
        """The token is part of the answer. Raises GuideFailed where it may not be; the guide is of no use then."""
        self._settle()
        self._next = None
        if not self._matcher.consume_token(token):
            raise GuideFailed(f"token {token} does not fit structured_outputs: {reason_of(self._matcher)}")
        if not self._matcher.is_stopped():
            self.prefetch()

    def forced_after(self, token: int) -> tuple[int, ...]:
        """The ids that must come after a token that may come next: each is the only legal one after those before it.
        Nothing changes.
        """
        self._settle()
        ahead = self._matcher.deep_copy()
        if not ahead.consume_token(token) or ahead.is_stopped():
            return ()
        return tuple(ahead.compute_ff_tokens())

    def _settle(self) -> None:
        """Wait for the worker: nothing else may look at the matcher meanwhile."""
        if self._next is not None:
            self._next.exception()


def mask_of(matcher: LLMatcher, words: int) -> NDArray[np.uint32]:
    """The mask of a matcher's next token. Raises GuideFailed where there is none to choose."""
    mask = np.zeros(words, np.uint32)
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
    if matcher.is_error():
        raise GuideFailed(f"structured_outputs cannot be followed further: {reason_of(matcher)}")
    if not mask.any():
        raise GuideFailed("structured_outputs leaves no token to choose: the vocabulary cannot spell what it asks for")
    return mask


def reason_of(matcher: LLMatcher) -> str:
    """Why a matcher failed, in a line."""
    lines = [line.strip() for line in matcher.get_error().splitlines()]
    reason = " ".join(line for line in lines if line and not line.startswith("<"))
    return (reason if len(reason) <= 300 else reason[:300] + " …") or str(matcher.stop_reason())

"""The sequences that are open in a driver: who has room, who gave it to others, and what each may do."""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Sequence as Items

from poot_executor.errors import BindError, PootError, RequestError
from poot_llm.driver.kv import KvLayout
from poot_llm.driver.row_copies import RowCopies
from poot_llm.driver.sequence import FinishReason, Sequence, StepResult


class OpenSequences:
    """Sequences of one model over a layout of KV. `identity` is what K and V depend on beside ids; `copies` carries out
    what the layout wants copied.
    """

    def __init__(
        self, kv: KvLayout, capacity: int, vocabulary: int, identity: Hashable, copies: RowCopies | None = None
    ) -> None:
        self._kv = kv
        self._capacity = capacity
        self._vocabulary = vocabulary
        self._identity = identity
        self._copies = copies
        self._open: set[Sequence] = set()

    def seat(self, sequence: Sequence) -> bool:
        """A row with room for what the sequence has, and for its answer where that is reserved."""
        ids = sequence.ids(0, len(sequence))
        end = len(sequence.prompt_ids) + sequence.limit if sequence.reserve else len(ids) + 1
        # What a prompt supplies is not among its ids.
        shared = min((item.at[0] for item in sequence.inputs.values()), default=self._capacity)
        sequence.lease = self._kv.take(ids, min(end, self._capacity), self._identity, shared)
        if sequence.lease is None:
            return False
        lease = sequence.lease
        if lease.source is not None:
            assert self._copies is not None
            if not self._copies.copy(lease.source, lease.row, lease.kept):
                lease.kept = 0
            lease.source = None
        sequence.cached = sequence.lease.kept
        sequence.timings.kept_tokens += sequence.lease.kept
        return True

    def add(self, sequence: Sequence) -> None:
        """It has room, and everything that it needs is there."""
        self._open.add(sequence)

    def require(self, sequences: Items[Sequence]) -> None:
        """Raises BindError unless they are open, unfinished, at least one, and each there once."""
        if not sequences or (len(sequences) > 1 and len(set(sequences)) != len(sequences)):
            raise BindError("a step takes sequences, at least one and each once")
        for sequence in sequences:
            if sequence not in self._open or sequence.finish_reason is not None:
                self._require(sequence)

    def _require(self, sequence: Sequence) -> None:
        if sequence not in self._open:
            raise BindError(f"{sequence.name} is not open in this driver")
        if sequence.finish_reason is not None:
            raise BindError(f"{sequence.name} is finished ({sequence.finish_reason.value})")

    def commit(self, sequence: Sequence, token: int) -> FinishReason | None:
        """See `Driver.commit`."""
        self._require(sequence)
        if not sequence.drawn and sequence.pending > 0:
            raise BindError(f"{sequence.pending} ids are pending: step until a token is given")
        if not 0 <= token < self._vocabulary:
            raise BindError(f"token {token} is none: ids are 0 to {self._vocabulary - 1}")
        return sequence.accept(token)

    def commit_given(self, results: Items[StepResult]) -> list[tuple[tuple[int, ...], PootError | None]]:
        """See `Driver.commit_given`."""
        committed: list[tuple[tuple[int, ...], PootError | None]] = []
        for result in results:
            sequence, first, more, failure = result.sequence, result.token, result.more, result.failure
            given: tuple[int, ...] = ()
            if first is not None:
                if sequence not in self._open or sequence.finish_reason is not None:
                    self._require(sequence)
                given, count = (first, *more) if more else (first,), 0
                try:
                    for count, token in enumerate(given, 1):
                        if sequence.accept(token) is not None:
                            given = given[:count]
                            break
                except RequestError as error:
                    given, failure = given[: count - 1], error
                    sequence.finish_reason = FinishReason.ERROR
            committed.append((given, failure))
        return committed

    def preempt(self, sequence: Sequence) -> None:
        """See `Driver.preempt`."""
        self._require(sequence)
        if sequence.lease is not None:
            self._kv.give_back(sequence.lease)
        sequence.lease = sequence.ahead = None
        sequence.cached = 0
        sequence.drawn.clear()

    def resume(self, sequence: Sequence) -> bool:
        """See `Driver.resume`."""
        self._require(sequence)
        return sequence.lease is not None or self.seat(sequence)

    def release(self, sequence: Sequence) -> None:
        """See `Driver.release`."""
        if sequence not in self._open:
            return
        self._open.remove(sequence)
        sequence.released = True
        sequence.ahead = None
        if sequence.lease is not None:
            self._kv.give_back(sequence.lease)

    def forget(self) -> None:
        """The states were reset: every sequence computes its own again."""
        self._kv.forget([s.lease for s in self._open if s.lease is not None])
        for sequence in self._open:
            sequence.cached = 0

    def release_all(self) -> None:
        """Give every room back."""
        for sequence in tuple(self._open):
            self.release(sequence)

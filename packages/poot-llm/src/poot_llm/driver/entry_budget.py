"""What the entries of a driver may take together: their number, and the bytes that they own."""

from __future__ import annotations

from poot_executor.compile import Program
from poot_executor.errors import CompileLimit


class EntryBudget:
    """Counts entries, and the bytes that they own beside weights, states and the shared arena."""

    __slots__ = ("_bytes", "_entries", "_most_bytes", "_most_entries")

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self._most_entries, self._most_bytes = most_entries, most_bytes
        self._entries = self._bytes = 0

    def check(self, program: Program | None = None) -> None:
        """Raises CompileLimit where one more entry is too many, or where a program's bytes are."""
        _limit("entries of a driver", self._most_entries, self._entries + 1)
        if program is not None:
            _limit("bytes of a driver's entries", self._most_bytes, self._bytes + _own(program))

    def take(self, program: Program) -> None:
        """The program has become an entry."""
        self._entries += 1
        self._bytes += _own(program)


def _own(program: Program) -> int:
    """Bytes of an entry with two sets of inputs and outputs."""
    return 2 * (program.input_bytes + program.output_bytes) + len(program.constants)


def _limit(name: str, limit: int, count: int) -> None:
    if count > limit:
        raise CompileLimit(name, limit, count)

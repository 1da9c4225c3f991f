"""Guessing the next tokens from the text so far (prompt lookup), and whether checking guesses pays.

Where the last few ids occurred before, what followed them then is guessed to follow now. A window step checks all
guesses in one pass over the weights. Source: Saxena 2023, prompt lookup decoding; Leviathan et al. 2023 for checking.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from poot_llm.blocks.step import StepShape
from poot_llm.driver.sequence import Sequence

LONGEST, SHORTEST = 4, 2
"""Ids that must have occurred before: the longest match counts."""
LOOKED_AT = 2048
"""Ids from the end that are searched."""
MEMORY = 0.9
"""Weight of what was measured before in a running mean."""
TRIALS = 4
"""Windows of a sequence that are checked before its rate of right guesses is believed."""
PAUSE = 32
"""Steps after which a sequence whose guesses do not pay is tried again."""


def lookup(ids: Items[int], count: int) -> tuple[int, ...]:
    """Up to `count` ids that followed the latest earlier occurrence of the longest run that `ids` end with."""
    text = list(ids[-LOOKED_AT:])
    for length in range(min(LONGEST, len(text) - 1), SHORTEST - 1, -1):
        ending, last = text[-length:], text[-1]
        for end in range(len(text) - 2, length - 2, -1):
            if text[end] == last and text[end - length + 1 : end + 1] == ending:
                return tuple(text[end + 1 : end + 1 + count])
    return ()


@dataclass(slots=True)
class _Record:
    """How a sequence's guesses did: windows checked, mean of right guesses a window, steps to wait."""

    windows: int = 0
    right: float = 0.0
    waiting: int = 0


@dataclass(slots=True)
class Guesser:
    """`count` guesses at a time. A window is worth its time where the tokens that it gives take longer without it."""

    count: int
    _records: WeakKeyDictionary[Sequence, _Record] = field(default_factory=WeakKeyDictionary)
    _seconds: dict[tuple[int, bool], float] = field(default_factory=dict)

    def guess(self, s: Sequence) -> tuple[int, ...]:
        """Guesses for a sequence; none where it reads its prompt, is guided or penalizes, or where guessing did not pay
        lately.
        """
        if s.pending != 1 or s.guide is not None or s.params.penalizes or s.params.masks:
            return ()
        record = self._records.setdefault(s, _Record())
        if record.waiting:
            record.waiting -= 1
            return ()
        room = s.limit - len(s.tokens) - 1
        return lookup(s.ids(0, len(s)), min(self.count, room)) if room > 0 else ()

    def checked(self, s: Sequence, guessed: int, right: int) -> None:
        """A window of a sequence was checked."""
        record = self._records.setdefault(s, _Record())
        record.right = right if not record.windows else MEMORY * record.right + (1 - MEMORY) * right
        record.windows += 1
        if record.windows >= TRIALS and 1 + record.right < self.cost:
            record.waiting, record.windows = PAUSE, 0

    @property
    def cost(self) -> float:
        """Seconds of a window over those of a decoding step of as many rows, at worst; 1.5 until both are known."""
        ratios = [
            self._seconds[rows, True] / self._seconds[rows, False]
            for rows, window in self._seconds
            if window and (rows, False) in self._seconds
        ]
        return max(ratios, default=1.5)

    def took(self, shape: StepShape, seconds: float | None) -> None:
        """A step of a shape took so long, alone; None where it is not known."""
        if seconds is None or not (shape.window or shape.tokens == 1):
            return
        key = shape.rows, shape.window
        held = self._seconds.get(key)
        self._seconds[key] = seconds if held is None else MEMORY * held + (1 - MEMORY) * seconds

"""Tokens that a guide forces, given without a step for each, and whether that is quicker.

Where one id alone is legal, it is the one that would have been drawn, whatever the logits. So it is known at once, and
the next step reads it with the id before it, as it reads a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from poot_llm.blocks.step import StepShape
from poot_llm.driver.grouping import Grouping
from poot_llm.driver.sequence import Sequence

FORCED_STEPS = (4, 8)
"""Tokens of the steps that are prepared for it."""
PAUSE = 16
"""Times that it was not worth it, after which it is tried again: a step's first run may be slow by itself."""


@dataclass(slots=True)
class Forcing:
    """A step of n ids is worth it where it takes no longer than n steps of one: the shortest times are compared."""

    grouping: Grouping
    _seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    _declined: int = 0

    def after(self, s: Sequence, token: int) -> tuple[int, ...]:
        """The ids to give after a token that a step gave a sequence; none where that would not pay."""
        room = s.limit - len(s.tokens) - 1
        if s.forcing is None or room <= 0 or token in s.stop_ids:
            return ()
        forced = s.forcing.forced_after(token)[: min(room, FORCED_STEPS[-1] - 1)]
        if not forced or not self._pays(s, 1 + len(forced)):
            return ()
        s.timings.forced_tokens += len(forced)
        return forced

    def _pays(self, s: Sequence, count: int) -> bool:
        group = self.grouping.reading(s, count)
        if group is None or group.key.shape.tokens >= 2 * count:
            return False
        shape = group.key.shape
        together, one = self._seconds.get((shape.rows, shape.tokens)), self._seconds.get((shape.rows, 1))
        if together is None or one is None or together <= count * one:
            return True
        self._declined += 1
        return self._declined % PAUSE == 0

    def took(self, shape: StepShape, seconds: float) -> None:
        """A step of a shape took so long, alone."""
        key = shape.rows, shape.tokens
        self._seconds[key] = min(seconds, self._seconds.get(key, seconds))

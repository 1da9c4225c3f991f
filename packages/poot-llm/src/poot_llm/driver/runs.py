"""One step on the device with the sequences that are in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poot_llm.driver.flights import Flight
from poot_llm.driver.kv import Placed, Placement
from poot_llm.driver.options import EntryKey
from poot_llm.driver.sequence import Sequence
from poot_llm.sampling import SamplerRow


@dataclass(slots=True, eq=False)
class Member(Placed):
    """A sequence's part of a step: `guesses` are ids after the known ones, that a window checks. In a step ahead,
    `expects` is the token that the step before gave: the id which this one took from the state.
    """

    guesses: tuple[int, ...] = ()
    expects: int | None = None


@dataclass(slots=True, eq=False)
class Run:
    """A submitted step. `placement` is that of its members, and `drawing` by what their rows are drawn, where that is
    the same in a step after it; `resets` is how often the state had been reset before.
    """

    key: EntryKey
    flight: Flight
    members: dict[Sequence, Member]
    placement: Placement
    drawing: Mapping[int, SamplerRow] | None
    resets: int

    def serves(self, sequence: Sequence) -> bool:
        """Whether this step, submitted ahead, computes what the sequence has pending now: a token, since the step
        starts where the answer ended when it was submitted.
        """
        member = self.members[sequence]
        start = member.start
        return (
            member.lease is sequence.lease
            and start == sequence.cached
            and start + 1 == sequence.length
            and member.expects == sequence.tokens[-1]
            and not self.flight.lost
        )

"""Prompts of about so many tokens for a server whose tokenizer is unknown: common words, and a count that it gave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WORDS = tuple(
    """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room mother
    area money story fact month lot right study book eye job word business issue side kind head house service friend
    father power hour game line end member law car city name team minute idea body back parent face level office
    door health person art war history party result change morning reason research girl guy moment air teacher force
    education make take come see know get give find think tell ask seem feel try leave call good new first last long
    great little own other old big high small large next early young few public same able
    """.split()
)
"""Words that are one token each, with the space before them, in most vocabularies of English."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A prompt of n words has about `fixed` + n · `each` tokens: what a template adds, and what a word takes."""

    fixed: float = 0.0
    each: float = 1.0

    def words(self, tokens: int) -> int:
        """How many words have about that many tokens; at least one."""
        return max(1, round((tokens - self.fixed) / self.each))


def measure(counts: Sequence[tuple[int, int]]) -> Measure:
    """From the numbers of words and tokens of two prompts. Raises ValueError where the longer one has no more."""
    (few, less), (many, more) = sorted(counts)
    each = (more - less) / (many - few)
    if each <= 0:
        raise ValueError(f"{few} words have {less} tokens, {many} words have {more}")
    return Measure(less - few * each, each)

"""Prompts with a hole in them: what comes before and after it, between the marks that a checkpoint has for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from poot_llm.tokenizer import Tokenizer

MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|fim\u2581begin|>", "<|fim\u2581hole|>", "<|fim\u2581end|>"),
)
"""Names of the three marks in checkpoints of Qwen's and CodeGemma's, StarCoder's and Granite's, SantaCoder's, and
DeepSeek's coders: before the text, between it and what follows the hole, and before what fills it.
"""
ENDS = ("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_sep|>", "<|file_separator|>", "<file_sep>", "<|repo_name|>")
"""Names of marks that begin something else than what fills the hole."""


@dataclass(frozen=True, slots=True)
class Infill:
    """How a checkpoint fills holes: ids of its three marks, and those that end what it fills in."""

    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """None where the vocabulary has no such marks: the checkpoint was not taught it."""
        for names in MARKS:
            ids = [id for name in names if (id := _id_of(tokenizer, name)) is not None]
            if len(ids) == len(names):
                others = (_id_of(tokenizer, name) for name in ENDS)
                return cls(*ids, ends=(*ids, *(id for id in others if id is not None)))
        return None

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Ids of a prompt whose answer goes between both."""
        return [self.prefix, *before, self.suffix, *after, self.middle]


def _id_of(tokenizer: Tokenizer, name: str) -> int | None:
    """The token of that name, where it is one token."""
    ids = tokenizer.encode(name, add_special=False, parse_special=True)
    return ids[0] if len(ids) == 1 and tokenizer.token_text(ids[0]) == name else None

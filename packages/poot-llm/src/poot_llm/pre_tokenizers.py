"""How byte-level BPE vocabularies of GGUF files cut text, by the file's `tokenizer.ggml.pre`.

A file names its cut rather than describing it. Each row states what the model's own tokenizer.json does: the
normalizer, the cuts in order, and whether a whole piece that is in the vocabulary is taken before any merge. The
patterns are those of the published tokenizers (and, for `default`, of llama.cpp, whose fallback it is).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex, normalizers, pre_tokenizers

from poot_executor.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Cut:
    """A row of the table. `digits`: every digit apart first. `patterns`: applied one after the other, each match
    and each gap a piece of its own; empty means GPT-2's pattern. `adds_bos`: the default where the file is silent.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def normalizer(self) -> normalizers.Normalizer | None:
        """What is done to text before it is cut, if anything."""
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The cuts, then the spelling of bytes as characters."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not self.patterns))
        return pre_tokenizers.Sequence(steps)


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_TAIL}"
_GPT4O = rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

CUTS: Mapping[str, Cut] = MappingProxyType(
    {
        "default": Cut(_DEFAULT),
        "gpt-2": Cut(),
        "gpt2": Cut(),
        "phi-2": Cut(),
        "smollm": Cut(digits=True),
        "starcoder": Cut(digits=True),
        "refact": Cut(digits=True),
        "llama3": Cut((_LLAMA3,), ignore_merges=True, adds_bos=True),
        "llama-v3": Cut((_LLAMA3,), ignore_merges=True, adds_bos=True),
        "llama-bpe": Cut((_LLAMA3,), ignore_merges=True, adds_bos=True),
        "falcon3": Cut((_LLAMA3,), ignore_merges=True, adds_bos=True),
        "smaug-bpe": Cut((_LLAMA3,)),
        "dbrx": Cut((_LLAMA3,)),
        "qwen2": Cut((_QWEN2,), nfc=True),
        "deepseek-r1-qwen": Cut((_QWEN2,)),
        "tekken": Cut((_TEKKEN,), ignore_merges=True, adds_bos=True),
        "gpt-4o": Cut((_GPT4O,)),
    }
)  # fmt: skip
"""Cuts by name. A name absent here is refused: another cut would give other ids without a word."""


def cut_named(name: str) -> Cut:
    """The cut of that name. Raises Unsupported with the known ones."""
    if name not in CUTS:
        raise Unsupported(f"tokenizer.ggml.pre {name!r}", f"poot knows {', '.join(CUTS)}")
    return CUTS[name]

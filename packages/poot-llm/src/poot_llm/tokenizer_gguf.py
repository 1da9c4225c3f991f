"""A tokenizer from GGUF metadata: byte-level BPE ("gpt2") and sentencepiece's BPE with scores ("llama")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from poot_executor.errors import CheckpointError, PootError, Unsupported
from poot_llm.detokenizer import ByteLevelSpelling, SentencePieceSpelling, Spelling, byte_spellings
from poot_llm.pre_tokenizers import cut_named
from poot_llm.tokenizer import Control, SpecialIds, StandIns, Tokenizer, refusing
from poot_llm.weights.gguf import GgufFile
from poot_llm.weights.gguf_metadata import MetadataValue

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""The values of `tokenizer.ggml.token_type`."""
MAX_TOKEN_CHARACTERS = 512
"""Of a sentencepiece token, whose every cut is a possible merge; sentencepiece's own default is 16."""
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """A file's tokens: names and types by id, and the names that the backend knows them by."""

    where: str
    tokens: Sequence[str]
    types: Sequence[int]
    names: Mapping[str, int]
    stand_ins: StandIns

    def ids(self, *types: int) -> list[int]:
        return [index for index, kind in enumerate(self.types) if kind in types]


class _Fields:
    """Typed reads of `tokenizer.ggml.*`. Raises CheckpointError by key."""

    __slots__ = ("_metadata", "path")

    def __init__(self, path: Path, metadata: Mapping[str, MetadataValue]) -> None:
        self.path = path
        self._metadata = metadata

    def refuse(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: tokenizer.ggml.{key} {problem}")

    def has(self, key: str) -> bool:
        return f"tokenizer.ggml.{key}" in self._metadata

    def text(self, key: str) -> str:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, str):
            raise self.refuse(key, "is missing or not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise self.refuse(key, "is not a bool")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list):
            raise self.refuse(key, "is missing or not an array of strings")
        return [self._text(key, index, item) for index, item in enumerate(value)]

    def _text(self, key: str, index: int, item: MetadataValue) -> str:
        if not isinstance(item, str):
            raise self.refuse(f"{key}[{index}]", "is not a string")
        return item

    def numbers(self, key: str, count: int, kinds: str) -> list[int] | list[float]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds or len(value) != count:
            raise self.refuse(key, f"is not an array of {count} numbers, one a token")
        items: list[int] | list[float] = value.tolist()
        return items

    def token_id(self, key: str, count: int) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < count:
            raise self.refuse(key, f"is {value!r}, not a token of {count}")
        return value


def tokenizer_from_gguf(file: GgufFile) -> Tokenizer:
    """The tokenizer that a file's metadata describes. Raises CheckpointError by key, or Unsupported by name."""
    fields = _Fields(file.path, file.metadata)
    model = fields.text("model")
    if model not in _BUILDERS:
        known = ", ".join(_BUILDERS)
        raise Unsupported(f"tokenizer.ggml.model {model!r} of {file.path}", f"poot knows {known}")
    tokens = fields.texts("tokens")
    special_ids = {key: fields.token_id(key, len(tokens)) for key in ("bos_token_id", *_END_KEYS)}
    vocabulary = _vocabulary(fields, tokens, {token for token in special_ids.values() if token is not None})
    try:
        with refusing(str(file.path)):
            backend, spelling, adds_bos = _BUILDERS[model](fields, vocabulary)
            _add_whole_tokens(backend, vocabulary)
    except CheckpointError as error:
        # A refusal by key that was raised inside says more than that the whole is unusable.
        raise error.__cause__ if isinstance(error.__cause__, PootError) else error from None
    ends = [special_ids[key] for key in _END_KEYS]
    return Tokenizer(
        backend,
        stand_ins=vocabulary.stand_ins,
        controls=[Control(token, tokens[token]) for token in vocabulary.ids(CONTROL, UNKNOWN)],
        hidden={token: tokens[token] for token in vocabulary.ids(UNUSED)},
        special=SpecialIds(
            bos_id=special_ids["bos_token_id"],
            eos_ids=frozenset(token for token in ends if token is not None),
            prefix=_end(fields, "bos", special_ids["bos_token_id"], adds_bos),
            suffix=_end(fields, "eos", special_ids["eos_token_id"], False),
        ),
        spelling=spelling,
        vocabulary_size=len(tokens),
    )


def _end(fields: _Fields, which: str, token: int | None, default: bool) -> tuple[int, ...]:
    if not fields.flag(f"add_{which}_token", default):
        return ()
    if token is None:
        if fields.has(f"add_{which}_token"):
            raise fields.refuse(f"add_{which}_token", f"is true and there is no {which}_token_id")
        return ()
    return (token,)


def _vocabulary(fields: _Fields, tokens: Sequence[str], special: set[int]) -> _Vocabulary:
    """Names for the backend: a token that text must never reach goes by a stand-in."""
    if not tokens:
        raise fields.refuse("tokens", "is empty")
    types = [NORMAL] * len(tokens)
    if fields.has("token_type"):
        types = [int(kind) for kind in fields.numbers("token_type", len(tokens), "iu")]
    for index, kind in enumerate(types):
        if not NORMAL <= kind <= BYTE:
            raise fields.refuse(f"token_type[{index}]", f"is {kind}, not one of 1 to 6")
        # An id that the file ends or begins text with is control, whatever type a converter gave it.
        if index in special:
            types[index] = CONTROL
        elif not tokens[index]:
            types[index] = UNUSED
    stand_ins = StandIns()
    names: dict[str, int] = {}
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        name = stand_ins.name(index) if kind in (CONTROL, UNKNOWN, UNUSED) else token
        if name in names:
            raise fields.refuse(f"tokens[{index}]", f"is {token!r}, as is tokens[{names[name]}]")
        names[name] = index
    return _Vocabulary(str(fields.path), tokens, types, names, stand_ins)


def _add_whole_tokens(backend: Backend, vocabulary: _Vocabulary) -> None:
    """Control tokens, by stand-in, and user-defined ones, by name, match whole before anything is cut."""
    names = [vocabulary.stand_ins.name(token) for token in vocabulary.ids(CONTROL, UNKNOWN)]
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    texts = [vocabulary.tokens[token] for token in vocabulary.ids(USER_DEFINED)]
    backend.add_tokens([AddedToken(text, normalized=False, special=False) for text in texts])


def _byte_level(fields: _Fields, vocabulary: _Vocabulary) -> tuple[Backend, Spelling, bool]:
    cut = cut_named(fields.text("pre") if fields.has("pre") else "default")
    merges = _listed_merges(fields, vocabulary)
    model = models.BPE(vocab=dict(vocabulary.names), merges=merges, ignore_merges=cut.ignore_merges)
    backend = Backend(model)
    normalizer = cut.normalizer()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = cut.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, ByteLevelSpelling(MappingProxyType(byte_spellings())), cut.adds_bos


def _listed_merges(fields: _Fields, vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    merges = []
    names = vocabulary.names
    for index, text in enumerate(fields.texts("merges")):
        left, _, right = text.partition(" ")
        # There are 10^5 of them: what is wrong with one is found out only where something is.
        known = left in names and right in names and left + right in names
        if not known or not left or not right or " " in right:
            raise _refused_merge(fields, vocabulary, index, text)
        merges.append((left, right))
    return merges


def _refused_merge(fields: _Fields, vocabulary: _Vocabulary, index: int, text: str) -> CheckpointError:
    left, space, right = text.partition(" ")
    if not (left and space and right) or " " in right:
        return fields.refuse(f"merges[{index}]", f"is {text!r}, not two tokens and one space")
    unknown = next(token for token in (left, right, left + right) if token not in vocabulary.names)
    return fields.refuse(f"merges[{index}]", f"is {text!r}, and {unknown!r} is not a token")


def _sentencepiece(fields: _Fields, vocabulary: _Vocabulary) -> tuple[Backend, Spelling, bool]:
    if fields.flag("remove_extra_whitespaces", False):
        raise Unsupported("tokenizer.ggml.remove_extra_whitespaces", 'not for tokenizer.ggml.model "llama"')
    prefix_space = fields.flag("add_space_prefix", True)
    unknown = vocabulary.ids(UNKNOWN)
    model = models.BPE(
        vocab=dict(vocabulary.names),
        merges=_scored_merges(fields, vocabulary),
        unk_token=vocabulary.stand_ins.name(unknown[0]) if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Backend(model)
    # As the published tokenizers of these vocabularies do: each stretch of text gets its prefix, nothing is cut.
    spaces: normalizers.Normalizer = normalizers.Replace(" ", "\u2581")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefix_space else spaces
    return backend, SentencePieceSpelling(strips_first_space=prefix_space), True


def _scored_merges(fields: _Fields, vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Sentencepiece merges the neighbours whose joined token scores best; here as a list of pairs, best first.

    A token can be joined from every pair of tokens that spell it; of the pairs of one token, the longer left first.
    """
    scores = fields.numbers("scores", len(vocabulary.tokens), "f")
    if not np.isfinite(scores).all():
        raise fields.refuse("scores", "are not all finite")
    parts = {vocabulary.tokens[token] for token in vocabulary.ids(NORMAL)}
    ranked = sorted(vocabulary.ids(NORMAL), key=lambda token: -scores[token])
    merges = []
    for token in ranked:
        text = vocabulary.tokens[token]
        if len(text) > MAX_TOKEN_CHARACTERS:
            raise fields.refuse(f"tokens[{token}]", f"has {len(text):,} characters, too many for a token")
        cuts = ((text[:cut], text[cut:]) for cut in range(len(text) - 1, 0, -1))
        merges += [(left, right) for left, right in cuts if left in parts and right in parts]
    return merges


_BUILDERS = MappingProxyType({"gpt2": _byte_level, "llama": _sentencepiece})

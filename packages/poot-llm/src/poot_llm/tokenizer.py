"""Text to token ids and back, over the package tokenizers.

The safety rule: text is only ever control where the caller says so. In the backend every control token goes by a
*stand-in*, a name drawn at random when the tokenizer is made, so nothing that a user can type is a control token to
it: not through an added-token match, nor a merge, nor a vocabulary look-up. `encode` with `parse_special` finds the
control tokens' real names in the text and puts the stand-ins there; without it, it does nothing, and "<|im_end|>" is
ordinary text. A user-defined token that is not control (a model's "<think>") stays one piece either way.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tokenizers

from poot_executor.errors import CheckpointError, RequestError
from poot_llm.detokenizer import Detokenizer, Spelling

if TYPE_CHECKING:
    from poot_llm.weights.gguf import GgufFile

_FENCE = "\U0010fffe"
"""A noncharacter, which interchanged text does not hold, at both ends of a stand-in."""


@dataclass(frozen=True, slots=True)
class Control:
    """A control token: its id, real name, and whether it matches only where no word character touches it."""

    id: int
    text: str
    single_word: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """Characters `start` to `end` of a text are the control token `id`."""

    start: int
    end: int
    id: int


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """What the checkpoint says of the ends of a text. `prefix` and `suffix` go around a whole prompt."""

    bos_id: int | None
    eos_ids: frozenset[int]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]


class StandIns:
    """Names for control tokens that no text can hold."""

    __slots__ = ("_key",)

    def __init__(self) -> None:
        self._key = secrets.token_hex(12)

    def name(self, token: int) -> str:
        """The stand-in of a token id."""
        return f"{_FENCE}{self._key}:{token}{_FENCE}"


class Tokenizer:
    """A checkpoint's tokenizer. Make one with `from_gguf` or `from_directory`. Safe to share between threads."""

    __slots__ = (
        "_backend",
        "_controls",
        "_names",
        "_pattern",
        "_special",
        "_stand_ins",
        "_verbatim",
        "spelling",
        "vocabulary_size",
    )

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        stand_ins: StandIns,
        controls: Sequence[Control],
        hidden: Mapping[int, str],
        special: SpecialIds,
        spelling: Spelling,
        vocabulary_size: int,
    ) -> None:
        """`backend` holds the controls under their stand-ins, as added tokens, and has no post-processor.

        `hidden` are names of tokens that the backend also holds under a stand-in though no text may mean them.
        """
        self._backend = backend
        self._stand_ins = stand_ins
        self._special = special
        self.spelling = spelling
        self.vocabulary_size = vocabulary_size
        """One more than the largest id."""
        self._controls = {control.text: control for control in controls if control.text}
        self._names = {control.id: control.text for control in controls}
        self._verbatim = dict(hidden)
        texts = sorted(self._controls, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Tokenizer:
        """From a GGUF file's metadata. Raises CheckpointError, or Unsupported for a kind that poot does not know."""
        from poot_llm.tokenizer_gguf import tokenizer_from_gguf

        return tokenizer_from_gguf(file)

    @classmethod
    def from_directory(cls, directory: str | Path) -> Tokenizer:
        """From tokenizer.json and the configuration files beside it. Raises CheckpointError or Unsupported."""
        from poot_llm.tokenizer_json import tokenizer_from_directory

        return tokenizer_from_directory(Path(directory))

    @property
    def bos_id(self) -> int | None:
        """The beginning-of-sequence id, whether or not prompts get one (`adds_bos`)."""
        return self._special.bos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a generation: the union of what the checkpoint's files say."""
        return self._special.eos_ids

    @property
    def adds_bos(self) -> bool:
        """Whether `complete` puts the beginning-of-sequence id before a prompt."""
        return self.bos_id is not None and self.bos_id in self._special.prefix

    @property
    def control_ids(self) -> frozenset[int]:
        """Ids that only `parse_special`, `complete` and marks can produce."""
        return frozenset(self._names)

    @property
    def control_texts(self) -> frozenset[str]:
        """The control tokens' real names."""
        return frozenset(self._controls)

    def token_text(self, token: int) -> str:
        """A token's name as the checkpoint writes it (a control token's real one). Raises RequestError."""
        self._check(token)
        if token in self._names:
            return self._names[token]
        return self._verbatim.get(token) or self._backend.id_to_token(token) or ""

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of a text; with `add_special`, `complete`d. Raises RequestError for text that is not Unicode.

        The text's own control tokens count as such only with `parse_special`.
        """
        ids = self.encode_marked(text, self.find_controls(text) if parse_special else ())
        return self.complete(ids) if add_special else ids

    def find_controls(self, text: str) -> list[Mark]:
        """Where a text names control tokens: leftmost first, the longest at each place."""
        if self._pattern is None:
            return []
        found = []
        for match in self._pattern.finditer(text):
            control = self._controls[match[0]]
            if not (control.single_word and _touches_word(text, match.start(), match.end())):
                found.append(Mark(match.start(), match.end(), control.id))
        return found

    def encode_marked(self, text: str, marks: Iterable[Mark]) -> list[int]:
        """Ids of a text in which the marked spans, ascending, are control tokens and nothing else is."""
        parts, position = [], 0
        for mark in marks:
            parts += [text[position : mark.start], self._stand_ins.name(mark.id)]
            position = mark.end
        parts.append(text[position:])
        try:
            return list(self._backend.encode("".join(parts), add_special_tokens=False).ids)
        except TypeError:
            _refuse_surrogates(text)
            raise

    def complete(self, ids: Sequence[int]) -> list[int]:
        """A whole prompt's ids with the checkpoint's prefix and suffix, each exactly once: not if already there."""
        prefix, suffix = list(self._special.prefix), list(self._special.suffix)
        whole = list(ids)
        if whole[: len(prefix)] != prefix:
            whole = prefix + whole
        if suffix and whole[-len(suffix) :] != suffix:
            whole += suffix
        return whole

    def decode(self, ids: Iterable[int], skip_special: bool = True, *, continues: bool = False) -> str:
        """Text of ids, control tokens left out or by name. `continues` as in `Detokenizer`. Raises RequestError.

        Bytes that are not UTF-8 become U+FFFD. An id past the vocabulary that a padded model can emit has no text.
        """
        stream = Detokenizer(self, skip_special=skip_special, continues=continues)
        return "".join([*map(stream.push, ids), stream.finish()])

    def piece(self, token: int, *, skip_special: bool) -> bytes:
        """The bytes that one id contributes to a text."""
        self._check(token)
        if token in self._names:
            return b"" if skip_special else self._names[token].encode()
        if token in self._verbatim:
            return self._verbatim[token].encode()
        name = self._backend.id_to_token(token)
        return b"" if name is None else self.spelling.to_bytes(name)

    @staticmethod
    def _check(token: int) -> None:
        if not 0 <= token < 1 << 31:
            raise RequestError(f"token id {token} is not one: ids are 0 to 2^31 - 1")


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        problem = f"text: character {error.start} is half of a surrogate pair, not Unicode text"
        raise RequestError(problem) from error


def _touches_word(text: str, start: int, end: int) -> bool:
    around = text[start - 1 : start] + text[end : end + 1]
    return any(character.isalnum() or character == "_" for character in around)


@contextmanager
def refusing(where: str) -> Generator[None, None, None]:
    """Turns whatever the package tokenizers raises over a checkpoint into CheckpointError.

    Its Rust panics surface as a BaseException of their own, so catching Exception would let them through.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise CheckpointError(f"{where}: the tokenizer is not usable: {error}") from error

"""Token ids to text: every id is some bytes of UTF-8, and text is emitted only when its characters are whole."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_spellings() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes for U+0100 and up, in order.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(shown))
    return {chr(byte): byte for byte in shown} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


class Spelling(Protocol):
    """How a vocabulary spells bytes."""

    @property
    def strips_first_space(self) -> bool:
        """Whether a text's first space is the vocabulary's own and not the text's."""
        ...

    def to_bytes(self, token: str) -> bytes:
        """The bytes that a token's name stands for."""
        ...


@dataclass(frozen=True, slots=True)
class ByteLevelSpelling:
    """Tokens spelled with a character a byte (`byte_spellings`)."""

    table: Mapping[str, int]
    strips_first_space: bool = False

    def to_bytes(self, token: str) -> bytes:
        """The bytes spelled; a name in other characters is not spelled so and stands for itself."""
        if all(character in self.table for character in token):
            return bytes(self.table[character] for character in token)
        return token.encode()


@dataclass(frozen=True, slots=True)
class SentencePieceSpelling:
    """Tokens spelled as text with U+2581 for a space, and `<0xNN>` for a byte where the vocabulary has those."""

    strips_first_space: bool
    byte_tokens: bool = True

    def to_bytes(self, token: str) -> bytes:
        """The byte of a byte token, or the text with its spaces put back."""
        match = _BYTE.fullmatch(token) if self.byte_tokens else None
        return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode()


@dataclass(frozen=True, slots=True)
class WordPieceSpelling:
    """Tokens spelled as words, with a prefix on those that go on with the word before. Text is not what it was: case
    and the spaces around punctuation are lost, and a space stands between any two words.
    """

    prefix: str
    strips_first_space: bool = True

    def to_bytes(self, token: str) -> bytes:
        """The characters of a part, or a space and those of a word."""
        part = token.removeprefix(self.prefix)
        return part.encode() if part != token else f" {token}".encode()


class PieceSource(Protocol):
    """What a detokenizer asks of a tokenizer."""

    @property
    def spelling(self) -> Spelling:
        """How its vocabulary spells bytes."""
        ...

    def piece(self, token: int, *, skip_special: bool) -> bytes:
        """The bytes that one id contributes to a text."""
        ...


class Detokenizer:
    """Text of a stream of ids. What `push` and `finish` return, joined, equals `Tokenizer.decode` of all the ids.

    `push` holds back the bytes of a character until it is whole; U+FFFD stands only for bytes that no later token
    could complete. With `continues`, the ids go on from a prompt, so a first space belongs to the text and stays.
    One detokenizer serves one stream; `finish` ends it.
    """

    __slots__ = ("_decoder", "_skip_special", "_source", "_strip")

    def __init__(self, source: PieceSource, *, skip_special: bool = True, continues: bool = False) -> None:
        self._source = source
        self._skip_special = skip_special
        self._strip = source.spelling.strips_first_space and not continues
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that this id completes; often empty. Raises RequestError for an id that cannot be one."""
        piece = self._source.piece(token, skip_special=self._skip_special)
        if self._strip and piece:
            self._strip = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left: empty, or U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)

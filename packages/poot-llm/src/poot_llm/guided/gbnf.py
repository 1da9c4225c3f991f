"""GBNF grammars as Lark: the package llguidance translates them, but for escapes by code point, which are made plain
here before it does.
"""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

from poot_executor.errors import RequestError

MOST_CHARACTERS = 1 << 17
"""Characters of a GBNF grammar: it is read by Python, about a million characters a second."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def lark_of_gbnf(text: str) -> str:
    """The Lark grammar of a GBNF grammar with the entry rule `root`. Raises RequestError with what is wrong."""
    if len(text) > MOST_CHARACTERS:
        raise RequestError(f"structured_outputs.grammar has {len(text):,} characters, at most {MOST_CHARACTERS:,}")
    try:
        return gbnf_to_lark(_ESCAPE.sub(_plain, text))
    except RecursionError:
        raise RequestError("structured_outputs.grammar is nested too deeply") from None
    except Exception as error:  # noqa: BLE001 (the package raises Exception itself)
        raise RequestError(f"structured_outputs.grammar: {error}") from None


def _plain(match: re.Match[str]) -> str:
    """The character that an escape names: itself, or its byte's escape where it may mean something to a grammar."""
    digits = match[1] or match[2]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise RequestError(f"structured_outputs.grammar: {match[0]} is no character")
    return f"\\x{code:02x}" if code < 0x80 else chr(code)

"""Logprobs as OpenAI's answers hold them: a list of tokens in chats, parallel lists in completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from poot_llm.sampling import TokenLogprobs
from poot_llm.tokenizer import Tokenizer

LEAST = -9999.0
"""In place of minus infinity, which JSON does not have."""


def chat_logprobs(
    tokenizer: Tokenizer, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> list[dict[str, Any]]:
    """The entries of `logprobs.content`: each token's text, raw bytes and logprob, and the most likely ones."""
    return [
        _entry(tokenizer, token, one.logprob)
        | {"top_logprobs": [_entry(tokenizer, other, value) for other, value in one.top]}
        for token, one in zip(tokens, logprobs, strict=True)
    ]


def _entry(tokenizer: Tokenizer, token: int, value: float) -> dict[str, Any]:
    data = tokenizer.piece(token, skip_special=False)
    return {"token": data.decode(errors="replace"), "logprob": _finite(value), "bytes": list(data)}


class CompletionLogprobs:
    """The lists of one answer of a completion. `text_offset` counts characters of the answer, the echo included."""

    def __init__(self, tokenizer: Tokenizer, offset: int) -> None:
        self._tokenizer = tokenizer
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The lists of the next tokens."""
        lists: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token, one in zip(tokens, logprobs, strict=True):
            lists["tokens"].append(self._name(token))
            lists["token_logprobs"].append(_finite(one.logprob))
            lists["top_logprobs"].append({self._name(other): _finite(value) for other, value in reversed(one.top)})
            lists["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(self._tokenizer.piece(token, skip_special=True)))
        return lists

    def _name(self, token: int) -> str:
        """A token's text; where it is no text by itself, its bytes, so that no two have one name."""
        data = self._tokenizer.piece(token, skip_special=False)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(value: float) -> float:
    return max(LEAST, value)

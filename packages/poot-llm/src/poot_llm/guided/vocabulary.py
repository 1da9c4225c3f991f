"""A model's tokens as the package llguidance takes them: bytes by id."""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from poot_executor.errors import RequestError
from poot_llm.tokenizer import Tokenizer


class _Words:
    """What `TokenizerWrapper` asks of a tokenizer, by its names."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, ends: Sequence[int]) -> None:
        known = min(vocabulary, tokenizer.vocabulary_size)
        # An id without text is never legal.
        self.tokens = [tokenizer.piece(id, skip_special=False) if id < known else b"" for id in range(vocabulary)]
        self.special_token_ids = sorted(id for id in tokenizer.control_ids | set(ends) if id < vocabulary)
        self.eos_token_id = ends[0]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        whole = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(whole, add_special=False, parse_special=False)


def guide_tokenizer(tokenizer: Tokenizer, vocabulary: int) -> LLTokenizer:
    """The tokens of a model of `vocabulary` ids. Control tokens are never legal, but those that end an answer where it
    may end. Raises RequestError where the checkpoint names none of these.
    """
    ends = sorted(id for id in tokenizer.eos_ids if id < vocabulary)
    if not ends:
        raise RequestError("structured_outputs: the checkpoint names no end-of-sequence token, which ends the answer")
    words = _Words(tokenizer, vocabulary, ends)
    return LLTokenizer(TokenizerWrapper(words), n_vocab=vocabulary, eos_token=ends)

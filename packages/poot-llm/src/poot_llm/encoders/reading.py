"""Texts and pairs of texts as a model that encodes reads them. No device is touched here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_executor.errors import RequestError, Unsupported
from poot_llm.driver import Encoded
from poot_llm.registry import ModelHandle


@dataclass(frozen=True, slots=True)
class TextReader:
    """Reads for one model texts of up to `limit` tokens, with those that go around them. With `truncate` a text beyond
    it is cut there; otherwise it is refused.
    """

    handle: ModelHandle
    limit: int
    truncate: bool = False

    def read(self, text: str, second: str | None = None) -> Encoded:
        """A text, or a pair of texts, as the model reads it. Control tokens in it are ordinary text.

        Raises RequestError for one that is too long, with both numbers, and for an empty one where nothing goes around
        it; where texts are cut, the last one is. Raises Unsupported for a pair that the model cannot tell apart.
        """
        tokenizer = self.handle.tokenizer
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        if second is not None:
            return self._pair(ids, tokenizer.encode(second, add_special=False, parse_special=False))
        around = len(tokenizer.complete(()))
        return Encoded.single(tokenizer.complete(self._cut(ids, [], around)[0]))

    def require_embeddings(self) -> None:
        """Raises Unsupported for a cross-encoder."""
        if self.handle.scores_pairs:
            raise Unsupported(f"embeddings of {self.handle.name}", "it is a cross-encoder: it scores pairs of texts")

    def texts(self, texts: object, name: str = "input") -> list[Encoded]:
        """Several texts. Raises RequestError for what is no list of texts, and as `read` does, with the place."""
        return [self._placed(name, place, text) for place, text in enumerate(listed(name, texts))]

    def pairs(self, query: str, documents: object) -> list[Encoded]:
        """The pairs of one text with each of several. Raises as `texts` does."""
        given = listed("documents", documents)
        return [self._placed("documents", place, query, text) for place, text in enumerate(given)]

    def _placed(self, name: str, place: int, text: str, second: str | None = None) -> Encoded:
        try:
            return self.read(text, second)
        except RequestError as error:
            raise RequestError(f"{name}[{place}]: {error}") from None

    def _pair(self, ids: Sequence[int], others: Sequence[int]) -> Encoded:
        if self.handle.family.token_types is None:
            raise Unsupported(f"pairs of texts by {self.handle.name}", "it reads single texts")
        around = self.handle.tokenizer.complete(())
        ids, others = self._cut(ids, others, 3)
        begin = (around[0], *ids, around[-1])
        return Encoded((*begin, *others, around[-1]), len(begin))

    def _cut(self, ids: Sequence[int], others: Sequence[int], around: int) -> tuple[Sequence[int], Sequence[int]]:
        """Both within the limit, the second first to give way."""
        room = self.limit - around
        count = len(ids) + len(others)
        if count + around < 1:
            raise RequestError("it is empty, at least one token is needed")
        if count > room:
            if not self.truncate:
                raise RequestError(f"it has {count + around} tokens, the model reads {self.limit}")
            ids = ids[: max(room, 0)]
            others = others[: max(room - len(ids), 0)]
        return ids, others


def listed(name: str, texts: object) -> list[str]:
    """A list of texts. Raises RequestError for anything else."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise RequestError(f"{name}: a list of texts")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(f"{name}[{place}] is {text!r}: a text")
    return list(texts)

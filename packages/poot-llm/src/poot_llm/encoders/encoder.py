"""`Encoder`: embeddings of texts and scores of pairs on one executor, through passes that are prepared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile import CompileOptions, compile
from poot_executor.dtype import BF16, F16, F32, DType
from poot_executor.errors import BindError, Poisoned, PootError, RequestError, SettingsError, Unsupported
from poot_executor.executor import EntryId, Executor
from poot_llm.blocks.step import LAST, TOKEN
from poot_llm.encoders.opening import EncoderHandle
from poot_llm.encoders.text_graph import EMBEDDING, SCORES, TYPES, TextShape, trace_texts


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """Raises SettingsError naming the field that is out of range.

    - `rows`: texts of a pass; `activations`: what activations are rounded to before a contraction.
    - `truncate`: a text beyond the checkpoint's limit is cut there; otherwise it is refused.
    """

    rows: int = 16
    activations: DType = F32
    truncate: bool = False
    compile: CompileOptions = field(default_factory=CompileOptions)

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or not 1 <= self.rows <= 1024:
            raise SettingsError(f"rows is {self.rows!r}: a whole number from 1 to 1024")
        if self.activations not in (F32, F16, BF16):
            raise SettingsError(f"activations is {self.activations}: f32, f16 or bf16")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of one text, or of a pair, with what goes around them; `second` is where the second text begins."""

    ids: tuple[int, ...]
    second: int


class NonFiniteEmbedding(PootError):
    """A text's embedding or score holds NaN or infinity: the others are not returned either."""


class Encoder:
    """Runs an encoder: weights loaded once, a pass for each of a few shapes. Calls come from one thread."""

    def __init__(self, handle: EncoderHandle, executor: Executor, options: EncoderOptions | None = None) -> None:
        """Load the weights. Nothing is compiled or uploaded yet."""
        self.handle = handle
        self.options = EncoderOptions() if options is None else options
        if len(executor.target_set) != 1:
            raise Unsupported(f"{len(executor.target_set)} targets", "an encoder has one")
        self._executor = executor
        self._executable = executor.load_weights(handle.store, handle.weight_map)
        self._entries: dict[TextShape, EntryId] = {}
        self._closed = False

    @property
    def shapes(self) -> tuple[TextShape, ...]:
        """Every shape that a pass may have: rows in powers of 4 up to their most, tokens in powers of 2 from 16 on."""
        rows = [n for n in (1, 4, 16, 64, 256) if n < self.options.rows]
        tokens = [n for n in (16 << i for i in range(20)) if n < self.handle.limit]
        return tuple(TextShape(r, t) for r in (*rows, self.options.rows) for t in (*tokens, self.handle.limit))

    def prepare(self, shapes: Iterable[TextShape] | None = None) -> None:
        """Compile passes of these shapes, by default all of them: `encode` compiles what it lacks.

        Raises Unsupported or CompileLimit by name, OutOfMemory where the device is too small, and BindError for a
        shape that is none of `shapes`.
        """
        self._require_open()
        for shape in sorted(self.shapes if shapes is None else shapes, reverse=True):
            if shape not in self.shapes:
                raise BindError(f"{shape} is none of the encoder's shapes")
            self._entry(shape)

    # Texts

    def tokenize(self, text: str, second: str | None = None) -> Encoded:
        """A text, or a pair of texts, as the model reads it. Control tokens in it are ordinary text.

        Raises RequestError for one that is too long, with both numbers; where the options truncate, the last text is
        cut.
        """
        tokenizer, limit = self.handle.tokenizer, self.handle.limit
        around = tokenizer.complete(())
        first, end = around[0], around[-1]
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        others = [] if second is None else tokenizer.encode(second, add_special=False, parse_special=False)
        room = limit - (2 if second is None else 3)
        if len(ids) + len(others) > room:
            if not self.options.truncate:
                count = limit - room + len(ids) + len(others)
                raise RequestError(f"input: it has {count} tokens, the model reads {limit}")
            ids = ids[:room]
            others = others[: room - len(ids)]
        begin = [first, *ids, end]
        return Encoded((*begin, *(() if second is None else (*others, end))), len(begin))

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[texts, width], pooled and normalized as the checkpoint says.

        Raises RequestError for a text that is too long, and Unsupported for a cross-encoder.
        """
        if self.handle.scores_pairs:
            raise Unsupported(f"embeddings of {self.handle.name}", "it is a cross-encoder: it scores pairs of texts")
        return self.encode([self.tokenize(text) for text in _texts("input", texts)])

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        """f32[documents]: a cross-encoder's raw score of each pair, or the cosine of two embeddings.

        Raises RequestError for texts that are too long, and Unsupported for a classifier of several labels.
        """
        texts = _texts("documents", documents)
        if not self.handle.scores_pairs:
            rows = self.embed([query, *texts]).astype(np.float64)
            rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
            return (rows[1:] @ rows[0]).astype(np.float32)
        if self.handle.config.labels != 1:
            raise Unsupported(
                f"scores of {self.handle.name}", f"it gives {self.handle.config.labels} labels and no score"
            )
        return self.encode([self.tokenize(query, text) for text in texts])[:, 0]

    def rerank(self, query: str, documents: Sequence[str], top: int | None = None) -> list[tuple[int, float]]:
        """The `top` best documents, by default all, as (index, score), best first; ties stay in their order."""
        scores = self.score(query, documents)
        order = np.argsort(-scores, kind="stable")[: len(scores) if top is None else top]
        return [(int(i), float(scores[i])) for i in order]

    # Passes

    def encode(self, items: Sequence[Encoded]) -> NDArray[np.float32]:
        """f32[items, columns]: embeddings, or a cross-encoder's raw scores. Texts of like length share a pass; which
        ones do does not change what a text gives beyond rounding.

        Raises RequestError for a text that is empty, too long, or holds what is no token id of the model,
        NonFiniteEmbedding by index, and DeviceError where the device cannot go on.
        """
        self._require_open()
        for place, item in enumerate(items):
            self._check(place, item)
        columns = self.handle.config.labels or self.handle.config.width
        result = np.empty((len(items), columns), np.float32)
        order = sorted(range(len(items)), key=lambda i: len(items[i].ids))
        for start in range(0, len(order), self.options.rows):
            places = order[start : start + self.options.rows]
            result[places] = self._pass([items[i] for i in places])
        wrong = np.flatnonzero(~np.isfinite(result).all(axis=1))
        if wrong.size:
            raise NonFiniteEmbedding(f"what the model gives for input {wrong[0]} holds NaN or infinity")
        return result

    def _check(self, place: int, item: Encoded) -> None:
        limit, vocabulary = self.handle.limit, self.handle.config.vocabulary
        if not 1 <= len(item.ids) <= limit:
            raise RequestError(f"input[{place}] has {len(item.ids)} tokens: 1 to {limit}")
        for token in item.ids:
            if not 0 <= token < vocabulary:
                raise RequestError(f"input[{place}] holds {token}: token ids are 0 to {vocabulary - 1}")

    def _pass(self, items: Sequence[Encoded]) -> NDArray[Any]:
        longest = max(len(item.ids) for item in items)
        shape = min(s for s in self.shapes if s.rows >= len(items) and s.tokens >= longest)
        tokens = np.zeros((shape.rows, shape.tokens), np.int32)
        types = np.zeros((shape.rows, shape.tokens), np.int32)
        last = np.full(shape.rows, -1, np.int32)
        for row, item in enumerate(items):
            tokens[row, : len(item.ids)] = item.ids
            types[row, item.second : len(item.ids)] = 1
            last[row] = len(item.ids) - 1
        inputs = {TOKEN: tokens, LAST: last, TYPES: types}
        outputs = self._executor.step(self._executable, self._entry(shape), inputs)
        return outputs[SCORES if self.handle.scores_pairs else EMBEDDING][: len(items)]

    def _entry(self, shape: TextShape) -> EntryId:
        if shape not in self._entries:
            graph = trace_texts(self.handle, shape, self.options.activations)
            program = compile(graph, self._executor.target_set[0], self.options.compile)
            entry = self._executor.add_entry(self._executable, program)
            self._executor.prepare(self._executable, entry)
            self._entries[shape] = entry
        return self._entries[shape]

    # Life

    def _require_open(self) -> None:
        if self._closed:
            raise BindError("the encoder is closed")

    def close(self) -> None:
        """Give weights and entries back; idempotent. The executor stays open."""
        if self._closed:
            return
        self._closed = True
        try:
            self._executor.unload(self._executable)
        except Poisoned:
            # Nothing can be given back to a device that is lost.
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _texts(name: str, texts: object) -> list[str]:
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise RequestError(f"{name}: a list of texts")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise RequestError(f"{name}[{place}] is {text!r}: a text")
    return list(texts)

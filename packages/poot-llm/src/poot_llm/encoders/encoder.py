"""`Encoder`: embeddings of texts and scores of pairs, through the passes of a driver."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile import CompileOptions
from poot_executor.dtype import BF16, F16, F32, DType
from poot_executor.errors import SettingsError
from poot_executor.executor import Executor
from poot_llm.blocks.text_pass import TextShape
from poot_llm.driver import Driver, DriverOptions, Encoded, NonFiniteEmbedding
from poot_llm.encoders.ranking import Reading, ranked
from poot_llm.encoders.reading import TextReader
from poot_llm.models.pooling import Pooling
from poot_llm.registry import ModelHandle

__all__ = ["Encoded", "Encoder", "EncoderOptions", "NonFiniteEmbedding", "TextEncoder"]


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

    @property
    def driver(self) -> DriverOptions:
        """A driver's."""
        return DriverOptions(encode_rows=self.rows, activations=self.activations, compile=self.compile)


class TextEncoder:
    """Texts in, numbers out, over a driver that is open: reads texts, prepares the passes that they take, runs them.
    Calls come from the driver's thread.
    """

    def __init__(self, driver: Driver, *, truncate: bool = False, pooling: Pooling | None = None) -> None:
        """With `truncate` a text beyond the limit is cut there; `pooling` takes the place of the checkpoint's."""
        self.driver = driver
        self.handle = driver.handle
        self.reader = TextReader(driver.handle, driver.encode_limit, truncate)
        self._pooling = pooling

    def prepare(self, lengths: Iterable[int] | None = None) -> None:
        """Compile the passes of texts of so many tokens, by default all: `encode` prepares what it lacks. Raises as
        `Driver.prepare_encode` does.
        """
        self.driver.prepare_encode(lengths, self._pooling)

    def tokenize(self, text: str, second: str | None = None) -> Encoded:
        """A text, or a pair of texts, as the model reads it. Raises as `TextReader.read` does."""
        return self.reader.read(text, second)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """f32[texts, width], pooled and normalized as the checkpoint says.

        Raises RequestError for a text that is too long, and Unsupported for a cross-encoder.
        """
        if self._pooling is None:
            self.reader.require_embeddings()
        return self.encode(self.reader.texts(texts))

    def score(self, query: str, documents: Sequence[str]) -> NDArray[np.float32]:
        """f32[documents]: a cross-encoder's raw scores of the pairs, or cosines of embeddings. Raises as `Reading.of`
        does.
        """
        reading = Reading.of(self.reader, query, documents)
        return reading.scores(self.encode(reading.items))

    def rerank(self, query: str, documents: Sequence[str], top: int | None = None) -> list[tuple[int, float]]:
        """The `top` best documents, by default all, as (index, score), best first; ties stay in their order."""
        return ranked(self.score(query, documents), top)

    def encode(self, items: Sequence[Encoded]) -> NDArray[np.float32]:
        """f32[items, columns]: as `Driver.encode`, whose passes are prepared first."""
        self.driver.prepare_encode([len(item.ids) for item in items], self._pooling)
        return self.driver.encode(items, self._pooling)


class Encoder(TextEncoder):
    """A `TextEncoder` with a driver of its own."""

    def __init__(self, handle: ModelHandle, executor: Executor, options: EncoderOptions | None = None) -> None:
        """Load the weights. Nothing is compiled or uploaded yet. Raises as `Driver` does."""
        self.options = EncoderOptions() if options is None else options
        super().__init__(Driver(handle, executor, self.options.driver), truncate=self.options.truncate)

    @property
    def shapes(self) -> tuple[TextShape, ...]:
        """Every shape that a pass may have."""
        return self.driver.encode_shapes

    # Life

    def close(self) -> None:
        """Close the driver; idempotent. The executor stays open."""
        self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""The part of a driver that reads whole texts: what it says, what it prepares, what it gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from poot_llm.blocks.text_pass import TextShape
from poot_llm.driver.encoding import Encoded, Encoding
from poot_llm.models.pooling import Pooling


class WholeTexts(ABC):
    """`encode` and what goes with it, of a model that generates too or of one that does not."""

    _encoding: Encoding

    @abstractmethod
    def _require_open(self) -> None:
        """Raises BindError once it is closed."""

    @property
    def encode_limit(self) -> int:
        """The most tokens of a text that `encode` takes, with those that go around it."""
        return self._encoding.limit

    @property
    def encode_shapes(self) -> tuple[TextShape, ...]:
        """Every pass that `prepare_encode` can prepare for one way of pooling."""
        return self._encoding.shapes

    def prepare_encode(self, lengths: Iterable[int] | None = None, pooling: Pooling | None = None) -> None:
        """Compile the passes that texts of so many tokens take together; None compiles every one. `encode` runs those
        that are prepared, and compiles nothing.

        Raises Unsupported for a family that gives no hidden states, RequestError for a length that is none,
        CompileLimit by name, and OutOfMemory where the device is too small.
        """
        self._require_open()
        self._encoding.prepare(lengths, pooling)

    def check_encode(self, items: Iterable[Encoded]) -> None:
        """Raises the RequestError that `encode` would raise."""
        self._require_open()
        self._encoding.check(items)

    def encode(self, items: Items[Encoded], pooling: Pooling | None = None) -> NDArray[np.float32]:
        """f32[items, width]: each text's embedding, pooled as the checkpoint says, or as `pooling` does. Of a
        cross-encoder without `pooling` f32[items, labels], the raw scores. Texts of like length share a pass; which
        ones do does not change what a text gives beyond rounding.

        Raises BindError where no pass is prepared that holds one, RequestError for a text that is empty, too long, a
        pair that the model does not read, or holds what is no token id, NonFiniteEmbedding by index, and DeviceError
        where a pass fails.
        """
        self._require_open()
        return self._encoding.encode(items, pooling)

    def hidden_states(self, items: Items[Encoded]) -> list[NDArray[np.float32]]:
        """f32[tokens, width] of each text: what the model's head would read, of every token. Prepared with
        `Pooling(Pool.TOKENS)`. Raises as `encode` does, for what is not finite apart.
        """
        self._require_open()
        return self._encoding.hidden_states(items)

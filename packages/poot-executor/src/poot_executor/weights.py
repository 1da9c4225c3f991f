"""What the engine asks of a checkpoint: stored tensors by key, and a map from typed roles to keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from poot_executor.formats import Format


@dataclass(frozen=True, slots=True, order=True)
class WeightKey:
    """A weight's typed role: `layer` is None for a weight of the whole model. `rope_frequencies`-like tables have roles
    too."""

    layer: int | None
    role: str

    def __str__(self) -> str:
        return self.role if self.layer is None else f"{self.layer}.{self.role}"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored: logical `shape` (row-major, the last axis in blocks), `data` its bytes, a read-only
    memory-mapped view."""

    name: str
    format: Format
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class WeightStore(Protocol):
    """A checkpoint's tensors. Bytes stay as stored and memory-mapped; nothing is widened."""

    def names(self) -> tuple[str, ...]:
        """Every tensor's name."""
        ...

    def tensor(self, name: str) -> StoredTensor:
        """Raises WeightError where there is no such tensor."""
        ...


WeightMap = Mapping[WeightKey, str]
"""Role to store key. Two roles may name one key (a tied head); a const whose role is absent is unbound."""

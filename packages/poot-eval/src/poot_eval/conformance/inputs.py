"""Random inputs for graphs, never zeros alone: by dtype, range and weight format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType, round_bf16
from poot_executor.formats import Format
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import InputKey, SlotKey, SlotKind, StateKey
from poot_executor.graph.traced import Traced
from poot_executor.weights import WeightKey

Array = NDArray[Any]
Rng = np.random.Generator

SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (2, 3, 67), (129,))
"""Awkward shapes: a scalar, primes, one past a power of two, a last axis that fills no word."""


def floats(rng: Rng, shape: tuple[int, ...], dtype: DType, low: float = -4.0, high: float = 4.0) -> Array:
    """Uniform values of a float dtype, as numpy holds them."""
    values = rng.uniform(low, high, shape).astype(np.float32)
    return round_bf16(values).reshape(shape) if dtype is DType.BF16 else values.astype(dtype.numpy)


def integers(rng: Rng, shape: tuple[int, ...], dtype: DType, low: int | None = None, high: int | None = None) -> Array:
    """Uniform integers of [low, high], the dtype's whole range unless given."""
    info = np.iinfo(dtype.numpy)
    first = info.min if low is None else max(low, info.min)
    last = info.max if high is None else min(high, info.max)
    return np.asarray(rng.integers(first, last, shape, dtype=np.int64, endpoint=True)).astype(dtype.numpy)


def anything(rng: Rng, shape: tuple[int, ...], dtype: DType) -> Array:
    """Values of any dtype: what movement is tried on."""
    if dtype is DType.BOOL:
        return np.asarray(rng.integers(0, 2, shape)).astype(np.bool_)
    return floats(rng, shape, dtype) if dtype.is_float else integers(rng, shape, dtype)


def packed_rows(rng: Rng, format: Format, rows: int, columns: int) -> Array:
    """A weight as the oracle takes it: f32, f16 or bf16[rows, columns], or u8[rows, row_bytes]
    whose blocks have random quants and scales that are near 1 / the largest quant."""
    if format.dtype is not None:
        return floats(rng, (rows, columns), format.dtype, -1.0, 1.0)
    blocks = rng.integers(0, 256, (rows * columns // format.columns, format.nbytes), dtype=np.uint8)
    size = {"q4": 1 / 8, "q5": 1 / 16, "q8": 1 / 127}[format.name[:2]]
    for field in format.fields:
        if field.name in ("scale", "minimum"):
            scale = size if field.name == "scale" else 1.0
            half = (rng.uniform(0.25, 1.0, len(blocks)) * scale * rng.choice([-1, 1], len(blocks))).astype("<f2")
            blocks[:, field.offset : field.offset + 2] = half.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


class Recorder:
    """A builder beside the inputs that its graph is to be run with."""

    def __init__(self, name: str, rng: Rng) -> None:
        self.builder = Builder(name)
        self.rng = rng
        self.inputs: dict[InputKey, Array] = {}

    def slot(self, value: Array, dtype: DType) -> Traced:
        """A new per-step input that holds `value`."""
        key = SlotKey(SlotKind.INPUT, f"x{len(self.inputs)}")
        self.inputs[key] = value
        return self.builder.slot(key, TensorType(value.shape, dtype))

    def floats(self, *shape: int, dtype: DType = DType.F32, low: float = -4.0, high: float = 4.0) -> Traced:
        """A new input of random floats."""
        return self.slot(floats(self.rng, shape, dtype, low, high), dtype)

    def indices(self, shape: tuple[int, ...], limit: int) -> Traced:
        """A new input i32 of random indices in [0, limit)."""
        return self.slot(integers(self.rng, shape, DType.I32, 0, limit - 1), DType.I32)

    def weight(self, format: Format, rows: int, columns: int) -> Traced:
        """A new stored weight [rows, columns] in a format."""
        value = packed_rows(self.rng, format, rows, columns)
        key = WeightKey(None, f"w{len(self.inputs)}")
        self.inputs[key] = value
        return self.builder.weight(key, TensorType(value.shape, format.dtype or DType.U8))

    def state(self, role: str, value: Array, dtype: DType) -> tuple[StateKey, Traced]:
        """A state that holds `value` before the step."""
        key = StateKey(None, role)
        self.inputs[key] = value
        return key, self.builder.state(key, TensorType(value.shape, dtype))

    def output(self, x: Traced) -> None:
        """Name the next output."""
        self.builder.output(f"y{x.value.id}", x)

    def given(self) -> Mapping[InputKey, Array]:
        """The inputs to bind."""
        return self.inputs

"""Every primitive that is not elementwise, at every dtype that it takes, over awkward shapes."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.conformance.elementwise import _steps
from poot_eval.conformance.inputs import Recorder, Rng, anything, floats, integers
from poot_eval.conformance.matching import assert_device_matches
from poot_executor.device import Device
from poot_executor.dtype import BF16, BOOL, F16, F32, I32, U32, DType
from poot_executor.formats import FORMATS
from poot_executor.graph.infer import FLOATS, NUMBERS

REDUCED: tuple[tuple[tuple[int, ...], int], ...] = (
    ((1,), 0), ((257,), 0), ((5, 64), 1), ((5, 67), 0), ((3, 7, 33), 1), ((2, 1000), 1), ((4, 6, 1), 2),
)  # fmt: skip
"""Shapes and the axis that goes away: rows of one element, whole tensors, columns, middles."""

MATMULS = (((), 1, 1, 1), ((), 3, 7, 5), ((2,), 1, 64, 9), ((2, 3), 4, 33, 17), ((), 19, 130, 34))
"""Leading dimensions, m, k, n."""

WORDS = {F32: 1, I32: 1, U32: 1, BOOL: 1, F16: 2, BF16: 2, DType.I8: 4, DType.U8: 4}
"""Elements a word: rows that a scatter replaces are whole words."""


class ReductionConformance:
    """Reductions and selections along an axis."""

    @pytest.mark.parametrize("dtype", list(NUMBERS), ids=str)
    @pytest.mark.parametrize("op", ["sum", "reduce_max", "argmax"])
    def test_reduction(self, device: Device, rng: Rng, op: str, dtype: DType) -> None:
        """Each shape and axis; argmax among many equal values."""
        g = Recorder(op, rng)
        for shape, axis in REDUCED:
            value = _steps(rng, shape, dtype) if op == "argmax" else anything(rng, shape, dtype)
            g.output(g.builder.apply(op, g.slot(value, dtype), axis=axis))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("dtype", list(NUMBERS), ids=str)
    def test_arg_top_k(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Ties go to the lowest index; k from one to all."""
        g = Recorder("arg_top_k", rng)
        for shape, k in (((1,), 1), ((2, 7), 7), ((3, 67), 5), ((130,), 20)):
            for value in (_steps(rng, shape, dtype), anything(rng, shape, dtype)):
                g.output(g.builder.apply("arg_top_k", g.slot(value, dtype), k=k))
        assert_device_matches(device, g.builder.build(), g.given())

    def test_nan_is_never_chosen(self, device: Device, rng: Rng) -> None:
        """NaN counts as -inf wherever values are ranked."""
        g = Recorder("ranked", rng)
        values = floats(rng, (4, 50), F32)
        values[rng.random((4, 50)) < 0.3] = np.nan
        values[3] = np.nan
        x = g.slot(values, F32)
        g.output(g.builder.apply("argmax", x, axis=1))
        g.output(g.builder.apply("reduce_max", x, axis=1))
        g.output(g.builder.apply("arg_top_k", x, k=8))
        assert_device_matches(device, g.builder.build(), g.given())


class ContractionConformance:
    """Contractions of two activations."""

    @pytest.mark.parametrize("right", list(FLOATS), ids=str)
    @pytest.mark.parametrize("left", list(FLOATS), ids=str)
    def test_matmul(self, device: Device, rng: Rng, left: DType, right: DType) -> None:
        """Batched, in every pair of dtypes."""
        g = Recorder("matmul", rng)
        for lead, m, k, n in MATMULS:
            x, w = g.floats(*lead, m, k, dtype=left), g.floats(*lead, k, n, dtype=right)
            g.output(g.builder.apply("matmul", x, w, dtype=F32))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("dtype", list(FLOATS), ids=str)
    def test_indexed_matmul(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Each row against its own matrix."""
        g = Recorder("indexed_matmul", rng)
        for rows, k, n, experts in ((1, 1, 1, 1), (7, 33, 5, 3), (17, 64, 67, 4)):
            x, w = g.floats(rows, k), g.floats(experts, k, n, dtype=dtype)
            g.output(g.builder.apply("indexed_matmul", x, w, g.indices((rows,), experts)))
        assert_device_matches(device, g.builder.build(), g.given())


class MovementConformance:
    """Movement, sources and indexed movement, bit for bit, at every dtype."""

    @pytest.mark.parametrize("dtype", list(DType), ids=str)
    def test_movement(self, device: Device, rng: Rng, dtype: DType) -> None:
        """reshape, transpose, broadcast, slice, concat and pad."""
        g = Recorder("movement", rng)
        b = g.builder
        x = g.slot(anything(rng, (3, 7, 10), dtype), dtype)
        y = g.slot(anything(rng, (3, 2, 10), dtype), dtype)
        one = g.slot(anything(rng, (1, 5, 1), dtype), dtype)
        value = True if dtype is BOOL else 3
        g.output(b.apply("reshape", x, shape=(2, 105)))
        g.output(b.apply("reshape", one, shape=(5,)))
        g.output(b.apply("transpose", x, permutation=(2, 0, 1)))
        g.output(b.apply("transpose", x, permutation=(0, 2, 1)))
        g.output(b.apply("broadcast", one, shape=(3, 5, 9)))
        g.output(b.apply("slice", x, start=(0, 1, 3), stop=(3, 7, 10), step=(2, 3, 1)))
        g.output(b.apply("concat", x, y, x, axis=1))
        g.output(b.apply("pad", x, low=(0, 1, 2), high=(1, 0, 3), value=value))
        assert_device_matches(device, b.build(), g.given())

    @pytest.mark.parametrize("dtype", [I32, U32, F32], ids=str)
    def test_iota(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Counting along each axis, as a result and within one."""
        g = Recorder("iota", rng)
        for axis in range(3):
            line = g.builder.apply("iota", shape=(3, 5, 67), axis=axis, dtype=dtype)
            g.output(line)
            g.output(g.builder.apply("add", line, g.slot(anything(rng, (3, 5, 67), dtype), dtype)))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("dtype", list(DType), ids=str)
    def test_gather(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Rows by index, in any order and more than once."""
        g = Recorder("gather", rng)
        for data, index in (((9,), (4,)), ((13, 7), (3, 5)), ((5, 3, 6), (1,)), ((1, 8), (2,))):
            g.output(g.builder.apply("gather", g.slot(anything(rng, data, dtype), dtype), g.indices(index, data[0])))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("dtype", list(DType), ids=str)
    def test_scatter_update(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Rows replaced, some dropped by a negative index."""
        g = Recorder("scatter_update", rng)
        for rows, columns, count in ((1, 1, 1), (9, 3, 4), (33, 17, 33)):
            width = columns * WORDS[dtype]
            index = rng.permutation(rows)[:count].astype(np.int32)
            index[rng.random(count) < 0.25] = -1
            data, updates = (anything(rng, (n, width), dtype) for n in (rows, count))
            traced = g.slot(data, dtype), g.slot(index, I32), g.slot(updates, dtype)
            g.output(g.builder.apply("scatter_update", *traced))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("dtype", list(DType), ids=str)
    def test_dynamic_update_slice(self, device: Device, rng: Rng, dtype: DType) -> None:
        """A block replaced from a start that an input holds, at both ends and between."""
        g = Recorder("dynamic_update_slice", rng)
        width = 3 * WORDS[dtype]
        for start in (0, 4, 7):
            data = g.slot(anything(rng, (2, 9, width), dtype), dtype)
            update = g.slot(anything(rng, (1, 2, width), dtype), dtype)
            place = g.slot(np.asarray(start, np.int32), I32)
            g.output(g.builder.apply("dynamic_update_slice", data, update, place, axis=1))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("name", [f.name for f in FORMATS.values() if f.is_packed])
    def test_packed_dequant(self, device: Device, rng: Rng, name: str) -> None:
        """A whole weight decoded, exactly."""
        g = Recorder("packed_dequant", rng)
        for rows, columns in ((1, 32), (7, 96)):
            g.output(g.builder.apply("packed_dequant", g.weight(FORMATS[name], rows, columns), format=name))
        match = assert_device_matches(device, g.builder.build(), g.given())
        assert not any(match.bounds.output(name).any() for name in match.oracle.outputs)


class RandomConformance:
    """Random bits, which are the same on every device."""

    def test_random_bits(self, device: Device, rng: Rng) -> None:
        """Threefry words by seed, position and column."""
        g = Recorder("random_bits", rng)
        for rows, count in ((1, 1), (3, 67), (2, 300)):
            seed = g.slot(integers(rng, (rows, 2), U32), U32)
            g.output(g.builder.apply("random_bits", seed, g.slot(integers(rng, (rows,), I32, 0), I32), count=count))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("vocabulary", [1, 67, 1030])
    def test_sample_token(self, device: Device, rng: Rng, vocabulary: int) -> None:
        """Rows that differ in every parameter; greedy ones, and ones that keep everything."""
        rows = 12
        g = Recorder("sample_token", rng)
        settings = np.stack(
            [1 / rng.uniform(0.3, 1.5, rows), rng.choice([0.0, 0.05, 0.3], rows),
             rng.choice([0.3, 0.9, 1.0], rows), rng.choice([0.0, 1.0, 1.0], rows)], axis=1,
        ).astype(np.float32)  # fmt: skip
        operands = (
            g.floats(rows, vocabulary, low=-8, high=8),
            g.slot(integers(rng, (rows, 2), U32), U32),
            g.slot(integers(rng, (rows,), I32, 0, 5000), I32),
            g.slot(settings, F32),
            g.slot(rng.choice(np.array([0, 1, 5, 40], np.int32), rows), I32),
        )
        g.output(g.builder.apply("sample_token", *operands, rule="sampled"))
        assert_device_matches(device, g.builder.build(), g.given(), undecided=0.1)

"""The kernels that put stored weights into their layout, against the layout's own definition, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.kernel_ir import run_kernel
from poot_executor.compile import Caps
from poot_executor.compile.reorder import reorder_steps
from poot_executor.errors import Unsupported
from poot_executor.formats import FORMATS
from poot_executor.layout import layout_for


def reordered(layout, stored, staging_bytes, caps):
    """What a device does at upload: each run of rows staged, then moved by its kernel."""
    device = np.full(layout.nbytes // 4, 0xDEADBEEF, np.uint32)
    raw = stored.reshape(-1)
    steps = list(reorder_steps(layout, staging_bytes, caps))
    for step in steps:
        assert step.staged_bytes <= -(-staging_bytes // 4) * 4
        staging = np.full(step.staged_bytes, 0xA5, np.uint8)
        staging[: step.nbytes] = raw[step.first_byte : step.first_byte + step.nbytes]
        part = device[step.part.offset // 4 : (step.part.offset + step.part.nbytes) // 4]
        faults = run_kernel(step.kernel, [staging.view(np.uint32), part], step.groups)
        assert faults == []
    return device, len(steps)


def whole_parts(layout):
    """Which device words belong to a part: those between parts are never written."""
    inside = np.zeros(layout.nbytes // 4, bool)
    for part in layout.parts:
        inside[part.offset // 4 : (part.offset + part.nbytes) // 4] = True
    return inside


@pytest.mark.parametrize("tile_rows", [1, 4, 8])
@pytest.mark.parametrize("name", FORMATS)
def test_every_layout_is_made_from_every_run_of_rows(rng, name, tile_rows):
    """Odd and even blocks a row, rows that do not fill tiles, parts, and staging for one tile, some and all."""
    format_ = FORMATS[name]
    for blocks, rows, in_parts in ((1, 1, False), (2, 5, False), (3, 13, True), (4, 17, True)):
        columns = blocks * format_.columns * (2 if format_.dtype is not None else 1)
        tile_bytes = 4 * tile_rows * layout_for(
            format_, (tile_rows, columns), tile_rows=tile_rows, max_bytes=None, alignment=4
        ).row_words  # fmt: skip
        most = 2 * tile_bytes if in_parts else None
        layout = layout_for(format_, (rows, columns), tile_rows=tile_rows, max_bytes=most, alignment=16)
        assert (len(layout.parts) > 1) == (in_parts and rows > 2 * tile_rows)
        stored = rng.integers(0, 256, (rows, format_.row_bytes(columns)), np.uint8)
        expected, inside = layout.reorder(stored), whole_parts(layout)
        tile = format_.row_bytes(columns) * tile_rows
        counts = []
        for staging in (tile, 2 * tile + 1, stored.size):
            device, steps = reordered(layout, stored, staging, Caps(tile_rows=tile_rows, group_threads=16))
            assert np.array_equal(device[inside], expected[inside]), (blocks, rows, staging)
            assert (device[~inside] == 0xDEADBEEF).all()
            counts.append(steps)
        assert counts[0] >= counts[1] >= counts[2] == len(layout.parts)


def test_a_wide_grid_wraps(rng):
    format_ = FORMATS["bf16"]
    layout = layout_for(format_, (9, 64), tile_rows=4, max_bytes=None, alignment=4)
    stored = rng.integers(0, 256, (9, 128), np.uint8)
    device, _ = reordered(layout, stored, 1 << 20, Caps(tile_rows=4, group_threads=8, max_groups=(7, 65535, 1)))
    assert np.array_equal(device, layout.reorder(stored))


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4), ()], ids=str)
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_dense_tensors_of_any_rank(rng, name, shape):
    """Vectors keep plain rows; odd halves end in a word of which one half is zero."""
    format_ = FORMATS[name]
    layout = layout_for(format_, shape, tile_rows=4, max_bytes=None, alignment=4)
    stored = rng.integers(0, 256, int(np.prod(shape)) * format_.nbytes, np.uint8)
    device, _ = reordered(layout, stored, 1 << 20, Caps(tile_rows=4, group_threads=8))
    assert np.array_equal(device, layout.reorder(stored))


def test_rows_that_staging_cannot_hold():
    layout = layout_for(FORMATS["f32"], (8, 64), tile_rows=4, max_bytes=None, alignment=4)
    with pytest.raises(Unsupported, match="4 rows of 256 bytes exceed the staging buffer"):
        list(reorder_steps(layout, 1000, Caps(tile_rows=4)))


def test_equal_runs_share_a_kernel():
    layout = layout_for(FORMATS["q8_0"], (64, 64), tile_rows=4, max_bytes=None, alignment=4)
    steps = list(reorder_steps(layout, 68 * 16, Caps(tile_rows=4)))
    again = list(reorder_steps(layout, 68 * 16, Caps(tile_rows=4)))
    assert len(steps) == 4
    assert [s.kernel.digest() for s in steps] == [s.kernel.digest() for s in again]

"""Movement, sources and indexed movement, element by element."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_executor.dtype import BF16, BOOL, F16, F32, I8, I32, U8, U32
from poot_executor.errors import GraphError
from poot_executor.formats import FORMATS
from poot_executor.graph.graph import TensorType
from poot_executor.graph.ops import OPS

DTYPES = (F32, F16, BF16, I32, U32, I8, U8, BOOL)
shapes = st.lists(st.integers(1, 5), max_size=4).map(tuple)


def move(op, x, **params):
    type = TensorType(x.shape, I32)
    out = OPS[op].infer([type], params)
    result = OPS[op].evaluate([x], params, out)
    assert result.shape == out.shape
    return result


def counted(shape):
    return np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)


@given(shapes, st.data())
def test_transpose_moves_axis_i_to_where_it_is_named(shape, data):
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    x = counted(shape)
    result = move("transpose", x, permutation=order)
    for place in np.ndindex(*shape):
        assert result[tuple(place[i] for i in order)] == x[place]


@given(shapes, st.data())
def test_slices_take_every_step_th(shape, data):
    bounds = []
    for dim in shape:
        low = data.draw(st.integers(0, dim - 1))
        bounds.append((low, data.draw(st.integers(low + 1, dim)), data.draw(st.integers(1, 6))))
    start, stop, step = (tuple(b[i] for b in bounds) for i in range(3))
    x = counted(shape)
    result = move("slice", x, start=start, stop=stop, step=step)
    assert result.shape == tuple(len(range(*b)) for b in bounds)
    for place in np.ndindex(*result.shape):
        assert result[place] == x[tuple(a + i * s for a, i, s in zip(start, place, step, strict=True))]


@given(shapes, st.data())
def test_broadcast_repeats_ones(shape, data):
    small = tuple(data.draw(st.sampled_from([1, d])) for d in shape)
    x = counted(small)
    result = move("broadcast", x, shape=shape)
    for place in np.ndindex(*shape):
        assert result[place] == x[tuple(0 if s == 1 else i for i, s in zip(place, small, strict=True))]


@given(shapes, st.data())
def test_pad_surrounds(shape, data):
    low = tuple(data.draw(st.integers(0, 2)) for _ in shape)
    high = tuple(data.draw(st.integers(0, 2)) for _ in shape)
    x = counted(shape)
    result = move("pad", x, low=low, high=high, value=-7)
    for place in np.ndindex(*result.shape):
        inner = tuple(i - a for i, a in zip(place, low, strict=True))
        inside = all(0 <= i < d for i, d in zip(inner, shape, strict=True))
        assert result[place] == (x[inner] if inside else -7)


@given(shapes.filter(bool), st.data())
def test_iota_counts_along_its_axis(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    for dtype in (I32, U32, F32):
        params = {"shape": shape, "axis": axis, "dtype": dtype}
        result = OPS["iota"].evaluate([], params, OPS["iota"].infer([], params))
        assert all(result[place] == place[axis] for place in np.ndindex(*shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_movement_keeps_bits_of_every_dtype(dtype, run, draw):
    x = draw((2, 3, 4), dtype)
    flat = x.reshape(-1).tolist()
    assert run("reshape", (x, dtype), shape=(4, 6)).reshape(-1).tolist() == flat
    joined = run("concat", (x, dtype), (x[:, :1], dtype), (x, dtype), axis=1)
    assert joined.tolist() == [row[0:3] + row[0:1] + row[0:3] for row in x.tolist()]
    rows = run("gather", (x, dtype), ([[1, 0], [0, 0], [1, 1]], I32))
    assert rows.tolist() == [[x[i].tolist() for i in pair] for pair in [[1, 0], [0, 0], [1, 1]]]


def test_pad_values_are_rounded_to_the_dtype(run):
    assert run("pad", ([1.0], BF16), low=(1,), high=(0,), value=257.0).tolist() == [256.0, 1.0]
    assert run("pad", ([True], BOOL), low=(1,), high=(0,), value=False).tolist() == [False, True]
    with pytest.raises(GraphError, match=r"pad\(i32\[1\].*0\.5 is not an integer"):
        run("pad", ([1], I32), low=(1,), high=(0,), value=0.5)


def test_gather_never_clamps(run):
    for index in ([3], [-1]):
        with pytest.raises(GraphError, match=rf"gather: index {index[0]} at \[0\] is outside \[0, 3\)"):
            run("gather", ([1.0, 2.0, 3.0], F32), (index, I32))


def test_scatter_update_drops_negative_rows(run):
    data = [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    updates = [[7.0, 7.5], [8.0, 8.5], [9.0, 9.5]]
    result = run("scatter_update", (data, F32), ([2, -1, 0], I32), (updates, F32))
    assert result.tolist() == [[9.0, 9.5], [1.0, 1.0], [7.0, 7.5]]
    with pytest.raises(GraphError, match="index 3 at"):
        run("scatter_update", (data, F32), ([2, -1, 3], I32), (updates, F32))
    with pytest.raises(GraphError, match="index 2 occurs twice"):
        run("scatter_update", (data, F32), ([2, -1, 2], I32), (updates, F32))
    twice_dropped = run("scatter_update", (data, F32), ([-1, -1, -5], I32), (updates, F32))
    assert twice_dropped.tolist() == data


def test_dynamic_update_slice_starts_where_it_is_told(run):
    data = np.zeros((3, 4), np.int32)
    update = np.array([[1, 2], [3, 4]], np.int32)
    result = run("dynamic_update_slice", (data, I32), (update, I32), (np.int32(2), I32), axis=1)
    assert result.tolist() == [[0, 0, 1, 2], [0, 0, 3, 4], [0, 0, 0, 0]]
    for start in (3, -1):
        with pytest.raises(GraphError, match=rf"start {start} is outside \[0, 2\]"):
            run("dynamic_update_slice", (data, I32), (update, I32), (np.int32(start), I32), axis=1)


@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.is_packed])
def test_packed_dequant_decodes_rows(name, run, rng):
    format = FORMATS[name]
    raw = rng.integers(0, 256, (2, 3, format.nbytes * 2), dtype=np.uint8)
    for block in range(2):  # finite scales and minimums
        for offset in (0, 2) if name.endswith("_1") else (0,):
            half = rng.standard_normal((2, 3)).astype(np.float16).view(np.uint8).reshape(2, 3, 2)
            at = block * format.nbytes + offset
            raw[..., at : at + 2] = half
    result = run("packed_dequant", (raw, U8), format=name)
    assert result.shape == (2, 3, 2 * format.columns)
    assert np.array_equal(result[1, 2], format.decode(raw[1, 2]))
    assert np.isfinite(result).all()

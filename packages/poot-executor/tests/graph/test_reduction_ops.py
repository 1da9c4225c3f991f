"""Reductions and contractions against exact sums."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_executor.dtype import BF16, F16, F32, I32, U32
from poot_executor.errors import GraphError
from poot_executor.graph.graph import TensorType
from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.ops import OPS

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@given(shapes, st.data())
def test_reductions_agree_with_loops(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    seed = data.draw(st.integers(0, 2**32 - 1))
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    x[np.random.default_rng(seed + 1).random(shape) < 0.2] = 0.5  # ties
    type = TensorType(shape, F32)
    rest = [n for i, n in enumerate(shape) if i != axis]
    for op, formula in {
        "sum": lambda line: np.float32(math.fsum(line)),
        "reduce_max": lambda line: np.float32(max(line)),
        "argmax": lambda line: line.index(max(line)),
    }.items():
        out = OPS[op].infer([type], {"axis": axis})
        assert list(out.shape) == rest
        result = OPS[op].evaluate([x], {"axis": axis}, out)
        for place in np.ndindex(*rest):
            line = [float(x[(*place[:axis], i, *place[axis:])]) for i in range(shape[axis])]
            assert result[place] == formula(line)


def test_sums_are_in_ascending_order_in_f32(run):
    x = [1e8, 1.0, -1e8, 1.0]
    assert run("sum", (x, F32), axis=0) == 2.0
    # 1e8 + 1 is 1e8 in f32, so the first 1 is lost and the last is not.
    assert run("sum", (x, F32), axis=0, how=Arithmetic(precision="f32")) == 1.0
    assert run("sum", (x[::-1], F32), axis=0, how=Arithmetic(precision="f32")) == 0.0


def test_sums_of_narrow_floats_are_rounded_at_the_end(run):
    assert run("sum", (np.full(300, 1.0), BF16), axis=0) == 300.0
    assert run("sum", (np.full(301, 1.0), BF16), axis=0) == 300.0
    assert run("sum", (np.full(2049, 1.0), F16), axis=0) == 2048.0


def test_integer_sums_wrap(run):
    assert run("sum", ([2**31 - 1, 1], I32), axis=0) == -(2**31)
    assert run("sum", ([2**32 - 1, 2], U32), axis=0) == 1


def test_nan_counts_as_minus_infinity_where_values_are_ranked(run):
    x = [[math.nan, 1, 3, 3], [math.nan, -math.inf, math.nan, -math.inf]]
    assert run("argmax", (x, F32), axis=1).tolist() == [2, 0]
    assert run("reduce_max", (x, F32), axis=1).tolist() == [3, -math.inf]
    assert run("arg_top_k", (x, F32), k=4).tolist() == [[2, 3, 1, 0], [0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32, U32])
def test_top_k_is_a_stable_descending_order(dtype, run, draw):
    x = draw((3, 20), dtype)
    x[:, 5:10] = x[:, :5]
    for k in (1, 7, 20):
        expected = [sorted(range(20), key=lambda i, r=row: (-r[i], i))[:k] for row in x.tolist()]
        assert run("arg_top_k", (x, dtype), k=k).tolist() == expected


@pytest.mark.parametrize("dtypes", [(F32, F32), (BF16, F32), (F16, F16), (F32, BF16), (BF16, F16)])
def test_matmul_of_mixed_floats(dtypes, run, draw):
    a, b = draw((2, 3, 17), dtypes[0]), draw((2, 17, 5), dtypes[1])
    result = run("matmul", (a, dtypes[0]), (b, dtypes[1]), dtype=F32)
    for i, m, n in np.ndindex(2, 3, 5):
        exact = math.fsum(float(x) * float(y) for x, y in zip(a[i, m], b[i, :, n], strict=True))
        assert abs(result[i, m, n] - np.float32(exact)) <= abs(np.spacing(np.float32(exact)))


def test_matmul_in_f32_adds_products_one_by_one(run, draw):
    a, b = draw((3, 9), F32), draw((9, 4), F32)
    total = np.zeros((3, 4), np.float32)
    for m, n in np.ndindex(3, 4):
        total[m, n] = a[m, 0] * b[0, n]
        for k in range(1, 9):
            total[m, n] = np.float32(total[m, n] + np.float32(a[m, k] * b[k, n]))
    assert np.array_equal(run("matmul", (a, F32), (b, F32), dtype=F32, how=Arithmetic("f32")), total)


def test_a_matmul_row_does_not_depend_on_the_others(run, draw):
    a, b = draw((6, 100), F32), draw((100, 7), F32)
    whole = run("matmul", (a, F32), (b, F32), dtype=F32)
    alone = run("matmul", (a[4:5], F32), (b[:, 2:4], F32), dtype=F32)
    assert np.array_equal(whole[4:5, 2:4], alone)


def test_blas_order_is_near(run, draw):
    a, b = draw((5, 300), F32), draw((300, 6), F32)
    fast = run("matmul", (a, F32), (b, F32), dtype=F32, how=Arithmetic(order="blas"))
    assert np.allclose(fast, run("matmul", (a, F32), (b, F32), dtype=F32), rtol=1e-5, atol=1e-5)
    total = run("sum", (a, F32), axis=1, how=Arithmetic(order="blas"))
    assert np.allclose(total, run("sum", (a, F32), axis=1), rtol=1e-5, atol=1e-5)


def test_indexed_matmul_takes_each_rows_own_matrix(run, draw):
    x, w = draw((5, 8), F32), draw((3, 8, 4), BF16)
    index = [2, 0, 2, 1, 0]
    result = run("indexed_matmul", (x, F32), (w, BF16), (index, I32))
    for row, expert in enumerate(index):
        alone = run("matmul", (x[row : row + 1], F32), (w[expert], BF16), dtype=F32)
        assert np.array_equal(result[row], alone[0])
    with pytest.raises(GraphError, match=r"indexed_matmul: index 3 at \[1\]"):
        run("indexed_matmul", (x, F32), (w, BF16), ([0, 3, 0, 0, 0], I32))

"""Matrix fragments as the interpreter defines them, against numpy."""

import numpy as np
import pytest

from poot_eval import RaceError, run_kernel
from poot_executor.dtype import BF16, F16, F32, I8, I32, U32, round_bf16
from poot_executor.errors import KernelError
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.ir import Access

READ, READ_WRITE = Access.READ, Access.READ_WRITE
SHAPES = [
    FragmentShape(8, 8, 8, F16, F32),
    FragmentShape(16, 16, 16, F16, F32),
    FragmentShape(16, 8, 16, BF16, F32),
    FragmentShape(8, 8, 8, I8, I32),
    FragmentShape(16, 16, 32, I8, I32),
]


def product(shape, major, stride_a, stride_b):
    """c = a·b + c over buffers, b in lines of one kind."""
    b = KernelBuilder("product", 64)
    x, y = b.buffer("x", U32, READ), b.buffer("y", U32, READ)
    c = b.buffer("c", shape.sums, READ_WRITE)
    with b.if_(b.group_id() == 0):
        left, right = x.load_fragment(0, shape.a, stride_a), y.load_fragment(0, shape.b, stride_b, major)
        start = c.load_fragment(0, shape.sum, shape.columns)
        c.store_fragment(0, b.fragment_mma(left, right, start), shape.columns)
    return b.finish()


def packed(values, element):
    """Rows of elements as words, with the values that they then have."""
    if element is I8:
        return values.astype(np.int8).view(np.uint32), values.astype(np.int64)
    if element is F16:
        half = values.astype(np.float16)
        return half.view(np.uint32), half.astype(np.float64)
    rounded = round_bf16(values.astype(np.float32))
    return (rounded.view(np.uint32) >> 16).astype(np.uint16).view(np.uint32), rounded.astype(np.float64)


@pytest.mark.parametrize("width", [8, 32, 64])
@pytest.mark.parametrize("major", ["row", "column"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_equals_numpy(rng, shape, major, width):
    per_word, pad = 4 // shape.element.size, 4
    lines = (shape.depth, shape.columns) if major == "row" else (shape.columns, shape.depth)
    stride_a, stride_b = shape.depth // per_word + pad, lines[1] // per_word + pad
    draw = (lambda n: rng.integers(-128, 128, n)) if shape.element is I8 else rng.standard_normal
    x, a = packed(draw((shape.rows, stride_a * per_word)), shape.element)
    y, b = packed(draw((lines[0], stride_b * per_word)), shape.element)
    a, b = a[:, : shape.depth], b[:, : lines[1]]
    b = b if major == "row" else b.T
    c = (100 * rng.standard_normal((shape.rows, shape.columns))).astype(shape.sums.numpy)
    out = c.copy().reshape(-1)
    kernel = product(shape, major, stride_a, stride_b)
    # Several subgroups store the same words, which is no race in a buffer; they load them as well, so it is here.
    found = run_kernel(
        kernel, [x.reshape(-1), y.reshape(-1), out], (1, 1, 1), subgroup_width=width, strict=True, detect_races=False
    )
    assert found == []
    if width == 64:
        assert np.array_equal(out.reshape(c.shape), (a @ b + c).astype(c.dtype))


def test_a_store_without_a_barrier_races():
    shape = SHAPES[0]
    b = KernelBuilder("racy", 16)
    y, memory = b.buffer("y", F32, READ_WRITE), b.shared("memory", F32, 64)
    memory.store_fragment(0, b.fragment_zero(shape.sum), 8)
    y[b.thread_id()] = memory[b.thread_id() + 1]
    with pytest.raises(RaceError):
        run_kernel(b.finish(), [np.zeros(16, np.float32)], (1, 1, 1), subgroup_width=16)


def test_lanes_agree_on_a_place():
    b = KernelBuilder("apart", 16)
    y, x = b.buffer("y", F32, READ_WRITE), b.buffer("x", F32, READ)
    y.store_fragment(0, x.load_fragment(b.thread_id() * 64, SHAPES[0].sum, 8), 8)
    with pytest.raises(KernelError, match="lanes of a subgroup have different places"):
        run_kernel(b.finish(), [np.zeros(64, np.float32), np.zeros(1024, np.float32)], (1, 1, 1), subgroup_width=16)


def test_subgroups_are_whole():
    b = KernelBuilder("partial", 24)
    y = b.buffer("y", F32, READ_WRITE)
    y.store_fragment(0, b.fragment_zero(SHAPES[0].sum), 8)
    with pytest.raises(KernelError, match="whole subgroups of 16"):
        run_kernel(b.finish(), [np.zeros(64, np.float32)], (1, 1, 1), subgroup_width=16)


def test_sums_of_integers_wrap():
    shape = FragmentShape(8, 8, 8, I8, I32)
    b = KernelBuilder("wraps", 8)
    y = b.buffer("y", I32, READ_WRITE)
    whole = y.load_fragment(0, shape.sum, 8)
    y.store_fragment(0, b.fragment_fma(whole, whole, whole), 8)
    values = np.full(64, 1 << 20, np.int32)
    run_kernel(b.finish(), [values], (1, 1, 1), subgroup_width=8)
    assert (values == 1 << 20).all()  # 2^40 wraps to nothing

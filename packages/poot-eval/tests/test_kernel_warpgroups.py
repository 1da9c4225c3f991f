"""Asynchronous copies and products of warpgroups, interpreted: stages in flight, and the ways to race."""

from __future__ import annotations

import numpy as np
import pytest

from poot_eval.faults import RaceError
from poot_eval.kernel_ir import run_kernel
from poot_executor.dtype import BF16, F16, F32, I32, U32
from poot_executor.errors import KernelError
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access
from poot_executor.kernel.passes import optimize
from poot_executor.kernel.warpgroups import COLUMNS, DEPTH, LINE, ROWS, THREADS, VECTOR, swizzled

READ, WRITE = Access.READ, Access.READ_WRITE


def pipeline(
    rows: int, columns: int, depth: int, *, half=BF16, stages=4, behind=1, pending=None, barrier=True, ahead=None
):
    """y[columns, rows] = b · aᵀ of halves a[rows, depth] and b[columns, depth], a warpgroup for each 64 rows."""
    threads = rows // ROWS * THREADS
    b = KernelBuilder("pipeline", threads)
    left, right = b.buffer("a", U32, READ), b.buffer("b", U32, READ)
    out = b.buffer("y", F32, WRITE)
    stage_words, chunks = (rows + columns) * LINE, depth // DEPTH
    tiles = b.shared("tiles", U32, stages * stage_words)
    ahead = stages - 1 - behind if ahead is None else ahead
    pending = ahead - 1 if pending is None else pending
    thread, warpgroup = b.thread_id(), b.thread_id() // THREADS

    def fetch(chunk):
        stage = chunk % stages * stage_words
        with b.range(thread, (rows + columns) * LINE // VECTOR, threads) as item:
            line, vector = item // (LINE // VECTOR), item % (LINE // VECTOR)
            inner = (chunk * LINE) + vector * VECTOR
            place = stage + swizzled(line, vector)
            with b.if_(line < rows):
                tiles.copy_from(place, left, line * (depth // 2) + inner)
            with b.else_():
                tiles.copy_from(place, right, (line - rows) * (depth // 2) + inner)

    for chunk in range(ahead):
        fetch(b.const(chunk, I32))
        b.copy_commit()
    zero = b.vector(*[b.const(0.0, F32)] * 4)
    sums = [b.var(zero) for _ in range(columns // COLUMNS)]
    with b.range(chunks) as chunk:
        b.copy_wait(pending)
        if barrier:
            b.barrier()
        stage = chunk % stages * stage_words
        now = tiles.multiply(
            stage + warpgroup * (ROWS * LINE), stage + rows * LINE, [s.get() for s in sums], half, behind
        )
        for var, value in zip(sums, now, strict=True):
            var.set(value)
        if not behind:
            b.barrier()
        with b.if_(chunk + ahead < chunks):
            fetch(chunk + ahead)
        b.copy_commit()
    lane = thread % 32
    row = warpgroup * ROWS + thread // 32 % 4 * 16 + lane // 4
    for n, var in enumerate(sums):
        for k in (0, 1):
            for lower in (0, 1):
                column = n * COLUMNS + lane % 4 * 2 + k
                out[column * rows + row + 8 * lower] = var.get()[2 * lower + k]
    return b.finish()


def words(values, half):
    if half is F16:
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32).reshape(-1)
    return np.ascontiguousarray((values.view(np.uint32) >> 16).astype(np.uint16)).view(np.uint32).reshape(-1)


def product_of(kernel, rng, rows, columns, depth, half=BF16):
    """What the kernel computes of small integers, and what it should."""
    a, c = (rng.integers(-8, 8, (n, depth)).astype(np.float32) for n in (rows, columns))
    out = np.full(columns * rows, np.nan, np.float32)
    run_kernel(kernel, [words(a, half), words(c, half), out], (1, 1, 1), subgroup_width=32, strict=True)
    return out.reshape(columns, rows), c @ a.T


@pytest.mark.parametrize("half", [BF16, F16], ids=str)
@pytest.mark.parametrize(("rows", "columns", "behind"), [(64, 8, 1), (128, 24, 1), (64, 16, 0)])
def test_a_product_with_stages_in_flight(rng, rows, columns, behind, half):
    kernel = pipeline(rows, columns, 384, half=half, behind=behind)
    for made in (kernel, optimize(kernel, subgroup=True, subgroup_width=32, check=True)):
        got, expected = product_of(made, rng, rows, columns, 384, half)
        np.testing.assert_array_equal(got, expected)


def test_what_was_not_waited_for_arrives_too_late(rng):
    with pytest.raises(RaceError, match="tiles"):
        product_of(pipeline(64, 8, 384, pending=2), rng, 64, 8, 384)


def test_what_nobody_waited_for_is_not_there(rng):
    b = KernelBuilder("forgotten", 32)
    x, y, tiles = b.buffer("x", U32, READ), b.buffer("y", U32, WRITE), b.shared("tiles", U32, 128)
    tiles.copy_from(b.thread_id() * VECTOR, x, b.thread_id() * VECTOR)
    b.copy_commit()
    b.copy_wait(1)
    b.barrier()
    y[b.thread_id()] = tiles[b.thread_id()]
    given, got = rng.integers(0, 1 << 32, 128, np.uint32), np.zeros(32, np.uint32)
    run_kernel(b.finish(), [given, got], (1, 1, 1), subgroup_width=32)
    assert not (got == given[:32]).any()


def test_a_copy_is_seen_behind_a_barrier(rng):
    with pytest.raises(RaceError, match="tiles"):
        product_of(pipeline(64, 8, 384, barrier=False), rng, 64, 8, 384)


def test_nobody_writes_what_a_product_may_still_read(rng):
    # A stage more in flight than there is room for: the copy meets the tile of the product before.
    with pytest.raises(RaceError, match="tiles"):
        product_of(pipeline(64, 8, 384, ahead=3, pending=2), rng, 64, 8, 384)


def test_tiles_are_whole_and_the_same_in_a_warpgroup(rng):
    def kernel(place):
        b = KernelBuilder("tiles", THREADS)
        out, tiles = b.buffer("y", F32, WRITE), b.shared("tiles", U32, 4096)
        with b.range(b.thread_id(), 4096, THREADS) as i:
            tiles[i] = b.const(0, U32)
        b.barrier()
        zero = b.vector(*[b.const(0.0, F32)] * 4)
        (total,) = tiles.multiply(place(b), 2048, [zero], BF16)
        out[b.thread_id()] = total[0]
        return b.finish()

    run_kernel(kernel(lambda b: b.group_id()), [np.zeros(128, np.float32)], (1, 1, 1), subgroup_width=32)
    for place, message in ((lambda b: b.thread_id(), "different tiles"), (lambda b: b.group_id() + 128, "multiple")):
        with pytest.raises(KernelError, match=message):
            run_kernel(kernel(place), [np.zeros(128, np.float32)], (1, 1, 1), subgroup_width=32)


def test_what_the_verifier_refuses():
    b = KernelBuilder("copies", THREADS)
    y, tiles = b.buffer("y", U32, WRITE), b.shared("tiles", U32, 512)
    tiles.copy_from(b.thread_id() * 4, y, b.thread_id() * 4)
    y[b.thread_id()] = tiles[b.thread_id()]
    with pytest.raises(KernelError, match="copies from y, which the kernel writes"):
        b.finish()
    b = KernelBuilder("few", 64)
    y, tiles = b.buffer("y", F32, WRITE), b.shared("tiles", U32, 4096)
    (total,) = tiles.multiply(0, 2048, [b.vector(*[b.const(0.0, F32)] * 4)], BF16)
    y[b.thread_id()] = total[0]
    with pytest.raises(KernelError, match="64 threads is no whole number of warpgroups"):
        b.finish()
    b = KernelBuilder("apart", 256)
    y, tiles = b.buffer("y", F32, WRITE), b.shared("tiles", U32, 4096)
    with b.if_(b.thread_id() < 128):
        (total,) = tiles.multiply(0, 2048, [b.vector(*[b.const(0.0, F32)] * 4)], BF16)
        y[b.thread_id()] = total[0]
    with pytest.raises(KernelError, match="threads of a group may not share"):
        b.finish()
    b = KernelBuilder("kinds", THREADS)
    x, floats = b.buffer("x", F32, READ), b.shared("floats", F32, 4096)
    zero = b.vector(*[b.const(0.0, F32)] * 4)
    for wrong, message in (
        (lambda: floats.multiply(0, 2048, [zero], BF16), "tiles of u32 words"),
        (lambda: b.shared("t", U32, 4096).multiply(0, 2048, [], BF16), "1 to 32 vectors of sums, not 0"),
        (lambda: b.shared("u", U32, 4096).multiply(0, 2048, [zero], F32), "halves of bf16 or f16"),
        (lambda: b.shared("v", U32, 4096).multiply(0, 2048, [zero], BF16, 2), "behind by 0 or 1"),
        (lambda: b.shared("w", U32, 4096).copy_from(0, x, 0), "from x, f32, to w, u32"),
        (lambda: b.copy_wait(-1), "leaves a number of sets pending"),
    ):
        with pytest.raises(KernelError, match=message):
            wrong()

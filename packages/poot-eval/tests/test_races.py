"""The race detector: it finds planted races, and no others."""

import numpy as np
import pytest

from poot_eval import RaceError, run_kernel
from poot_executor.dtype import F32, I32
from poot_executor.errors import KernelError
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access

READ, READ_WRITE = Access.READ, Access.READ_WRITE
SIZE = 16


def reverse(barrier: bool):
    """Each group reverses its 16 elements through shared memory."""
    b = KernelBuilder("reverse", SIZE)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, READ_WRITE)
    tile = b.shared("tile", F32, SIZE)
    t, base = b.thread_id(), b.group_id() * SIZE
    tile[t] = x[base + t]
    if barrier:
        b.barrier()
    y[base + t] = tile[SIZE - 1 - t]
    return b.finish()


def test_a_missing_barrier_is_a_race(rng):
    x, y = rng.standard_normal(4 * SIZE, np.float32), np.zeros(4 * SIZE, np.float32)
    with pytest.raises(RaceError, match=r"kernel reverse: race on tile\[") as caught:
        run_kernel(reverse(barrier=False), [x, y], (4, 1, 1))
    assert caught.value.array == "tile" and 0 <= caught.value.index < SIZE
    assert run_kernel(reverse(barrier=True), [x, y], (4, 1, 1), strict=True) == []
    assert np.array_equal(y.reshape(4, SIZE), x.reshape(4, SIZE)[:, ::-1])
    assert run_kernel(reverse(barrier=False), [x, y], (4, 1, 1), detect_races=False) == []


def test_a_write_after_a_read_needs_a_barrier_too():
    def kernel(barrier):
        b = KernelBuilder("shift", SIZE)
        y, tile, t = b.buffer("y", I32, READ_WRITE), b.shared("tile", I32, SIZE), b.thread_id()
        tile[t] = t
        b.barrier()
        neighbour = tile[(t + 1) % SIZE]
        if barrier:
            b.barrier()
        tile[t] = neighbour
        y[t] = tile[t]
        return b.finish()

    y = np.zeros(SIZE, np.int32)
    with pytest.raises(RaceError, match="tile"):
        run_kernel(kernel(False), [y], (1, 1, 1))
    assert run_kernel(kernel(True), [y], (1, 1, 1)) == []
    assert y.tolist() == [(t + 1) % SIZE for t in range(SIZE)]


def test_two_threads_write_one_shared_word():
    b = KernelBuilder("clash", SIZE)
    tile = b.shared("tile", I32, SIZE)
    tile[b.thread_id() // 2] = 1
    with pytest.raises(RaceError, match=r"tile\[0\]"):
        run_kernel(b.finish(), [], (1, 1, 1))


def test_atomics_race_only_with_plain_accesses():
    def kernel(plain):
        b = KernelBuilder("atomics", SIZE)
        tile, t = b.shared("tile", I32, 1), b.thread_id()
        with b.if_(t == 0):
            tile[0] = 0
        b.barrier()
        tile.atomic("add", 0, t)
        if plain:
            with b.if_(t == 3):
                tile[0] = 5
        return b.finish()

    assert run_kernel(kernel(False), [], (2, 1, 1)) == []
    with pytest.raises(RaceError):
        run_kernel(kernel(True), [], (2, 1, 1))


def write_one(value):
    """Every thread of every group writes y[0]."""
    b = KernelBuilder("one", SIZE)
    y = b.buffer("y", I32, READ_WRITE)
    y[0] = value(b)
    return b.finish()


def test_buffer_writes_of_one_value_are_allowed_and_of_several_are_not():
    y = np.zeros(1, np.int32)
    assert run_kernel(write_one(lambda b: b.const(3, I32)), [y], (3, 1, 1)) == [] and y[0] == 3
    with pytest.raises(RaceError, match=r"y\[0\]"):
        run_kernel(write_one(lambda b: b.thread_id()), [y], (1, 1, 1))
    with pytest.raises(RaceError, match=r"y\[0\]"):
        run_kernel(write_one(lambda b: b.group_id()), [y], (2, 1, 1))


def test_groups_are_not_ordered_by_barriers():
    def kernel(reach):
        b = KernelBuilder("reach", SIZE)
        y, t = b.buffer("y", I32, READ_WRITE), b.group_id() * SIZE + b.thread_id()
        y[t] = t
        b.barrier()
        y[t] = y[(t + reach) % (2 * SIZE)] if reach else y[t]
        return b.finish()

    y = np.zeros(2 * SIZE, np.int32)
    assert run_kernel(kernel(0), [y], (2, 1, 1)) == []
    with pytest.raises(RaceError, match="y"):
        run_kernel(kernel(SIZE), [y], (2, 1, 1))


def test_overlapping_parameters_are_one_memory():
    b = KernelBuilder("alias", SIZE)
    x, y = b.buffer("x", F32, READ_WRITE), b.buffer("y", F32, READ_WRITE)
    t = b.thread_id()
    y[t] = x[t] + 1.0
    kernel = b.finish()
    memory = np.zeros(2 * SIZE, np.float32)
    # In place each thread keeps to its element; shifted, it writes another thread's input.
    assert run_kernel(kernel, [memory[:SIZE], memory[:SIZE]], (1, 1, 1)) == []
    assert run_kernel(kernel, [memory[:SIZE], memory[SIZE:]], (1, 1, 1)) == []
    with pytest.raises(RaceError):
        run_kernel(kernel, [memory[:SIZE], memory[4 : SIZE + 4]], (1, 1, 1))


def test_a_read_only_buffer_is_not_written_through_another():
    b = KernelBuilder("const", SIZE)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, READ_WRITE)
    y[b.thread_id()] = x[b.thread_id()]
    memory = np.zeros(SIZE, np.float32)
    with pytest.raises(KernelError, match="x is read only"):
        run_kernel(b.finish(), [memory, memory], (1, 1, 1))


def test_vector_accesses_are_tracked_by_element():
    b = KernelBuilder("vectors", SIZE)
    y, t = b.buffer("y", I32, READ_WRITE), b.thread_id()
    y.store(t * 4, b.vector(t, t, t, t))
    y[t * 4 + 3] = t + 1  # its own
    kernel = b.finish()
    assert run_kernel(kernel, [np.zeros(4 * SIZE, np.int32)], (1, 1, 1)) == []
    b = KernelBuilder("vectors", SIZE)
    y, t = b.buffer("y", I32, READ_WRITE), b.thread_id()
    y.store(t * 4, b.vector(t, t, t, t))
    y[(t * 4 + 7) % (4 * SIZE)] = t + 100
    with pytest.raises(RaceError):
        run_kernel(b.finish(), [np.zeros(4 * SIZE, np.int32)], (1, 1, 1))

"""Small kernels that between them use what emitters differ in: what golden files are made of."""

from __future__ import annotations

from poot_executor.dtype import F16, F32, I32, U32
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel

READ, WRITE = Access.READ, Access.READ_WRITE


def scaled_sum() -> Kernel:
    """A guard by length, a vector load, a loop with a carried value and an if without an else."""
    b = KernelBuilder("scaled_sum", 32)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    i = b.group_id() * 32 + b.thread_id()
    total = b.var(0.0, name="total")
    with b.range(16) as k:
        v = x.load((i * 16 + k) * 4, 4)
        total.set(total.get() + (v.x + v.y) + (v.z + v.w))
    with b.if_(i < y.length()):
        y[i] = total.get() * 0.1
    return b.finish()


def silu() -> Kernel:
    """A routine, over a half buffer: an instruction or integers, as the caps say."""
    b = KernelBuilder("silu", 64)
    x, y = b.buffer("x", F16, READ), b.buffer("y", F32, WRITE)
    i = b.group_id() * 64 + b.thread_id()
    value = x[i]
    y[i] = value / (b.exp(-value) + 1.0)
    return b.finish()


def tile_max() -> Kernel:
    """Shared memory, barriers in a loop, a shuffle of a constant lane, an atomic, a check."""
    b = KernelBuilder("tile_max", 64)
    x, best = b.buffer("x", I32, READ), b.buffer("best", I32, WRITE)
    tile = b.shared("tile", I32, 64)
    t = b.thread_id()
    i = b.group_id() * 64 + t
    b.check(i < x.length(), 3)
    tile[t] = b.max(x[b.min(i, x.length() - 1)], b.subgroup_shuffle(t, 0))
    width = b.var(32)
    with b.while_(lambda: width.get() > 0):
        b.barrier()
        with b.if_(t < width.get()):
            tile[t] = b.max(tile[t], tile[t + width.get()])
        width.set(width.get() // 2)
    with b.if_(t == 0):
        best.atomic("max", 0, tile[0])
    return b.finish()


def exchange() -> Kernel:
    """A buffer seen as scalars and as vectors, through which threads pass values."""
    b = KernelBuilder("exchange", 32)
    y, z = b.buffer("y", F32, WRITE), b.buffer("z", U32, WRITE)
    t = b.thread_id()
    y[t] = b.cast(z.atomic("add", 0, 1), F32)
    b.barrier()
    with b.if_(t < 8):
        y.store(t * 4, y.load((7 - t) * 4, 4))
    return b.finish()


def sweep() -> Kernel:
    """A loop whose bound a buffer gives: watched where the device may end it early."""
    b = KernelBuilder("sweep", 8)
    pos, y = b.buffer("pos", I32, READ), b.buffer("y", I32, WRITE)
    count = b.var(0)
    with b.range(pos[0]):
        count.set(count.get() + 1)
    y[b.thread_id()] = count.get()
    return b.finish()


def nested(outer: int, inner: int) -> Kernel:
    """A loop in a loop, of known rounds, and one after them."""
    b = KernelBuilder("nested", 8)
    y = b.buffer("y", I32, WRITE)
    with b.range(outer), b.range(0, inner, 3):
        y[0] = 1
    with b.range(10):
        y[1] = 1
    return b.finish()

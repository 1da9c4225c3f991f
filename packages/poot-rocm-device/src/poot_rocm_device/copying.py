"""Copies as kernels: a copy by the runtime would stand outside the queue's order."""

from __future__ import annotations

from poot_executor.device import BoundArg, BufferSlice, Copy
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel

GROUP = 256
WHOLE_WORD = 0xFFFFFFFF


def copy_kernel(tail: int) -> Kernel:
    """Words of one buffer to the other one. Of the last word only the first `tail` bytes count; 0: all of them."""
    b = KernelBuilder(f"copy_{tail}" if tail else "copy", GROUP)
    source, target = (b.buffer(name, DType.U32, Access.READ_WRITE) for name in ("source", "target"))
    i = b.group_id() * GROUP + b.thread_id()
    with b.if_(i < target.length()):
        if tail:
            partly = b.const((1 << 8 * tail) - 1, DType.U32)
            counts = b.select(i == target.length() - 1, partly, b.const(WHOLE_WORD, DType.U32))
            target[i] = (source[i] & counts) | (target[i] & (counts ^ WHOLE_WORD))
        else:
            target[i] = source[i]
    return b.finish()


def check_words(copy: Copy) -> None:
    """Raise ValueError for what the kernel does not copy."""
    source, target = copy.source, copy.target
    if source.offset % 4 or target.offset % 4:
        raise ValueError(f"a copy from byte {source.offset} to byte {target.offset}: words begin at multiples of 4")


def copy_words(piece: BufferSlice) -> BoundArg:
    """A slice as words: its last one may reach beyond it, into the rest of its buffer's allocation."""
    return BoundArg(piece, -(-piece.nbytes // 4))


def copy_groups(words: int) -> tuple[int, int, int]:
    """The grid of a copy."""
    return -(-words // GROUP), 1, 1

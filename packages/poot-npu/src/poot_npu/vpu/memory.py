"""Device memory: host memory that models read and write where it lies, aligned, and counted by kind."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_executor.device import Buffer, BufferKind, BufferSlice
from poot_executor.errors import OutOfMemory

Bytes = NDArray[np.uint8]
ALIGNMENT = 64
MMAP_THRESHOLD = -3
"""`M_MMAP_THRESHOLD` of malloc.h."""


@dataclass(slots=True, eq=False)
class Memory:
    """A buffer's bytes. An uploaded weight has none: it is a `weight` (`weights.Stored`), which models are made of.

    A state may have a `window` (`window.Window`), which is the truth about its positions; `finite` is False where a
    position is known to hold what is not. While `blank`, the bytes are zeros, as they were allocated.
    """

    data: Bytes
    weight: object = None
    window: object = None
    finite: bool = True
    blank: bool = False


@contextlib.contextmanager
def large_apart() -> Generator[None]:
    """Meanwhile the GNU C library takes memory of 128 kB or more from the kernel each on its own: what making a model
    frees leaves no holes between what it keeps. Elsewhere nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        yield
        return
    mallopt(MMAP_THRESHOLD, 128 << 10)
    try:
        yield
    finally:
        mallopt(MMAP_THRESHOLD, 4 << 20)


def give_back_freed() -> None:
    """Let the C library return what was freed: compiling leaves hundreds of megabytes in its pools. Where it cannot,
    nothing happens."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def available() -> int | None:
    """Bytes that the host can still give without swapping; None where it does not say."""
    try:
        with open("/proc/meminfo", "rb") as file:  # noqa: PTH123 - a line of a file of the kernel
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def zeros(kind: BufferKind, nbytes: int) -> Bytes:
    """Zero bytes, which take memory once they are written. Raises OutOfMemory where the host has not as many."""
    free = available()
    if free is not None and nbytes > free:
        raise OutOfMemory(nbytes, free, None, kind.value)
    try:
        whole = np.zeros(nbytes + ALIGNMENT, np.uint8)
    except (MemoryError, ValueError):
        raise OutOfMemory(nbytes, free, None, kind.value) from None
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + nbytes]


def memory_of(buffer: Buffer) -> Memory:
    """What a buffer's handle is."""
    memory = buffer.handle
    assert isinstance(memory, Memory), "a buffer of this device that was not freed"
    return memory


def bytes_of(piece: BufferSlice) -> Bytes:
    """The bytes of a slice, which must lie within its buffer."""
    data = memory_of(piece.buffer).data[piece.offset : piece.offset + piece.nbytes]
    assert len(data) == piece.nbytes, f"{piece.nbytes} bytes at {piece.offset} leave {piece.buffer.nbytes}"
    return data

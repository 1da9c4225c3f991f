"""The `reference` device: memory is numpy, a dispatch is interpreted, and what is wrong raises.

It holds kernels to what every device may hold them to: races, accesses outside a buffer, and
bindings that some API refuses are errors here, not surprises there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.bindings import check_dispatch
from poot_eval.faults import CheckFault, Fault, OutOfRangeError
from poot_eval.kernel_ir import run_kernel
from poot_executor.cache import CompileCache
from poot_executor.compile.target import Caps, Target
from poot_executor.device import (
    Buffer,
    BufferKind,
    BufferSlice,
    Commands,
    Compiled,
    Copy,
    Dispatch,
    MemoryInfo,
    Recording,
)
from poot_executor.errors import (
    DeviceError,
    DeviceTimeout,
    KernelError,
    KernelFault,
    OutOfMemory,
    Poisoned,
)
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_device import KernelDevice

SUBGROUP_CAPS = Caps(tile_rows=4, subgroup_width=8, joined_groups=24, features=frozenset({"subgroup", "dot4"}))
"""What the device can do when it is opened as `reference:subgroups`, its default."""

PLAIN_CAPS = Caps()
"""`reference:plain`: no optional feature at all."""

MEMORY_LIMIT = 8 << 30
"""Bytes that may be allocated unless told otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceRecording(Recording):
    """Commands over views of the buffers' bytes."""

    commands: tuple[Dispatch | Copy, ...]


class ReferenceDevice(KernelDevice):
    """Interprets kernels. A replay runs to its end at once; what it raises is staged until
    `synchronize`, which reports one replay a call, the oldest first, and then nothing.

    `limit` bounds the bytes allocated; `timeout` the seconds of a replay. Besides the errors of
    every device, `synchronize` raises RaceError, DivergenceError and OutOfRangeError for a wrong
    kernel, and `record` KernelError for bindings that some API refuses.
    """

    def __init__(
        self,
        caps: Caps = SUBGROUP_CAPS,
        *,
        cache: CompileCache | None = None,
        limit: int = MEMORY_LIMIT,
        timeout: float = 600.0,
    ) -> None:
        super().__init__(CompileCache(None) if cache is None else cache)
        self._target = Target("reference", caps)
        self._limit = limit
        self._timeout = timeout
        self._used: dict[BufferKind, int] = dict.fromkeys(BufferKind, 0)
        self._live: set[Buffer] = set()
        self._staged: deque[DeviceError | KernelError | None] = deque()
        self._hung: DeviceTimeout | None = None
        self._poisoned = ""
        self._last_seconds: float | None = None

    @property
    def target(self) -> Target:
        """Kind "reference" with the caps it was opened with."""
        return self._target

    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Zero-filled numpy memory."""
        self._require()
        free = self._limit - sum(self._used.values())
        if nbytes > free:
            raise OutOfMemory(nbytes, free, self._limit, kind.value)
        # Whole words, so that a kernel can see the last bytes of an odd size.
        memory = np.zeros(-(-nbytes // 4), np.uint32).view(np.uint8)
        buffer = Buffer(kind, nbytes, memory)
        self._used[kind] += nbytes
        self._live.add(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Forget the memory; a second time does nothing."""
        self._require()
        if buffer in self._live:
            self._live.remove(buffer)
            self._used[buffer.kind] -= buffer.nbytes
            buffer.handle = None

    def compile(self, kernel: Kernel) -> Compiled:
        """The kernel's own text."""
        return Compiled(kernel.name, str(kernel).encode(), kernel.name)

    def load(self, kernel: Kernel, compiled: Compiled) -> Kernel:
        """The kernel itself is what is run."""
        assert compiled.entry == kernel.name
        return kernel

    def record(self, commands: Commands, download: BufferSlice | None) -> ReferenceRecording:
        """Check every command against the caps."""
        self._require()
        if download is not None:
            _bytes(download)
        for command in commands:
            slices = [arg.slice for arg in command.args] if isinstance(command, Dispatch) else []
            if isinstance(command, Copy):
                slices = [command.source, command.target]
            for piece in slices:
                _bytes(piece)
            if isinstance(command, Dispatch):
                check_dispatch(command, self._target.caps)
        return ReferenceRecording(tuple(commands))

    def replay(self, recording: Recording) -> None:
        """Run every command in order. After one that hangs nothing runs any more."""
        self._require()
        assert isinstance(recording, ReferenceRecording)
        if self._hung is not None:
            self._staged.append(self._hung)
            return
        start = time.monotonic()
        try:
            self._staged.append(self._run(recording.commands, start + self._timeout))
        except DeviceTimeout as error:
            self._hung = error
            self._staged.append(error)
        except KernelError as error:
            self._staged.append(error)
        self._last_seconds = time.monotonic() - start

    def synchronize(self) -> None:
        """Raise what the oldest replay that was not waited for left, or return."""
        self._require()
        error = self._staged.popleft() if self._staged else None
        if isinstance(error, DeviceTimeout):
            self._poisoned = str(error)
        if error is not None:
            raise error

    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copy bytes in. Raises ValueError where they do not fit the buffer."""
        self._require()
        given = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
        flat = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
        _bytes(BufferSlice(buffer, offset, flat.size))[:] = flat

    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copy bytes out."""
        self._require()
        target = np.frombuffer(out, np.uint8) if isinstance(out, memoryview) else out
        flat = target.reshape(-1).view(np.uint8)
        flat[:] = _bytes(BufferSlice(buffer, offset, flat.size))

    def memory(self) -> MemoryInfo:
        """Exactly what is allocated."""
        self._require()
        return MemoryInfo(dict(self._used), self._limit - sum(self._used.values()), self._limit)

    def device_time(self) -> float | None:
        """Seconds that the last replay was interpreted for."""
        self._require()
        return self._last_seconds

    def release(self, recording: Recording) -> None:
        """Nothing is held, so nothing is given back."""
        self._require()
        assert isinstance(recording, ReferenceRecording)

    def close(self) -> None:
        """Drop all memory."""
        for buffer in self._live:
            buffer.handle = None
        self._live.clear()
        self._used = dict.fromkeys(BufferKind, 0)
        self._staged.clear()
        self._poisoned = self._poisoned or "it was closed"

    def _require(self) -> None:
        if self._poisoned:
            raise Poisoned(f"the reference device cannot be used any more: {self._poisoned}")

    def _run(self, commands: Sequence[Dispatch | Copy], deadline: float) -> KernelFault | None:
        """Run commands; the first check that failed."""
        fault: KernelFault | None = None
        for command in commands:
            if isinstance(command, Copy):
                _bytes(command.target)[:] = _bytes(command.source)
                continue
            kernel: Kernel = command.kernel
            for found in self._interpret(command, kernel, deadline):
                if isinstance(found, CheckFault):
                    fault = fault or KernelFault(found.kernel, found.code)
                elif found.access != "load":
                    # A load may be outside: it reads some value. A store may hit another element.
                    raise OutOfRangeError(found)
        return fault

    def _interpret(self, dispatch: Dispatch, kernel: Kernel, deadline: float) -> list[Fault]:
        views = [
            _bytes(arg.slice)[: arg.slice.nbytes // 4 * 4].view(param.dtype.numpy)
            for param, arg in zip(kernel.params, dispatch.args, strict=True)
        ]
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeviceTimeout(f"kernel {kernel.name}", self._timeout)
        width = self._target.caps.subgroup_width or 1
        return run_kernel(
            kernel,
            views,
            dispatch.groups,
            subgroup_width=width,
            counts=[arg.count for arg in dispatch.args],
            timeout=left,
        )


def _bytes(piece: BufferSlice) -> NDArray[np.uint8]:
    """The bytes of a slice. Raises ValueError for one that leaves its buffer or is of a freed
    one."""
    buffer = piece.buffer
    if buffer.handle is None:
        raise ValueError(f"a {buffer.kind.value} buffer was freed and is used")
    if piece.offset < 0 or piece.offset + piece.nbytes > buffer.nbytes:
        end = piece.offset + piece.nbytes
        raise ValueError(f"bytes [{piece.offset}, {end}) of a buffer of {buffer.nbytes}")
    memory: NDArray[np.uint8] = buffer.handle
    return memory[piece.offset : piece.offset + piece.nbytes]

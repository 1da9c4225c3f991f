"""Devices that run kernels: `lower` and `upload` once for all of them, over four small methods.

What is left to a device: `emit` (pure: kernel to code), `load` (code to a handle), `record`, and the rest of `Device`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from poot_executor.cache import CompileCache
from poot_executor.compile.program import Arg, CopyCommand, Place, Program, Space, WeightUse
from poot_executor.compile.reorder import ReorderStep, reorder_steps
from poot_executor.device import (
    Bindings,
    BoundArg,
    Buffer,
    BufferKind,
    BufferSlice,
    Commands,
    Compiled,
    Copy,
    Device,
    Dispatch,
    Recording,
)  # fmt: skip
from poot_executor.errors import DeviceLost, DeviceTimeout, Poisoned
from poot_executor.graph.keys import StateKey
from poot_executor.kernel.ir import Kernel
from poot_executor.weights import StoredTensor, WeightKey

STAGING_BYTES = 16 << 20
"""Stored bytes uploaded and reordered at a time, so that host and staging memory stay bounded."""


class KernelDevice(Device):
    """A device that compiles, loads and records kernels."""

    def __init__(self, cache: CompileCache) -> None:
        self._cache = cache
        self._loaded: dict[bytes, Any] = {}

    @abstractmethod
    def compile(self, kernel: Kernel) -> Compiled:
        """Emit code. Pure and hardware-free: equal kernel and caps give equal bytes. Raises Unsupported by operation
        and type."""

    @abstractmethod
    def load(self, kernel: Kernel, compiled: Compiled) -> Any:
        """A handle that `record` can dispatch."""

    @abstractmethod
    def record(self, commands: Commands, download: BufferSlice | None) -> Recording:
        """A transaction over dispatches and copies. `download` is the output block, read after every replay: a device
        that needs a copy into host-visible memory makes it part of the recording."""

    def loaded(self, kernel: Kernel) -> Any:
        """The handle of a kernel: loaded once by content; its code comes from the cache on disk where it is there."""
        digest = kernel.digest()
        if digest not in self._loaded:
            self._loaded[digest] = self.load(kernel, self._compiled(digest, kernel))
        return self._loaded[digest]

    def load_all(self, kernels: Iterable[tuple[Kernel, Compiled]]) -> Iterator[Any]:
        """`load` of each in order. A device whose driver takes long for each begins several at once."""
        return (self.load(kernel, compiled) for kernel, compiled in kernels)

    def _compiled(self, digest: bytes, kernel: Kernel) -> Compiled:
        return self._cache.get(self.target, digest, lambda: self.compile(kernel))

    def lower(self, program: Program, bindings: Bindings) -> Recording:
        """Load each kernel once by content and record the commands with what they are bound to."""
        kernels = {c.kernel.digest(): c.kernel for c in program.commands if not isinstance(c, CopyCommand)}
        fresh = {digest: kernel for digest, kernel in kernels.items() if digest not in self._loaded}
        compiled = ((kernel, self._compiled(digest, kernel)) for digest, kernel in fresh.items())
        for digest, handle in zip(fresh, self.load_all(compiled), strict=True):
            self._loaded[digest] = handle
        commands: list[Dispatch | Copy] = []
        for command in program.commands:
            if isinstance(command, CopyCommand):
                commands.append(Copy(_slice(command.source, bindings), _slice(command.target, bindings)))
            else:
                args = tuple(_bound(arg, bindings) for arg in command.args)
                commands.append(Dispatch(self.loaded(command.kernel), args, command.groups, command.work))
        return self.record(commands, bindings.outputs)

    def upload(self, use: WeightUse, stored: StoredTensor) -> Buffer:
        """Reordered by a kernel on the device, a bounded run of rows at a time. On any failure nothing stays allocated,
        but where
        the device is lost: then nothing may be touched, and what was allocated is leaked."""
        made: list[Buffer] = []
        try:
            made.append(self.allocate(BufferKind.WEIGHT, use.layout.nbytes))
            made.append(self.allocate(BufferKind.STAGING, min(STAGING_BYTES, -(-stored.data.nbytes // 4) * 4)))
            target, staging = made
            for step in reorder_steps(use.layout, staging.nbytes, self.target.caps):
                self._reorder(step, target, staging, stored)
        except (DeviceLost, DeviceTimeout, Poisoned):
            raise
        except BaseException:
            for buffer in made:
                self.free(buffer)
            raise
        self.free(staging)
        return target

    def _reorder(self, step: ReorderStep, target: Buffer, staging: Buffer, stored: StoredTensor) -> None:
        self.write(staging, stored.data[step.first_byte : step.first_byte + step.nbytes])
        args = (
            BoundArg(BufferSlice(staging, 0, step.staged_bytes), step.staged_bytes // 4),
            BoundArg(BufferSlice(target, step.part.offset, step.part.nbytes), step.part.nbytes // 4),
        )
        recording = self.record([Dispatch(self.loaded(step.kernel), args, step.groups, step.nbytes)], None)
        self.replay(recording)
        self.synchronize()
        self.release(recording)


def _slice(place: Place, bindings: Bindings) -> BufferSlice:
    match place.space:
        case Space.WEIGHT:
            assert isinstance(place.key, WeightKey)
            return BufferSlice(bindings.weights[place.key], place.offset, place.nbytes)
        case Space.STATE:
            assert isinstance(place.key, StateKey)
            return BufferSlice(bindings.states[place.key], place.offset, place.nbytes)
        case Space.INPUT:
            block = bindings.inputs
        case Space.CONSTANT:
            block = bindings.constants
        case Space.ARENA:
            block = bindings.arena
        case Space.OUTPUT:
            block = bindings.outputs
    assert block is not None, f"program has no {place.space.value} block"
    return BufferSlice(block.buffer, block.offset + place.offset, place.nbytes)


def _bound(arg: Arg, bindings: Bindings) -> BoundArg:
    return BoundArg(_slice(arg.place, bindings), arg.count)

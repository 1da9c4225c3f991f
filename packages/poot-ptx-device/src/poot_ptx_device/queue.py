"""Recording: commands captured into a graph, with uploads of input blocks before and the output's download after."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from poot_executor.command_check import check_arguments, check_counts
from poot_executor.device import Buffer, BufferSlice, Commands, Copy, Dispatch, Recording
from poot_executor.errors import DeviceLost
from poot_executor.kernel.ir import Access
from poot_ptx_device.errors import CudaError
from poot_ptx_device.memory import Allocation, Memory, address_of, allocation_of
from poot_ptx_device.native import Handle, Native
from poot_ptx_device.pinned import Pinned, pin


@dataclass(slots=True, eq=False)
class PtxRecording(Recording):
    """An instantiated graph. `inputs` are uploaded by each replay, `writes` may change in it, `landing` receives
    `download`.

    `in_flight` counts the replays that were not waited for.
    """

    executable: Handle
    inputs: tuple[Buffer, ...]
    writes: frozenset[Buffer]
    download: BufferSlice | None
    landing: Pinned | None
    in_flight: int = 0
    released: bool = False


class Recorder:
    """Makes and releases recordings of one device. `fault_address` is where the device sees the fault word."""

    def __init__(self, native: Native, memory: Memory, stream: Handle, fault_address: int, *, dependent: bool) -> None:
        self._native = native
        self._memory = memory
        self._stream = stream
        self._fault_address = fault_address
        self._dependent = dependent

    def record(self, commands: Commands, download: BufferSlice | None) -> PtxRecording:
        """All or nothing. Raises ValueError for slices that are not of this device or do not fit."""
        for command in commands:
            if isinstance(command, Dispatch):
                _check_arguments(self._memory, command)
            else:
                self._memory.check(command.source)
                self._memory.check(command.target)
        if download is not None:
            self._memory.check(download)
        writes = frozenset(_written(commands))
        for buffer in writes:
            self._settle_shadow(allocation_of(buffer))
        inputs = tuple(b for b in dict.fromkeys(_touched(commands)) if allocation_of(b).shadow is not None)
        landing = pin(self._native, max(download.nbytes, 1)) if download is not None else None
        try:
            graph = self._capture(commands, inputs, download, landing)
            try:
                executable = self._native.instantiate(graph)
            finally:
                self._native.destroy_graph(graph)
            try:
                self._native.prepare(executable, self._stream)
            except BaseException:
                self._native.destroy_executable(executable)
                raise
        except BaseException as error:
            if landing is not None and not isinstance(error, DeviceLost):
                self._native.host_free(landing.address)
            raise
        return PtxRecording(executable, inputs, writes, download, landing)

    def _settle_shadow(self, allocation: Allocation) -> None:
        """A block that a command writes is the device's own: what the host has written goes there now."""
        if allocation.shadow is not None:
            shadow = allocation.shadow
            self._native.upload(allocation.address, shadow.address, shadow.nbytes, self._stream)
            # Freeing page-locked memory waits until no copy uses it.
            self._memory.drop_shadow(allocation)

    def _capture(
        self, commands: Commands, inputs: tuple[Buffer, ...], download: BufferSlice | None, landing: Pinned | None
    ) -> Handle:
        native, stream = self._native, self._stream
        native.begin_capture(stream)
        try:
            for buffer in inputs:
                allocation = allocation_of(buffer)
                assert allocation.shadow is not None
                native.upload(allocation.address, allocation.shadow.address, allocation.nbytes, stream)
            before: Dispatch | Copy | None = None
            for command in commands:
                self._submit(command, dependent=self._dependent and isinstance(before, Dispatch))
                before = command
            if download is not None and landing is not None:
                native.download(landing.address, address_of(download), download.nbytes, stream)
        except BaseException:
            # The capture is broken: ending it says so again, and drops it.
            with suppress(CudaError):
                native.destroy_graph(native.end_capture(stream))
            raise
        return native.end_capture(stream)

    def _submit(self, command: Dispatch | Copy, *, dependent: bool) -> None:
        if isinstance(command, Copy):
            self._native.copy(
                address_of(command.target), address_of(command.source), command.source.nbytes, self._stream
            )
            return
        kernel = command.kernel
        arguments: list[ctypes.c_uint64 | ctypes.c_uint32] = []
        for arg in command.args:
            arguments += [ctypes.c_uint64(address_of(arg.slice)), ctypes.c_uint32(arg.count)]
        if kernel.faults:
            arguments.append(ctypes.c_uint64(self._fault_address))
        self._native.launch(
            kernel.function,
            command.groups,
            kernel.threads,
            arguments,
            self._stream,
            dependent=dependent,
            shared=kernel.shared,
        )

    def release(self, recording: PtxRecording) -> None:
        """Give back what the recording holds; a second time does nothing."""
        if recording.released:
            return
        recording.released = True
        self._native.destroy_executable(recording.executable)
        if recording.landing is not None:
            self._native.host_free(recording.landing.address)
            recording.landing = None


def _check_arguments(memory: Memory, dispatch: Dispatch) -> None:
    kernel = dispatch.kernel
    check_arguments(kernel.name, dispatch, len(kernel.buffers))
    check_counts(kernel.name, dispatch, kernel.buffers)
    if kernel.groups is not None and any(n > most for n, most in zip(dispatch.groups, kernel.groups, strict=True)):
        raise ValueError(f"kernel {kernel.name}: {dispatch.groups} groups, it was compiled for {kernel.groups}")
    for arg in dispatch.args:
        memory.check(arg.slice)


def _touched(commands: Commands) -> Iterator[Buffer]:
    for command in commands:
        pieces = [a.slice for a in command.args] if isinstance(command, Dispatch) else [command.source, command.target]
        yield from (piece.buffer for piece in pieces)


def _written(commands: Commands) -> Iterator[Buffer]:
    for command in commands:
        if isinstance(command, Copy):
            yield command.target.buffer
        else:
            bound = zip(command.args, command.kernel.buffers, strict=True)
            yield from (arg.slice.buffer for arg, buffer in bound if buffer.access is Access.READ_WRITE)

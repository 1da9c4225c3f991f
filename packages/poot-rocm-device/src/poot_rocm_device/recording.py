"""Recordings: a step's dispatches as packets that are made once, with their arguments where they stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_executor.command_check import check_arguments, check_copy, check_counts
from poot_executor.device import Buffer, BufferSlice, Commands, Copy, Dispatch, Recording
from poot_executor.errors import OutOfMemory, Unsupported
from poot_rocm_device.agents import Gpu, Pools
from poot_rocm_device.copying import check_words, copy_groups, copy_words
from poot_rocm_device.errors import OutOfDeviceMemory
from poot_rocm_device.executables import RocmKernel
from poot_rocm_device.hazards import Overlapping, Range
from poot_rocm_device.host_memory import HostMemory, host_memory
from poot_rocm_device.hsa import Hsa
from poot_rocm_device.hsa_types import COMPLETION, PACKET_WORDS, DispatchPacket, Scope, header
from poot_rocm_device.memory import Memory, address_of, allocation_of

DIMENSIONS = 3
KERNARG_ALIGNMENT = 64
"""A line of the cache; HSA asks for 16."""

Completions = NDArray[np.uint64]


@dataclass(slots=True, eq=False)
class RocmRecording(Recording):
    """`packets`, shape (count, 16), are copied into a queue for each replay; `completions` are their completion
    signals, which each replay sets anew. `kernarg` holds all arguments. `fault` is where a failed check leaves its
    word, `names` the kernels that it may name. `buffers` are all that are touched.
    """

    packets: NDArray[np.uint32]
    completions: Completions
    kernarg: HostMemory | None
    fault: HostMemory | None
    names: dict[int, str]
    buffers: frozenset[Buffer]
    in_flight: int = 0
    released: bool = False


class Recorder:
    """Makes and releases recordings of one device. `copier` gives the loaded kernel of copies with so many bytes in the
    last word."""

    def __init__(self, hsa: Hsa, gpu: Gpu, pools: Pools, memory: Memory, copier: Callable[[int], RocmKernel]) -> None:
        self._hsa = hsa
        self._gpu = gpu
        self._pools = pools
        self._memory = memory
        self._copier = copier

    def record(self, commands: Commands, download: BufferSlice | None) -> RocmRecording:
        """All or nothing. Raises ValueError for slices that are not of this device or do not fit."""
        if download is not None:
            self._memory.check(download)
        dispatches = [self._dispatch(command) for command in commands]
        touched = {arg.slice.buffer for d in dispatches for arg in d.args}
        names = {d.kernel.identity: d.kernel.name for d in dispatches if d.kernel.kernarg.checks}
        made: list[HostMemory] = []
        try:
            fault = self._host(made, self._pools.host, 4) if names else None
            places = _places(dispatches)
            kernarg = self._host(made, self._pools.kernarg, places[-1]) if dispatches else None
            words = np.zeros((len(dispatches), PACKET_WORDS), np.uint32)
            if kernarg is not None:
                self._fill(words, dispatches, places, kernarg, fault)
        except OutOfDeviceMemory as error:
            self._give_back(made)
            raise OutOfMemory(_places(dispatches)[-1], None, None, "kernel arguments") from error
        except BaseException:
            self._give_back(made)
            raise
        buffers = frozenset(touched if download is None else touched | {download.buffer})
        return RocmRecording(words, words.view(np.uint64)[:, COMPLETION], kernarg, fault, names, buffers)

    def _host(self, made: list[HostMemory], pool: int, nbytes: int) -> HostMemory:
        memory = host_memory(self._hsa, pool, self._gpu, nbytes)
        made.append(memory)
        return memory

    def _give_back(self, made: Sequence[HostMemory]) -> None:
        for memory in made:
            self._hsa.free(memory.address)

    def _dispatch(self, command: Dispatch | Copy) -> Dispatch:
        """The command as a dispatch that can be recorded."""
        if isinstance(command, Copy):
            for piece in (command.source, command.target):
                self._memory.check(piece)
            check_copy(command)
            check_words(command)
            args = (copy_words(command.source), copy_words(command.target))
            kernel = self._copier(command.source.nbytes % 4)
            return Dispatch(kernel, args, copy_groups(args[0].count), command.source.nbytes)
        _check_dispatch(self._memory, command)
        return command

    @staticmethod
    def _fill(
        words: NDArray[np.uint32],
        dispatches: Sequence[Dispatch],
        places: Sequence[int],
        kernarg: HostMemory,
        fault: HostMemory | None,
    ) -> None:
        overlapping = Overlapping()
        last = len(dispatches) - 1
        for number, (dispatch, place) in enumerate(zip(dispatches, places, strict=False)):
            kernel: RocmKernel = dispatch.kernel
            word = fault.address if fault is not None and kernel.kernarg.checks else None
            addresses = [address_of(arg.slice) for arg in dispatch.args]
            arguments = kernel.kernarg.pack(addresses, [arg.count for arg in dispatch.args], word)
            kernarg.view[place : place + len(arguments)] = np.frombuffer(arguments, np.uint8)
            # The last packet's signal stands for all, so it waits for all; the first packet waits for the step before.
            waits = overlapping.add(_ranges(dispatch, written=False), _ranges(dispatch, written=True))
            edge = number in (0, last)
            # The host reads a signal of the first packet as well, for its time.
            fields = DispatchPacket.from_buffer(words[number].data)
            fields.header = header(
                barrier=waits or edge,
                acquire=Scope.SYSTEM if number == 0 else Scope.AGENT,
                release=Scope.SYSTEM if edge else Scope.AGENT,
            )
            fields.setup = DIMENSIONS
            groups = dispatch.groups
            fields.workgroup_size_x, fields.workgroup_size_y, fields.workgroup_size_z = kernel.threads, 1, 1
            fields.grid_size_x, fields.grid_size_y, fields.grid_size_z = (
                groups[0] * kernel.threads,
                groups[1],
                groups[2],
            )
            fields.private_segment_size, fields.group_segment_size = kernel.private_bytes, kernel.group_bytes
            fields.kernel_object = kernel.object
            fields.kernarg_address = kernarg.address + place

    def release(self, recording: RocmRecording) -> None:
        """Give back what the recording holds; a second time does nothing. None of it may be in flight."""
        if recording.released:
            return
        recording.released = True
        self._give_back([memory for memory in (recording.kernarg, recording.fault) if memory is not None])
        recording.kernarg = recording.fault = None


def _places(dispatches: Sequence[Dispatch]) -> list[int]:
    """Where each dispatch's arguments begin, and where they all end."""
    places = [0]
    for dispatch in dispatches:
        kernel: RocmKernel = dispatch.kernel
        places.append(places[-1] + -(-kernel.kernarg.nbytes // KERNARG_ALIGNMENT) * KERNARG_ALIGNMENT)
    return places


def _ranges(dispatch: Dispatch, *, written: bool) -> Iterator[Range]:
    kernel: RocmKernel = dispatch.kernel
    for place, arg in enumerate(dispatch.args):
        if (place in kernel.written) is written:
            start = address_of(arg.slice)
            yield start, start + 4 * arg.count


def _check_dispatch(memory: Memory, dispatch: Dispatch) -> None:
    kernel: RocmKernel = dispatch.kernel
    check_arguments(kernel.name, dispatch, len(kernel.buffers))
    check_counts(kernel.name, dispatch, kernel.buffers)
    most = kernel.groups or (((1 << 32) - 1) // kernel.threads, 65535, 65535)
    if any(not 0 < n <= limit for n, limit in zip(dispatch.groups, most, strict=True)):
        raise ValueError(f"kernel {kernel.name}: {dispatch.groups} groups, it was compiled for {most}")
    for place, (arg, buffer) in enumerate(zip(dispatch.args, kernel.buffers, strict=True)):
        memory.check(arg.slice)
        if place in kernel.atomic and allocation_of(arg.slice.buffer).view is not None:
            raise Unsupported(
                f"rocm: atomic operations of kernel {kernel.name} on {buffer.name}",
                f"a {arg.slice.buffer.kind.value} buffer lies in the host's memory, and not every bus takes them there",
            )
        if arg.slice.offset % 4:
            raise ValueError(f"kernel {kernel.name}: offset {arg.slice.offset}, no multiple of 4")

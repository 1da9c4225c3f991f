"""Recordings: commands recorded once into command buffers, and what they hold.

Between two commands stands a full memory barrier; descriptor sets are baked in. A device under a watchdog gets several
command buffers, cut where the planner's work weights of the commands reach its budget; any other one gets one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from poot_executor.command_check import check_arguments, check_copy
from poot_executor.device import Buffer, BufferKind, BufferSlice, Commands, Copy, Dispatch, Recording
from poot_vulkan_device.adapter import Adapter
from poot_vulkan_device.api import Handle
from poot_vulkan_device.commands import Binding, Stage
from poot_vulkan_device.commands import Commands as Encoder
from poot_vulkan_device.memory import Memory
from poot_vulkan_device.pipelines import Layout, VulkanKernel

COPY_WORK_PER_BYTE = 2
"""A copy reads and writes each byte: its weight in the planner's unit, which is bytes moved."""


STAMPS_AT = 8
"""Where the time stamps begin in a recording's report, after the fault word and padding."""


@dataclass(slots=True, eq=False)
class VulkanRecording(Recording):
    """Command buffers that are submitted in order. `buffers` are all that they touch; `names` those of the kernels
    that may fault, by identity. `report` is where the device leaves the fault word and its time stamps; `word` and
    `times` are the host's view of them.
    """

    names: dict[int, str]
    buffers: frozenset[Buffer]
    segments: list[Handle] = field(default_factory=list)
    sets: Handle | None = None
    stamps: Handle | None = None
    report: Buffer | None = None
    word: NDArray[np.uint32] | None = None
    times: NDArray[np.uint64] | None = None
    in_flight: int = 0
    released: bool = False


class Recorder:
    """Makes and releases recordings of one device. `budget` is the work of one submission; None is unlimited."""

    def __init__(self, encoder: Encoder, memory: Memory, *, budget: int | None, adapter: Adapter) -> None:
        self._encoder = encoder
        self._memory = memory
        self.budget = budget
        self._limits = adapter.limits
        self._stamps = adapter.stamp_bits > 0
        self._mask = (1 << adapter.stamp_bits) - 1
        self._period = adapter.stamp_period

    def record(self, commands: Commands, download: BufferSlice | None) -> VulkanRecording:
        """All or nothing. Raises ValueError for slices that are not of this device."""
        touched = set() if download is None else {download.buffer}
        for command in commands:
            self._check(command)
            pieces = (
                [a.slice for a in command.args] if isinstance(command, Dispatch) else [command.source, command.target]
            )
            for piece in pieces:
                self._memory.check(piece)
                touched.add(piece.buffer)
        if download is not None:
            self._memory.check(download)
        dispatches = [command for command in commands if isinstance(command, Dispatch)]
        faulting = {d.kernel.identity: d.kernel.name for d in dispatches if d.kernel.faults}
        recording = VulkanRecording(faulting, frozenset(touched))
        try:
            segments = split(commands, self.budget)
            self._add_report(recording, len(segments))
            self._encode(recording, segments, self._bake(recording, dispatches))
        except BaseException:
            self.release(recording)
            raise
        return recording

    def _add_report(self, recording: VulkanRecording, segments: int) -> None:
        """Memory for the fault word and two time stamps a segment, as far as the recording has them."""
        stamps = 2 * segments * self._stamps
        if not recording.names and not stamps:
            return
        recording.report = self._memory.allocate(BufferKind.STAGING, STAMPS_AT + 8 * stamps)
        view = recording.report.handle.view
        view[:] = 0
        if recording.names:
            recording.word = view[:4].view(np.uint32)
        if stamps:
            recording.stamps = self._encoder.create_stamps(stamps)
            recording.times = view[STAMPS_AT:].view(np.uint64)

    def _bake(self, recording: VulkanRecording, dispatches: Sequence[Dispatch]) -> list[Handle]:
        """A descriptor set for each dispatch; equal ones share one."""
        places: dict[tuple[Layout, tuple[Binding, ...]], int] = {}
        chosen = [places.setdefault(self._bindings(recording, d), len(places)) for d in dispatches]
        if not places:
            return []
        recording.sets, sets = self._encoder.create_sets(list(places))
        return [sets[place] for place in chosen]

    def _check(self, command: Dispatch | Copy) -> None:
        """Raise ValueError or DeviceError for what Vulkan leaves undefined."""
        if isinstance(command, Copy):
            check_copy(command)
            return
        kernel: VulkanKernel = command.kernel
        check_arguments(kernel.name, command, kernel.params)
        limits = self._limits
        if any(n < 0 or n > most for n, most in zip(command.groups, limits.groups, strict=True)):
            raise ValueError(f"kernel {kernel.name}: {command.groups} groups, the device has {limits.groups}")
        for arg in command.args:
            if arg.slice.offset % limits.offset_alignment:
                raise ValueError(
                    f"kernel {kernel.name}: offset {arg.slice.offset}, no multiple of {limits.offset_alignment}"
                )
            if 4 * arg.count > limits.binding_bytes:
                raise ValueError(
                    f"kernel {kernel.name}: {4 * arg.count} bytes bound, the device binds {limits.binding_bytes}"
                )

    @staticmethod
    def _bindings(recording: VulkanRecording, dispatch: Dispatch) -> tuple[Layout, tuple[Binding, ...]]:
        kernel: VulkanKernel = dispatch.kernel
        # Bound as far as its elements go: that is its length, and robust access covers nothing beyond.
        bindings: list[Binding] = [
            (arg.slice.buffer.handle.buffer, arg.slice.offset, 4 * arg.count) for arg in dispatch.args
        ]
        if kernel.faults:
            assert recording.report is not None
            bindings.append((recording.report.handle.buffer, 0, 4))
        return kernel.layout, tuple(bindings)

    def _encode(
        self, recording: VulkanRecording, segments: Sequence[Sequence[Dispatch | Copy]], sets: Sequence[Handle]
    ) -> None:
        encoder, following = self._encoder, iter(sets)
        for place, segment in enumerate(segments):
            buffer = encoder.begin()
            recording.segments.append(buffer)
            if recording.stamps is not None:
                encoder.stamp(buffer, recording.stamps, 2 * place, reset=True)
            for number, command in enumerate(segment):
                if number:
                    encoder.barrier(buffer, stage(segment[number - 1]), stage(command))
                if isinstance(command, Dispatch):
                    encoder.dispatch(buffer, command.kernel, next(following), command.groups)
                else:
                    source, target = command.source, command.target
                    from_, to = (
                        (source.buffer.handle.buffer, source.offset),
                        (target.buffer.handle.buffer, target.offset),
                    )
                    encoder.copy(buffer, from_, to, source.nbytes)
            if recording.stamps is not None:
                assert recording.report is not None
                encoder.stamp(buffer, recording.stamps, 2 * place + 1, reset=False)
                encoder.copy_stamps(
                    buffer, recording.stamps, 2 * place, (recording.report.handle.buffer, STAMPS_AT + 16 * place)
                )
            encoder.end(buffer)

    def seconds(self, recording: VulkanRecording) -> float | None:
        """The device's own time of the last replay; None where it does not say."""
        if recording.times is None or recording.in_flight:
            return None
        times = recording.times.tolist()
        ticks = sum(end - begin & self._mask for begin, end in zip(times[::2], times[1::2], strict=True))
        return ticks * self._period * 1e-9

    def release(self, recording: VulkanRecording) -> None:
        """Give back what the recording holds; a second time does nothing."""
        if recording.released:
            return
        recording.released = True
        if recording.segments:
            self._encoder.free(recording.segments)
            recording.segments.clear()
        if recording.sets is not None:
            self._encoder.destroy_sets(recording.sets)
        if recording.stamps is not None:
            self._encoder.destroy_stamps(recording.stamps)
        if recording.report is not None:
            recording.word = recording.times = None
            self._memory.free(recording.report)


def stage(command: Dispatch | Copy) -> Stage:
    """Where a command runs."""
    return Stage.COMPUTE if isinstance(command, Dispatch) else Stage.TRANSFER


def split(commands: Commands, budget: int | None) -> list[list[Dispatch | Copy]]:
    """The commands in order, cut into runs whose work stays within the budget; a command above it is a run of its own.
    Always at least one run, which may be empty.
    """
    runs: list[list[Dispatch | Copy]] = [[]]
    spent = 0
    for command in commands:
        work = command.work if isinstance(command, Dispatch) else COPY_WORK_PER_BYTE * command.source.nbytes
        if budget is not None and runs[-1] and spent + work > budget:
            runs.append([])
            spent = 0
        runs[-1].append(command)
        spent += work
    return runs

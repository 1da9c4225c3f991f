"""Recording and replay. A recording holds pipelines, bind groups and copies; each replay encodes them into a command
buffer, which WebGPU allows to be submitted once. The next one is encoded right after a submission, while the device
is busy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from poot_executor.command_check import check_arguments
from poot_executor.device import Buffer, BufferKind, BufferSlice, Commands, Copy, Dispatch, Recording
from poot_wgpu_device.errors import WgpuError
from poot_wgpu_device.memory import Memory, words
from poot_wgpu_device.native import QUERY, Handle, Native

FAULT_BYTES = 8
"""The fault word, and padding that keeps the time stamps behind it aligned to 8."""
STAMP_BYTES = 16

Pass = list[tuple[Handle, Handle, int, int, int]]
"""Dispatches of one compute pass: pipeline, bind group, groups."""


@dataclass(frozen=True, slots=True)
class Move:
    """A copy between two different buffers."""

    source: tuple[Handle, int]
    target: tuple[Handle, int]
    nbytes: int


@dataclass(slots=True, eq=False)
class WgpuRecording(Recording):
    """Steps in order. `names` are the kernels that may fault, by identity; `written` the buffers that a replay may
    change.

    `readback` receives the download, the fault word and the time stamps, in this order. `ready` is a command buffer
    made ahead.
    """

    steps: list[Pass | Move]
    download: BufferSlice | None
    faults: bool
    names: dict[int, str]
    written: frozenset[Buffer]
    readback: Any = None
    scratch: list[Any] = field(default_factory=list)
    groups: list[Handle] = field(default_factory=list)
    stamps: Handle | None = None
    stamp_target: Handle | None = None
    ready: Handle | None = None
    replays: int = 0
    in_flight: int = 0
    released: bool = False

    @property
    def download_bytes(self) -> int:
        """Bytes of the readback buffer before the fault word."""
        return 0 if self.download is None else -(-self.download.nbytes // 8) * 8

    @property
    def readback_bytes(self) -> int:
        """Bytes of the readback buffer; 0 where there is nothing to read."""
        return self.download_bytes + FAULT_BYTES * self.faults + STAMP_BYTES * (self.stamps is not None)


class Recorder:
    """Makes, encodes and releases recordings of one device."""

    def __init__(self, native: Native, memory: Memory, fault: Handle, *, timestamps: bool) -> None:
        self._native = native
        self._memory = memory
        self._fault = fault
        self._timestamps = timestamps

    def record(self, commands: Commands, download: BufferSlice | None) -> WgpuRecording:
        """All or nothing. Raises ValueError for slices that are not of this device, DeviceError for too few."""
        written: set[Buffer] = set()
        for command in commands:
            if isinstance(command, Copy):
                _check_copy(command)
                written.add(command.target.buffer)
                pieces = [command.source, command.target]
            else:
                check_arguments(command.kernel.name, command, len(command.kernel.read_only))
                pieces = [arg.slice for arg in command.args]
                written.update(p.buffer for p, only in zip(pieces, command.kernel.read_only, strict=True) if not only)
            for piece in pieces:
                self._memory.check(piece)
        if download is not None:
            self._memory.check(download)
        dispatches = [command for command in commands if isinstance(command, Dispatch)]
        faulting = {d.kernel.identity: d.kernel.name for d in dispatches if d.kernel.faults}
        recording = WgpuRecording([], download, bool(faulting), faulting, frozenset(written))
        try:
            self._build(recording, commands)
            # Encoding shows whether the library takes the commands; the first replay submits them.
            recording.ready = self.encode(recording)
        except BaseException:
            self.release(recording)
            raise
        return recording

    def _build(self, recording: WgpuRecording, commands: Commands) -> None:
        current: Pass | None = None
        for command in commands:
            if isinstance(command, Copy):
                current = None
                self._copy(recording, command)
                continue
            if current is None:
                current = []
                recording.steps.append(current)
            current.append(self._dispatch(recording, command))
        if self._timestamps and any(isinstance(step, list) for step in recording.steps):
            recording.stamps = self._native.create_stamps()
            recording.stamp_target = self._native.create_buffer(STAMP_BYTES, QUERY)
        if recording.readback_bytes:
            recording.readback = self._memory.readback(recording.readback_bytes)
        self._native.check("record")

    def _dispatch(self, recording: WgpuRecording, command: Dispatch) -> tuple[Handle, Handle, int, int, int]:
        kernel = command.kernel
        # Bound as far as its elements go: that is its length, and robust access covers nothing beyond.
        slices = [(arg.slice.buffer.handle, arg.slice.offset, 4 * arg.count) for arg in command.args]
        if kernel.faults:
            slices.append((self._fault, 0, 4))
        group = self._native.create_group(kernel.layout, slices)
        recording.groups.append(group)
        self._native.check(f"bind group of kernel {kernel.name}")
        return (kernel.pipeline, group, *command.groups)

    def _copy(self, recording: WgpuRecording, command: Copy) -> None:
        source, target = command.source, command.target
        nbytes = words(source.nbytes)
        from_, to = (source.buffer.handle, source.offset), (target.buffer.handle, target.offset)
        if source.buffer is not target.buffer:
            recording.steps.append(Move(from_, to, nbytes))
            return
        # WebGPU copies between different buffers only.
        between = self._memory.allocate(BufferKind.STAGING, nbytes)
        recording.scratch.append(between)
        recording.steps += [Move(from_, (between.handle, 0), nbytes), Move((between.handle, 0), to, nbytes)]

    def encode(self, recording: WgpuRecording) -> Handle:
        """A command buffer of one replay. Raises WgpuError rather than give one that the library would refuse to
        submit."""
        native = self._native
        encoder = native.begin()
        if recording.faults:
            native.clear(encoder, self._fault, 4)
        passes = [k for k, step in enumerate(recording.steps) if isinstance(step, list)]
        for k, step in enumerate(recording.steps):
            if isinstance(step, Move):
                native.copy(encoder, step.source, step.target, step.nbytes)
                continue
            stamps = None
            if recording.stamps is not None and k in (passes[0], passes[-1]):
                stamps = native.stamp_writes(recording.stamps, first=k == passes[0], last=k == passes[-1])
            native.dispatch(encoder, step, stamps)
        self._encode_readback(recording, encoder)
        commands = native.finish(encoder)
        try:
            native.check("encode")
        except WgpuError:
            native.drop(commands)
            raise
        return commands

    def _encode_readback(self, recording: WgpuRecording, encoder: Handle) -> None:
        native = self._native
        if recording.readback is None:
            return
        target, at = recording.readback.handle, recording.download_bytes
        if recording.download is not None:
            source = recording.download
            native.copy(encoder, (source.buffer.handle, source.offset), (target, 0), words(source.nbytes))
        if recording.faults:
            native.copy(encoder, (self._fault, 0), (target, at), 4)
            at += FAULT_BYTES
        if recording.stamps is not None:
            native.resolve(encoder, recording.stamps, recording.stamp_target)
            native.copy(encoder, (recording.stamp_target, 0), (target, at), STAMP_BYTES)

    def release(self, recording: WgpuRecording) -> None:
        """Give back what the recording holds; a second time does nothing."""
        if recording.released:
            return
        recording.released = True
        if recording.ready is not None:
            self._native.drop(recording.ready)
            recording.ready = None
        for group in recording.groups:
            self._native.release_group(group)
        recording.groups.clear()
        recording.steps.clear()
        for buffer in (*recording.scratch, recording.readback):
            if buffer is not None:
                self._memory.free(buffer)
        if recording.stamps is not None:
            self._native.release_stamps(recording.stamps)
        if recording.stamp_target is not None:
            self._native.release_buffer(recording.stamp_target)


def _check_copy(command: Copy) -> None:
    """Raise ValueError for slices of different sizes, in whole words: that is what is copied."""
    if words(command.source.nbytes) != words(command.target.nbytes):
        raise ValueError(f"a copy of {command.source.nbytes} bytes to {command.target.nbytes}")


def parse(recording: WgpuRecording, data: bytes) -> tuple[int, tuple[int, int] | None]:
    """The fault word (0: none) and the two time stamps of a readback."""
    at = recording.download_bytes
    word = 0
    if recording.faults:
        word = int.from_bytes(data[at : at + 4], "little")
        at += FAULT_BYTES
    if recording.stamps is None:
        return word, None
    return word, (int.from_bytes(data[at : at + 8], "little"), int.from_bytes(data[at + 8 : at + 16], "little"))

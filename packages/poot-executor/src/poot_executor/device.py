"""A device: thin, nothing semantic. No graph walk, no slot kinds, no masks. One thread calls it.

An entry point in the group `poot.devices` names a `Driver`. `Device` is what an engine drives; `KernelDevice`
(kernel_device.py) implements `lower` and `upload` for devices that run kernels, a whole-graph device implements both
itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, Self

from numpy.typing import NDArray

from poot_executor.compile.program import Program, WeightUse
from poot_executor.compile.target import Target
from poot_executor.graph.keys import StateKey
from poot_executor.settings import DeviceSettings
from poot_executor.weights import StoredTensor, WeightKey


class BufferKind(Enum):
    """What a buffer is for: where it lies and how it is counted. STAGING is short-lived upload memory."""

    WEIGHT = "weight"
    STATE = "state"
    INPUT = "input"
    CONSTANT = "constant"
    ARENA = "arena"
    OUTPUT = "output"
    STAGING = "staging"


@dataclass(slots=True, eq=False)
class Buffer:
    """Device memory at a stable address. `handle` is the device's own object; identity is the buffer."""

    kind: BufferKind
    nbytes: int
    handle: Any


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """Bytes [offset, offset + nbytes) of a buffer."""

    buffer: Buffer
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Bindings:
    """Where a program's spaces lie on the device. A WEIGHT buffer is what `upload` returned."""

    weights: Mapping[WeightKey, Buffer]
    states: Mapping[StateKey, Buffer]
    inputs: BufferSlice
    constants: BufferSlice | None
    arena: BufferSlice | None
    outputs: BufferSlice


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """The runtime's own counters in bytes. `used` by kind is what this device allocated; None is unknown, never
    zero."""

    used: Mapping[BufferKind, int]
    free: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Found:
    """A device that can be opened with `selector`. `software` is true for a CPU that poses as a GPU."""

    selector: str
    description: str
    software: bool = False


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no such device, and what would help."""

    reason: str


class Driver(Protocol):
    """What an entry point names. Importing its module loads no native library; `probe` is cheap and never raises for
    absent hardware.

    A driver may have `automatic = False`: it is opened only when it is asked for by name.
    """

    def probe(self) -> list[Found | Missing]:
        """What could be opened, and why nothing else can."""
        ...

    def open(self, selector: str, settings: DeviceSettings) -> Device:
        """Open one device; "" is the first. Raises DeviceNotFound with the reason."""
        ...


class Recording(Protocol):
    """A recorded step; opaque to the engine."""


class Device(ABC):
    """One opened accelerator. Calls come from one thread. After a fault every call raises Poisoned and touches
    nothing."""

    @property
    @abstractmethod
    def target(self) -> Target:
        """What to compile for."""

    @abstractmethod
    def allocate(self, kind: BufferKind, nbytes: int) -> Buffer:
        """Zero-filled memory at a stable address. Raises OutOfMemory and leaves the device usable."""

    @abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Give a buffer back; idempotent. No pending recording may use it."""

    @abstractmethod
    def upload(self, use: WeightUse, stored: StoredTensor) -> Buffer:
        """A weight in its device layout. Host memory beyond the stored bytes stays bounded."""

    @abstractmethod
    def lower(self, program: Program, bindings: Bindings) -> Recording:
        """Make the program ready to replay. A transaction: on failure nothing partial is published."""

    @abstractmethod
    def replay(self, recording: Recording) -> None:
        """Submit once. It may wait, bounded, only between the submissions of one recording."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the oldest replay not waited for yet, at once if there is none; bounded by the configured timeout.

        Raises the staged KernelFault, DeviceLost or DeviceTimeout.
        """

    @abstractmethod
    def write(self, buffer: Buffer, data: bytes | memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copy host bytes in: after every submitted replay, before the next one."""

    @abstractmethod
    def read(self, buffer: Buffer, out: memoryview | NDArray[Any], offset: int = 0) -> None:
        """Copy bytes out into `out`, after every submitted replay. The output block of the replay that `synchronize`
        last
        waited for is served without a further submission where the device can."""

    @abstractmethod
    def memory(self) -> MemoryInfo:
        """The runtime's counters as they are now."""

    @abstractmethod
    def device_time(self) -> float | None:
        """Seconds the device was busy with the last replay; None where the runtime does not say."""

    @abstractmethod
    def release(self, recording: Recording) -> None:
        """Forget a recording; idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; idempotent, also while work is pending and after a fault."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel as the target's code: `code` is text or bytes, `entry` its entry point. Pure function of kernel and
    caps."""

    name: str
    code: bytes
    entry: str


@dataclass(frozen=True, slots=True)
class BoundArg:
    """A dispatch's argument: a slice and its own element count."""

    slice: BufferSlice
    count: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A loaded kernel, its arguments in parameter order, its grid and the planner's weight."""

    kernel: Any
    args: tuple[BoundArg, ...]
    groups: tuple[int, int, int]
    work: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A device-to-device copy of equally long slices that do not overlap."""

    source: BufferSlice
    target: BufferSlice


Commands = Sequence[Dispatch | Copy]

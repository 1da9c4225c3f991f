"""A physical device as data. Nothing here needs the library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from poot_executor.kernel.fragments import FragmentShape


class Kind(Enum):
    """What a physical device is."""

    INTEGRATED = "integrated GPU"
    DISCRETE = "discrete GPU"
    VIRTUAL = "virtual GPU"
    CPU = "CPU"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class MemoryType:
    """A memory type: the heap it draws on and what it is. `mapped`: visible to the host and coherent."""

    heap: int
    device_local: bool
    mapped: bool
    cached: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a device, in bytes, threads, groups or bindings."""

    bindings: int
    binding_bytes: int
    allocation_bytes: int
    offset_alignment: int
    shared_bytes: int
    group_size: int
    groups: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Adapter:
    """A physical device's facts.

    `version` is its Vulkan version (major, minor); `features` names what of the features and extensions that a device
    may use it has (see `instance`); `subgroup` is (default, least, greatest) width; `heaps` are the sizes of its memory
    heaps; `queue` is its queue family for compute, `stamp_bits` the valid bits of that family's time stamps and
    `stamp_period` their unit in nanoseconds; `identity` tells devices and drivers apart; `fragments` are the matrix
    products that a subgroup makes.
    """

    name: str
    driver: str
    kind: Kind
    version: tuple[int, int]
    features: frozenset[str]
    subgroup: tuple[int, int, int]
    limits: Limits
    memory: tuple[MemoryType, ...]
    heaps: tuple[int, ...]
    queue: int
    stamp_bits: int
    stamp_period: float
    identity: str
    fragments: tuple[FragmentShape, ...] = ()

    @property
    def software(self) -> bool:
        """Whether it is a CPU."""
        return self.kind is Kind.CPU

    @property
    def refusal(self) -> str | None:
        """Why it cannot be used; None where it can."""
        if self.version < (1, 1):
            return f"{self.name} has Vulkan {self.version[0]}.{self.version[1]}, poot needs 1.1: update its driver"
        if "robust" not in self.features:
            return (
                f"{self.name} has no robust buffer access, so a kernel's stray index could hit any memory: "
                "update its driver or choose another device"
            )
        if self.queue < 0:
            return f"{self.name} has no queue that computes"
        return None

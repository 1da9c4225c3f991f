"""What memory instructions reach: global memory, each group's local memory, each lane's private one.

Addresses of lanes that are not active are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.faults import MemoryFault
from poot_eval.gfx11.local_races import LocalRaces
from poot_eval.gfx11.memory import AddressSpace, Refuse, gather, scatter
from poot_eval.gfx11.operands import LOCAL_APERTURE, PRIVATE_APERTURE

Array = NDArray[Any]
Bytes = NDArray[np.uint8]

GLOBAL, FLAT, LOCAL, PRIVATE = "global memory", "flat memory", "local memory", "private memory"


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One memory instruction: what it does ("load", "store", "atomic"), to which memory, and where in the code."""

    kind: str
    memory: str
    instruction: int


@dataclass(frozen=True, slots=True, eq=False)
class Actors:
    """Who accesses: for each address, the wave and the lane."""

    wave: NDArray[np.int64]
    lane: NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Reach:
    """`local` holds `local_size` bytes a group, `private` holds `private_size` bytes a lane; `group` is each wave's
    group among those that run, `code` the address at which the code object lies.
    """

    kernel: str
    code: int
    space: AddressSpace
    local: Bytes
    local_size: int
    private: Bytes
    private_size: int
    group: NDArray[np.int64]
    lanes: int
    races: LocalRaces | None

    def load(self, access: Access, addresses: NDArray[np.uint64], by: Actors, size: int) -> Bytes:
        """`size` bytes for each address: [addresses, size]."""
        if access.memory in {LOCAL, PRIVATE}:
            return gather(*self._own(access, addresses, by, size), size)
        if access.memory == FLAT:
            out = np.empty((addresses.size, size), np.uint8)
            for part, chosen in _apertures(access, addresses):
                out[chosen] = self.load(part, _within(part, addresses[chosen]), _some(by, chosen), size)
            return out
        return self.space.load(addresses, size, self._refuse(access))

    def store(self, access: Access, addresses: NDArray[np.uint64], by: Actors, values: Bytes) -> None:
        """Write bytes [addresses, size]; of equal addresses the last lane's."""
        if access.memory in {LOCAL, PRIVATE}:
            data, offsets = self._own(access, addresses, by, values.shape[1])
            scatter(data, offsets, values)
        elif access.memory == FLAT:
            for part, chosen in _apertures(access, addresses):
                self.store(part, _within(part, addresses[chosen]), _some(by, chosen), values[chosen])
        else:
            self.space.store(addresses, values, self._refuse(access))

    def word(self, access: Access, address: int, wave: int, lane: int, size: int) -> Array:
        """One number in memory as an array of one element, to be changed in place."""
        if access.memory == FLAT:
            ((access, _),) = _apertures(access, np.array([address], np.uint64))
            address = int(_within(access, np.array([address], np.uint64))[0])
        if access.memory == GLOBAL:
            return self.space.word(address, size, self._refuse(access))
        by = Actors(np.array([wave]), np.array([lane]))
        data, offsets = self._own(access, np.array([address], np.uint64), by, size)
        if address % size:
            raise self._refuse(access)(address, f"is not aligned to {size} bytes")
        return data[int(offsets[0]) : int(offsets[0]) + size].view(f"u{size}")

    def _own(self, access: Access, addresses: Array, by: Actors, size: int) -> tuple[Bytes, NDArray[np.int64]]:
        """Local or private memory as one array, and where in it the accesses are."""
        local = access.memory == LOCAL
        limit = self.local_size if local else self.private_size
        wrong = addresses + np.uint64(size) > np.uint64(limit)
        if wrong.any():
            at = int(addresses[wrong][0])
            raise self._refuse(access)(at, f"of {size} bytes ends past its {limit} bytes")
        inside = addresses.astype(np.int64)
        if local:
            if self.races is not None:
                self.races.touch(access.kind, access.instruction, self.group[by.wave] * limit + inside, by.wave, size)
            return self.local, self.group[by.wave] * limit + inside
        return self.private, (by.wave * self.lanes + by.lane) * limit + inside

    def _refuse(self, access: Access) -> Refuse:
        def refuse(at: int, why: str) -> Exception:
            return MemoryFault(self.kernel, access.kind, access.memory, at, access.instruction, why)

        return refuse


def _apertures(access: Access, addresses: NDArray[np.uint64]) -> list[tuple[Access, NDArray[np.bool_]]]:
    """A flat access as accesses of the memories that its addresses mean."""
    top = addresses >> np.uint64(32)
    parts = (
        (LOCAL, top == LOCAL_APERTURE >> 32),
        (PRIVATE, top == PRIVATE_APERTURE >> 32),
    )
    rest = ~(parts[0][1] | parts[1][1])
    found = [(Access(access.kind, memory, access.instruction), chosen) for memory, chosen in (*parts, (GLOBAL, rest))]
    return [(part, chosen) for part, chosen in found if chosen.any()]


def _within(part: Access, addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return addresses if part.memory == GLOBAL else addresses & np.uint64(0xFFFFFFFF)


def _some(by: Actors, chosen: NDArray[np.bool_]) -> Actors:
    return Actors(by.wave[chosen], by.lane[chosen])

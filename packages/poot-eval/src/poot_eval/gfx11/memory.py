"""Memory that machine code reaches: regions at addresses, every access checked against them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import KernelError

Array = NDArray[Any]
Addresses = NDArray[np.uint64]
Refuse = Callable[[int, str], Exception]
"""Makes the error of an access from its first offending address and what is wrong with it."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """`data` are the bytes at `start`."""

    name: str
    start: int
    data: NDArray[np.uint8]
    writable: bool = True

    @property
    def end(self) -> int:
        """One past the last address."""
        return self.start + self.data.size


class AddressSpace:
    """Regions that do not overlap, or KernelError is raised. What lies between them cannot be reached."""

    def __init__(self, regions: Sequence[Region] = ()) -> None:
        self._regions: list[Region] = []
        self._starts = np.zeros(0, np.uint64)
        self._ends = np.zeros(0, np.uint64)
        self._keep(list(regions))

    def add(self, name: str, array: Array, *, address: int | None = None, writable: bool = True) -> int:
        """Map the bytes of a contiguous array, where they lie in this process or at `address`. Returns the address."""
        data = array.reshape(-1).view(np.uint8)
        start = int(data.__array_interface__["data"][0]) if address is None else address
        self._keep([*self._regions, Region(name, start, data, writable)])
        return start

    def _keep(self, regions: list[Region]) -> None:
        regions.sort(key=lambda region: region.start)
        for low, high in pairwise(regions):
            if low.end > high.start:
                raise KernelError(f"{low.name} and {high.name} overlap in memory")
        self._regions = regions
        self._starts = np.array([region.start for region in regions], np.uint64)
        self._ends = np.array([region.end for region in regions], np.uint64)

    def load(self, addresses: Addresses, size: int, refuse: Refuse) -> NDArray[np.uint8]:
        """`size` bytes from each address: [addresses, size]."""
        out = np.empty((addresses.size, size), np.uint8)
        for region, chosen in self._places(addresses, size, refuse):
            out[chosen] = gather(region.data, (addresses[chosen] - np.uint64(region.start)).astype(np.int64), size)
        return out

    def store(self, addresses: Addresses, values: NDArray[np.uint8], refuse: Refuse) -> None:
        """Write bytes [addresses, size]; of equal addresses the last one's."""
        for region, chosen in self._places(addresses, values.shape[1], refuse):
            if not region.writable:
                raise refuse(int(addresses[chosen][0]), f"writes {region.name}, which is read only")
            scatter(region.data, (addresses[chosen] - np.uint64(region.start)).astype(np.int64), values[chosen])

    def word(self, address: int, size: int, refuse: Refuse) -> Array:
        """One writable number of 4 or 8 bytes as an array of one element: what an atomic operation changes."""
        ((region, _),) = self._places(np.array([address], np.uint64), size, refuse)
        if not region.writable:
            raise refuse(address, f"writes {region.name}, which is read only")
        at = address - region.start
        if at % size or address % size:
            raise refuse(address, f"is not aligned to {size} bytes")
        return region.data[at : at + size].view(np.dtype(f"u{size}"))

    def _places(self, addresses: Addresses, size: int, refuse: Refuse) -> list[tuple[Region, Any]]:
        """The regions of some addresses, each with which of them it has."""
        if not addresses.size:
            return []
        index = np.searchsorted(self._starts, addresses, "right") - 1
        # Compared so that no sum passes the end of the address space.
        room = np.where(index >= 0, self._ends[index] - np.minimum(self._ends[index], addresses), 0)
        wrong = room < size
        if wrong.any():
            at = int(addresses[wrong][0])
            raise refuse(at, self._beside(at, size))
        first = int(index[0])
        if (index == first).all():
            return [(self._regions[first], slice(None))]
        return [(self._regions[i], index == i) for i in np.unique(index)]

    def _beside(self, address: int, size: int) -> str:
        """What is wrong with an access of `size` bytes there."""
        below = [region for region in self._regions if region.start <= address]
        if below and address < below[-1].end:
            return f"of {size} bytes ends past {below[-1].name}"
        if below and address - below[-1].end < 1 << 20:
            return f"is {address - below[-1].end} bytes past the end of {below[-1].name}"
        above = [region for region in self._regions if region.start > address]
        if above and above[0].start - address < 1 << 20:
            return f"is {above[0].start - address} bytes before {above[0].name}"
        return "is in no region"


def gather(data: NDArray[np.uint8], offsets: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """`size` bytes from each offset, all of which lie inside."""
    unit = _unit(data, offsets, size)
    if unit == 1:
        return data[offsets[:, None] + np.arange(size)]
    words = data[: data.size // unit * unit].view(f"u{unit}")
    return words[offsets[:, None] // unit + np.arange(size // unit)].view(np.uint8)


def scatter(data: NDArray[np.uint8], offsets: NDArray[np.int64], values: NDArray[np.uint8]) -> None:
    """Write `values` [offsets, size] at the offsets, all of which lie inside."""
    size = values.shape[1]
    unit = _unit(data, offsets, size)
    if unit == 1:
        data[offsets[:, None] + np.arange(size)] = values
        return
    words = data[: data.size // unit * unit].view(f"u{unit}")
    words[offsets[:, None] // unit + np.arange(size // unit)] = np.ascontiguousarray(values).view(f"u{unit}")


def _unit(data: NDArray[np.uint8], offsets: NDArray[np.int64], size: int) -> int:
    """The largest element, up to 4 bytes, that every access consists of."""
    unit = 4 if size % 4 == 0 else 2 if size % 2 == 0 else 1
    while unit > 1 and ((offsets % unit).any() or data.__array_interface__["data"][0] % unit):
        unit //= 2
    return unit

"""The memory of an interpreted kernel: buffers under robust access, shared arrays, and atomics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.faults import OutOfRangeError, RaceError, RangeFault
from poot_eval.kernel_values import POISON_BITS, poison
from poot_eval.races import Actors, Tracker
from poot_executor.errors import KernelError
from poot_executor.kernel.ir import Access, Kernel, SharedArray

Array = NDArray[Any]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_] | None

_ATOMICS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {"add": np.add, "min": np.minimum, "max": np.maximum, "or": np.bitwise_or}
)


@dataclass(slots=True, eq=False)
class Place:
    """An array that a kernel reaches. `stride` elements belong to each group of the running chunk,
    0 for a buffer, which all share. `base` is where the array starts in its tracker; what is not
    checked for races (a buffer that the dispatch never writes) has none."""

    name: str
    data: Array
    count: int
    stride: int
    tracker: Tracker | None
    base: int = 0


@dataclass(slots=True, eq=False)
class Lanes:
    """The threads of the running chunk of groups, of which `first` is the first group.

    Values broadcast to [groups, threads]; `epoch` counts the barriers of each group.
    """

    groups: int
    threads: int
    first: int
    epoch: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.epoch = np.zeros((self.groups, 1), np.int64)

    @property
    def shape(self) -> tuple[int, int]:
        """Groups and threads a group."""
        return self.groups, self.threads

    def actors(self, mask: Mask) -> Actors:
        """Who is active, flat in thread order."""
        group = self.first + np.arange(self.groups)[:, None]
        thread = group * self.threads + np.arange(self.threads)
        return Actors(self.flat(thread, mask), self.flat(group, mask), self.flat(self.epoch, mask))

    def flat(self, value: Array, mask: Mask) -> Array:
        """The active threads' values, flat in thread order."""
        whole = np.broadcast_to(value, self.shape + value.shape[2:])
        if mask is None:
            return whole.reshape(-1, *value.shape[2:])
        return whole[np.broadcast_to(mask, self.shape)]


@dataclass(frozen=True, slots=True, eq=False)
class Spot:
    """One memory operation: the array, the threads that run, the active ones, and the line."""

    place: Place
    lanes: Lanes
    mask: Mask
    line: str

    def words(self, index: Array, width: int) -> Ints:
        """Where in the array's data each thread's elements lie, with an axis of `width` if > 1."""
        at = index.astype(np.int64)
        if self.place.stride:
            at = at + np.arange(self.lanes.groups)[:, None] * self.place.stride
        return at[..., None] + np.arange(width) if width > 1 else at


class Memory:
    """Everything a kernel's loads and stores go through.

    A load outside an array gives some value (here a pattern that shows), a store there is dropped,
    and both are recorded in `faults`.
    """

    def __init__(
        self,
        kernel: Kernel,
        buffers: Sequence[Array],
        counts: Sequence[int],
        *,
        strict: bool,
        races: bool,
    ) -> None:
        self.kernel = kernel
        self.strict = strict
        self.races = races
        self.faults: dict[tuple[str, str, str], RangeFault] = {}
        self.buffers = [
            Place(param.name, data, count, 0, None)
            for param, data, count in zip(kernel.params, buffers, counts, strict=True)
        ]
        self.shared: list[Place] = []
        _track_overlaps(kernel, self.buffers, races)

    def enter(self, lanes: Lanes) -> None:
        """Fresh shared memory, holding an undefined pattern, for a chunk of groups."""
        self.shared = [self._shared(array, lanes.groups) for array in self.kernel.shared]

    def _shared(self, array: SharedArray, groups: int) -> Place:
        data = np.repeat(poison(array.dtype), groups * array.count)
        tracker = Tracker(data.size) if self.races else None
        return Place(array.name, data, array.count, array.count, tracker)

    def load(self, spot: Spot, index: Array, width: int) -> Array:
        """Elements [index, index + width) for each thread."""
        inside = self._inside(spot, "load", index, width)
        place, words = spot.place, spot.words(index, width)
        if not place.data.size:
            return np.full(words.shape, np.uint32(POISON_BITS).view(place.data.dtype))
        values = place.data.take(words, mode="clip")
        if place.tracker is not None:
            chosen = _and(spot.mask, inside)
            flat, by = self._touched(spot, words, chosen)
            self._raise_race(spot, flat, place.tracker.read(flat, by), by, "read")
        if inside is None:
            return values
        outside = np.uint32(POISON_BITS).view(values.dtype)
        return np.where(inside[..., None] if width > 1 else inside, values, outside)

    def store(self, spot: Spot, index: Array, value: Array) -> None:
        """Write each active thread's value from its index on."""
        width = value.shape[2] if value.ndim == 3 else 1
        chosen = _and(spot.mask, self._inside(spot, "store", index, width))
        place, lanes = spot.place, spot.lanes
        words = spot.words(index, width)
        at, new = lanes.flat(words, chosen), lanes.flat(value, chosen)
        changed = (place.data[at].view(np.uint32) != new.view(np.uint32)).reshape(-1)
        place.data[at] = new
        if place.tracker is None:
            return
        flat, by = self._touched(spot, words, chosen)
        # Shared memory: any two writes race. Buffers: two writes of one value are allowed.
        race = place.tracker.write(flat, by, None if place.stride else changed)
        race |= (place.data[at].view(np.uint32) != new.view(np.uint32)).reshape(-1)
        self._raise_race(spot, flat, race, by, "written")

    def touch(self, spot: Spot, index: Array, width: int, *, write: bool) -> None:
        """Elements [index, index + width) count as written, or as read, by each active thread, and stay as they are."""
        place, words = spot.place, spot.words(index, width)
        if place.tracker is None:
            return
        flat, by = self._touched(spot, words, _and(spot.mask, self._inside(spot, "copy", index, width)))
        race = place.tracker.write(flat, by, None) if write else place.tracker.read(flat, by)
        self._raise_race(spot, flat, race, by, "written" if write else "read")

    def read_by_several(self, spot: Spot, index: Ints, threads: int) -> None:
        """Elements index[groups, parts, n] of a shared array count as read by two threads of each part of `threads`."""
        place, lanes = spot.place, spot.lanes
        if place.tracker is None:
            return
        whole = np.ones((lanes.groups, 1), np.bool_) if spot.mask is None else spot.mask
        groups: NDArray[np.bool_] = np.logical_or.reduce(whole, axis=1, keepdims=True)
        chosen = np.broadcast_to(groups[..., None], index.shape)
        words = (index + np.arange(lanes.groups)[:, None, None] * place.stride)[chosen]
        group = lanes.first + np.arange(lanes.groups)[:, None, None]
        epoch = np.broadcast_to(lanes.epoch[..., None], index.shape)[chosen]
        for second in (0, 1):
            thread = np.asarray(group * lanes.threads + np.arange(index.shape[1])[:, None] * threads + second, np.int64)
            by = Actors(
                np.broadcast_to(thread, index.shape)[chosen], np.broadcast_to(group, index.shape)[chosen], epoch
            )
            self._raise_race(spot, words, place.tracker.read(words, by), by, "read")

    def atomic(self, spot: Spot, index: Array, value: Array, operation: str) -> Array:
        """Read, change and write back, one thread after another in thread order; the old values."""
        chosen = _and(spot.mask, self._inside(spot, "atomic", index, 1))
        place, lanes = spot.place, spot.lanes
        words = spot.words(index, 1)
        if place.tracker is not None:
            flat, by = self._touched(spot, words, chosen)
            self._raise_race(spot, flat, place.tracker.atomic(flat, by), by, "changed atomically")
        at, operands = lanes.flat(words, chosen), lanes.flat(value, chosen)
        function, data = _ATOMICS[operation], place.data
        old = np.zeros(at.size, data.dtype)
        for i, word in enumerate(at):
            old[i] = data[word]
            data[word] = function(old[i], operands[i])
        result = np.zeros(lanes.shape, data.dtype)
        result[np.broadcast_to(True if chosen is None else chosen, lanes.shape)] = old
        return result

    def _inside(self, spot: Spot, access: str, index: Array, width: int) -> Mask:
        """Which threads stay inside the array, aligned to the width; None where all do."""
        place = spot.place
        if width == 1:
            inside = index.view(np.uint32) < np.uint32(place.count)
        else:
            inside = (index >= 0) & (index <= place.count - width) & (index % width == 0)
        if inside.all():
            return None
        wrong = ~inside if spot.mask is None else spot.mask & ~inside
        if wrong.any():
            first = int(np.broadcast_to(index, wrong.shape)[wrong][0])
            name = self.kernel.name
            fault = RangeFault(name, place.name, access, first, place.count, spot.line)
            if self.strict:
                raise OutOfRangeError(fault)
            self.faults.setdefault((place.name, access, spot.line), fault)
        return inside

    @staticmethod
    def _touched(spot: Spot, words: Ints, chosen: Mask) -> tuple[Ints, Actors]:
        """The words of the tracker that are touched, flat, and by whom."""
        flat, by = spot.lanes.flat(words, chosen), spot.lanes.actors(chosen)
        if flat.ndim == 2:
            by = by.repeated(flat.shape[1])
        return flat.reshape(-1) + spot.place.base, by

    def _raise_race(self, spot: Spot, words: Ints, race: NDArray[np.bool_], by: Actors, what: str) -> None:
        if race.any():
            place = spot.place
            index = (int(words[race][0]) - place.base) % (place.stride or place.data.size)
            reason = f"{what} by thread {by.thread[race][0]}, and by another with nothing between"
            raise RaceError(self.kernel.name, place.name, index, reason, spot.line)


def _and(mask: Mask, inside: Mask) -> Mask:
    if mask is None or inside is None:
        return inside if mask is None else mask
    return mask & inside


def _track_overlaps(kernel: Kernel, places: list[Place], races: bool) -> None:
    """Give one tracker to buffers that overlap, where one of them is written.

    Raises KernelError where a buffer that is declared READ overlaps one that the kernel writes.
    """
    kinds = ("store", "atomic", "fragment_store")
    written = {op.attrs["buffer"] for op in kernel.body.walk() if op.kind in kinds and "buffer" in op.attrs}
    for low, high, members in _clusters(places):
        if not written.intersection(members):
            continue
        for i in members:
            if kernel.params[i].access is Access.READ:
                name = f"kernel {kernel.name}: {places[i].name}"
                raise KernelError(f"{name} is read only, and lies in what the kernel writes")
        if races:
            tracker = Tracker((high - low) // 4)
            for i in members:
                places[i].tracker = tracker
                places[i].base = (_address(places[i].data) - low) // 4


def _clusters(places: list[Place]) -> list[tuple[int, int, list[int]]]:
    """Runs of memory [low, high) that overlapping buffers cover, with the buffers in each."""
    clusters: list[tuple[int, int, list[int]]] = []
    for start, i in sorted((_address(p.data), i) for i, p in enumerate(places) if p.data.size):
        end = start + places[i].data.nbytes
        if clusters and start < clusters[-1][1]:
            low, high, members = clusters[-1]
            clusters[-1] = (low, max(high, end), [*members, i])
        else:
            clusters.append((start, end, [i]))
    return clusters


def _address(data: Array) -> int:
    return int(data.__array_interface__["data"][0])

"""What asynchronous copies and products of warpgroups do, in numpy.

A copy happens as late as the language allows: when it is waited for. Whoever forgets to wait sees what was there
before. A product is computed at once, and what it reads counts as read by several threads for as long as it may run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.kernel_halves import halves
from poot_eval.kernel_memory import Lanes, Mask, Memory, Place, Spot
from poot_executor.errors import KernelError
from poot_executor.kernel.ir import Op
from poot_executor.kernel.warpgroups import COLUMNS, DEPTH, LINE, ROWS, SUBGROUP, THREADS, TILE, VECTOR

Array = NDArray[Any]


@dataclass(slots=True, eq=False)
class Waiting:
    """A copy that was begun: four words of each thread in `mask`, for a place of shared memory."""

    spot: Spot
    index: Array
    words: Array


@dataclass(slots=True, eq=False)
class Copies:
    """The copies of the threads of one chunk: those since the last set ended, and the sets that were not waited for."""

    open: list[Waiting] = field(default_factory=list)
    sets: list[tuple[Mask, list[Waiting]]] = field(default_factory=list)

    def begin(self, memory: Memory, source: Spot, target: Spot, place: Array, word: Array) -> None:
        """The operation `shared_copy`. Its target is no longer anyone else's."""
        words = memory.load(source, word, VECTOR)
        memory.touch(target, place, VECTOR, write=True)
        self.open.append(Waiting(target, place, words))

    def commit(self, mask: Mask) -> None:
        """The operation `copy_commit`."""
        self.sets.append((mask, self.open))
        self.open = []

    def wait(self, memory: Memory, mask: Mask, pending: int) -> None:
        """The operation `copy_wait`, for the groups in `mask`."""
        mine = [place for place, (other, _) in enumerate(self.sets) if _overlap(mask, other)]
        done = mine[: len(mine) - pending] if pending else mine
        for place in done:
            for copy in self.sets[place][1]:
                memory.store(copy.spot, copy.index, copy.words)
        self.sets = [entry for place, entry in enumerate(self.sets) if place not in done]


@dataclass(slots=True, eq=False)
class Readers:
    """Products that may still read shared memory behind barriers: where, whose, and behind how many more."""

    lasting: list[tuple[Spot, Array, int]] = field(default_factory=list)

    def product(self, memory: Memory, spot: Spot, op: Op, operands: list[Array], lanes: Lanes) -> tuple[Array, ...]:
        """The operation `warpgroup_mma`."""
        if lanes.threads % THREADS:
            raise KernelError(f"{op.kind} takes whole warpgroups of {THREADS} threads")
        firsts = [_uniform(op, index, lanes) for index in operands[:2]]
        columns = COLUMNS * len(op.results)
        tiles = [_tile(memory, spot, first, lines) for first, lines in zip(firsts, (ROWS, columns), strict=True)]
        self._read(memory, spot, firsts, (ROWS, columns), op.attrs["behind"])
        left, right = (_halves(tile, op.attrs["half"]) for tile in tiles)
        total = left @ right.transpose(0, 1, 3, 2) + _sums(operands[2:], lanes)
        return _lanes(total.astype(np.float32), lanes)

    def _read(self, memory: Memory, spot: Spot, firsts: list[Array], lines: tuple[int, int], behind: int) -> None:
        """Every word is read by two threads of the warpgroup at least, so that no thread may write it."""
        for first, count in zip(firsts, lines, strict=True):
            words = first[..., None] + np.arange(count * LINE)
            memory.read_by_several(spot, words, THREADS)
            if behind:
                self.lasting.append((spot, words, behind))

    def barrier(self, memory: Memory, mask: Mask) -> None:
        """Behind a barrier, products that may still run read again."""
        lasting, self.lasting = self.lasting, []
        for spot, words, behind in lasting:
            if not _overlap(mask, spot.mask):
                self.lasting.append((spot, words, behind))
                continue
            memory.read_by_several(spot, words, THREADS)
            if behind > 1:
                self.lasting.append((spot, words, behind - 1))


def _overlap(mask: Mask, other: Mask) -> bool:
    return mask is None or other is None or bool((mask & other).any())


def _uniform(op: Op, index: Array, lanes: Lanes) -> Array:
    """The first word of each warpgroup's tile: [groups, warpgroups]."""
    by_warpgroup = np.broadcast_to(index, lanes.shape).reshape(lanes.groups, -1, THREADS)
    if (by_warpgroup != by_warpgroup[:, :, :1]).any():
        raise KernelError(f"{op.kind}: threads of a warpgroup have different tiles ({op.line})")
    if (by_warpgroup % TILE).any():
        raise KernelError(f"{op.kind}: a tile begins at no multiple of {TILE} words ({op.line})")
    return by_warpgroup[:, :, 0].astype(np.int64)


def _tile(memory: Memory, spot: Spot, first: Array, lines: int) -> Array:
    """The words of each warpgroup's tile in order: [groups, warpgroups, lines, LINE]."""
    line, word = np.arange(lines)[:, None], np.arange(LINE)
    place = line * LINE + ((word // VECTOR) ^ (line % 8)) * VECTOR + word % VECTOR
    array: Place = spot.place
    at = first[..., None, None] + place
    if (at < 0).any() or (at >= array.count).any():
        raise KernelError(f"kernel {memory.kernel.name}: a tile of {array.name} is outside of it ({spot.line})")
    return array.data[at + np.arange(spot.lanes.groups).reshape(-1, 1, 1, 1) * array.stride]


def _halves(tile: Array, half: str) -> Array:
    """[groups, warpgroups, lines, DEPTH], exactly."""
    return np.stack(halves(tile, half), axis=-1).reshape(*tile.shape[:3], DEPTH).astype(np.float64)


def _sums(values: list[Array], lanes: Lanes) -> Array:
    """[groups, warpgroups, ROWS, columns] of the vectors that threads have."""
    whole = np.stack([np.broadcast_to(v, (*lanes.shape, 4)) for v in values], axis=2)
    # [group, warpgroup, subgroup w, g, t, vector n, lower or upper row, one of two columns]
    apart = whole.reshape(lanes.groups, -1, THREADS // SUBGROUP, 8, 4, len(values), 2, 2)
    ordered = apart.transpose(0, 1, 2, 6, 3, 5, 4, 7)
    return ordered.reshape(lanes.groups, -1, ROWS, COLUMNS * len(values)).astype(np.float64)


def _lanes(total: Array, lanes: Lanes) -> tuple[Array, ...]:
    """The inverse of `_sums`."""
    count = total.shape[3] // COLUMNS
    ordered = total.reshape(lanes.groups, -1, THREADS // SUBGROUP, 2, 8, count, 4, 2)
    apart = ordered.transpose(0, 1, 2, 4, 6, 5, 3, 7).reshape(*lanes.shape, count, 4)
    return tuple(np.ascontiguousarray(apart[:, :, n]) for n in range(count))

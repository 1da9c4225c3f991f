"""Paged KV: blocks of 16 positions of one pool, a block table for each sequence, prefixes shared by content."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from poot_llm.blocks.step import BLOCK, NO_PLACE, SLOT_MAP, WRITE_MAP, StepShape
from poot_llm.driver.block_pool import BlockPool
from poot_llm.driver.kv import Ids, KvLayout, KvUse, Lease, Placement, SlotMaps
from poot_llm.driver.prefix_cache import PrefixCache

NEVER = 1 << 62
"""The positions after which a lease is due that is not indexed any further."""


def blocks_for(positions: int) -> int:
    """Blocks that hold so many positions."""
    return -(-positions // BLOCK)


class PagedKv(KvLayout):
    """`rows` sequences at once of up to `capacity` positions, in a pool of `blocks` blocks, the reserved one among
    them.
    """

    fixed_rows = False

    def __init__(self, rows: int, capacity: int, blocks: int, cache: bool) -> None:
        self._rows = rows
        self._free_rows = list(range(rows))
        self._row_blocks = blocks_for(capacity)
        # Each lease's table is a row of it.
        self._tables = np.zeros((rows, self._row_blocks), np.int32)
        self.pool = BlockPool(blocks)
        self.cache = PrefixCache(self.pool) if cache else None
        self.shares = cache

    def take(self, ids: Sequence[int], positions: int, identity: Hashable, shared: int) -> Lease | None:
        """See `KvLayout`."""
        if not self._free_rows:
            return None
        table = self._tables[self._free_rows[0]]
        lease = Lease(self._free_rows[0], 0, identity, shared, table=table)
        if self.cache is None:
            lease.due = NEVER
        else:
            lease.chain = self.cache.match(identity, ids[: min(shared, len(ids) - 1)])
            lease.blocks = [cached.block for cached in lease.chain]
            table[: len(lease.blocks)] = lease.blocks
            lease.kept = lease.room = len(lease.blocks) * BLOCK
            lease.due = lease.kept + BLOCK
        if not self.extend(lease, positions):
            if self.cache is not None:
                self.cache.hits -= lease.kept
            self._give_back_blocks(lease)
            return None
        heapq.heappop(self._free_rows)
        return lease

    def next_row(self) -> int:
        """See `KvLayout`."""
        return self._free_rows[0] if self._free_rows else 0

    def extend(self, lease: Lease, positions: int) -> bool:
        """See `KvLayout`."""
        if positions <= lease.room:
            return True
        held = len(lease.blocks)
        more = blocks_for(positions) - held
        if held + more > self._row_blocks:
            return False
        lacking = more - self.pool.free
        if lacking > 0 and self.cache is not None and self.cache.idle >= lacking:
            self.cache.evict(lacking)
        taken = self.pool.take(more)
        if taken is None:
            return False
        lease.table[held : held + more] = taken
        lease.blocks += taken
        lease.room += more * BLOCK
        return True

    def computed(self, lease: Lease, ids: Ids, count: int) -> None:
        """Index the blocks that are full now. Where another sequence computed the same, its block takes the place of
        this one's.
        """
        full = min(count, lease.shared) // BLOCK
        lease.due = (full + 1) * BLOCK if (full + 1) * BLOCK <= lease.shared else NEVER
        if self.cache is None:
            return
        for place in range(len(lease.chain), full):
            before = lease.chain[-1] if lease.chain else None
            start, own = place * BLOCK, lease.blocks[place]
            cached = self.cache.register(lease.identity, before, tuple(ids(start, start + BLOCK)), own)
            if cached is None:
                lease.shared, lease.due = start, NEVER
                return
            if cached.block != own:
                self.cache.hold(cached)
                self.pool.give_back(own)
                lease.blocks[place] = lease.table[place] = cached.block
            lease.chain.append(cached)

    def give_back(self, lease: Lease) -> None:
        """See `KvLayout`."""
        self._give_back_blocks(lease)
        heapq.heappush(self._free_rows, lease.row)

    def _give_back_blocks(self, lease: Lease) -> None:
        # The last one first: a cached block goes before those that lead to it.
        for place in reversed(range(len(lease.blocks))):
            self.pool.give_back(lease.blocks[place])
            if self.cache is not None:
                self.cache.released(lease.blocks[place])
        lease.blocks, lease.chain, lease.room = [], [], 0
        lease.table[:] = 0

    def forget(self, leases: Iterable[Lease]) -> None:
        """Sequences that share a block compute it again, each for itself, and write the same into it."""
        for lease in leases:
            lease.chain, lease.due = [], 0
        if self.cache is not None:
            self.cache.clear()

    def slots(self, shape: StepShape, placed: Placement) -> SlotMaps:
        """See `KvLayout`."""
        table = np.zeros((shape.rows, shape.span // BLOCK), np.int32)
        write = np.full((shape.rows, shape.tokens), NO_PLACE, np.int32)
        width = min(table.shape[1], self._row_blocks)
        table[placed.rows, :width] = self._tables[placed.held, :width]
        if shape.tokens == 1:
            block, place = placed.start // BLOCK, placed.start % BLOCK
            write[placed.rows, 0] = self._tables[placed.held, block] * BLOCK + place
        else:
            offsets = np.arange(shape.tokens)
            block, place = np.divmod(placed.start[:, None] + offsets, BLOCK)
            # Beyond a row's count a position may lie beyond its table: nothing is written there.
            places = self._tables[placed.held[:, None], np.minimum(block, self._row_blocks - 1)] * BLOCK + place
            write[placed.rows] = np.where(offsets < placed.count[:, None], places, NO_PLACE)
        if self.cache is not None:
            _write_once(write)
        return {SLOT_MAP: table, WRITE_MAP: write}

    def use(self) -> KvUse:
        """See `KvLayout`."""
        cache = self.cache
        idle = 0 if cache is None else cache.idle
        return KvUse(
            rows=self._rows,
            rows_taken=self._rows - len(self._free_rows),
            blocks=self.pool.count,
            blocks_held=self.pool.count - self.pool.free - idle,
            blocks_cached=0 if cache is None else len(cache),
            blocks_free=self.pool.free + idle,
            reused=0 if cache is None else cache.hits,
            evicted=0 if cache is None else cache.evictions,
        )


def _write_once(write: NDArray[np.int32]) -> None:
    """Leave of a place that several rows would write the first row's: those that share a block and compute positions
    of it again, a last token that was not committed or all of it after a reset, compute the same."""
    flat = write.reshape(-1)
    held = flat[flat >= 0]
    if len(set(held.tolist())) == len(held):
        return
    written = np.flatnonzero(flat >= 0)
    _, first = np.unique(held, return_index=True)
    again = np.ones(len(written), np.bool_)
    again[first] = False
    flat[written[again]] = NO_PLACE

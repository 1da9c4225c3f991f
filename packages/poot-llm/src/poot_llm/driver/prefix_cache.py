"""Full blocks by what they hold, so that a prompt which begins like an earlier one takes its K and V from there.

K and V of a position depend on every id up to it and on the weights: so a block's key is a hash of the chain of ids
from the start, rooted in an identity (weights, adapter, dtype of KV). A hash alone proves nothing: on a hit the ids are
compared, and the block before must be the very one that was found before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from poot_llm.blocks.step import BLOCK
from poot_llm.driver.block_pool import BlockPool

Digest = Callable[[Hashable], int]


@dataclass(frozen=True, slots=True, eq=False)
class CachedBlock:
    """A block of the pool that holds K and V of `ids`, after `before` (None at the start of a sequence)."""

    block: int
    key: int
    identity: Hashable
    ids: tuple[int, ...]
    before: CachedBlock | None


class PrefixCache:
    """The index of full blocks. It holds on to each once; those that nobody else holds go when blocks are wanted, the
    least recently used first. `digest` is for tests of colliding hashes.

    Whoever holds a block holds the blocks before it, and lets go of the last one first: so what goes first is never
    needed to reach another one.
    """

    def __init__(self, pool: BlockPool, digest: Digest = hash) -> None:
        self._pool = pool
        self._digest = digest
        self._index: dict[int, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._idle: OrderedDict[CachedBlock, None] = OrderedDict()
        self.hits = 0
        """Positions that were taken from the cache."""
        self.evictions = 0
        """Blocks that had to go."""

    def __len__(self) -> int:
        return len(self._index)

    @property
    def idle(self) -> int:
        """Blocks that nobody but the cache holds."""
        return len(self._idle)

    def match(self, identity: Hashable, ids: Sequence[int]) -> list[CachedBlock]:
        """The longest chain of cached blocks that `ids` begin with; each is held once more from now on."""
        chain: list[CachedBlock] = []
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            found = self._find(identity, chain[-1] if chain else None, tuple(ids[start : start + BLOCK]))
            if found is None:
                break
            self.hold(found)
            chain.append(found)
        self.hits += len(chain) * BLOCK
        return chain

    def register(
        self, identity: Hashable, before: CachedBlock | None, ids: tuple[int, ...], block: int
    ) -> CachedBlock | None:
        """Index a block whose 16 positions are all computed, after the chain that ends in `before`. Gives the cached
        block of that content: `block` itself, or another one that was there first. None where a different content has
        the key: then the block and what follows it stay out.
        """
        assert len(ids) == BLOCK
        key = self._key(identity, before, ids)
        held = self._index.get(key)
        if held is not None:
            return held if self._same(held, identity, before, ids) else None
        self._pool.share(block)
        fresh = self._index[key] = self._by_block[block] = CachedBlock(block, key, identity, ids, before)
        return fresh

    def hold(self, cached: CachedBlock) -> None:
        """Hold on to a cached block once more."""
        self._pool.share(cached.block)
        self._idle.pop(cached, None)

    def released(self, block: int) -> None:
        """Somebody let go of a block: where the cache alone holds it now, it may go. Who computed it again after it was
        forgotten may have cached it since for others that hold it."""
        cached = self._by_block.get(block)
        if cached is not None and self._pool.references(block) == 1:
            self._idle[cached] = None
            self._idle.move_to_end(cached)

    def evict(self, count: int) -> int:
        """Let go of up to `count` idle blocks; returns how many went."""
        gone = 0
        while gone < count and self._idle:
            cached, _ = self._idle.popitem(last=False)
            self._drop(cached)
            gone += 1
        self.evictions += gone
        return gone

    def clear(self) -> None:
        """Forget everything: the pool's content is gone, or its weights are. Blocks that sequences hold stay theirs."""
        for cached in self._index.values():
            self._pool.give_back(cached.block)
        self._index.clear()
        self._by_block.clear()
        self._idle.clear()

    def forget(self, identity: Hashable) -> None:
        """Forget the idle blocks of one identity, and let no later prompt find the others: an adapter was unloaded."""
        for cached in [c for c in self._index.values() if c.identity == identity]:
            self._idle.pop(cached, None)
            self._drop(cached)

    def _drop(self, cached: CachedBlock) -> None:
        del self._index[cached.key], self._by_block[cached.block]
        self._pool.give_back(cached.block)

    def _key(self, identity: Hashable, before: CachedBlock | None, ids: tuple[int, ...]) -> int:
        return self._digest((identity if before is None else before.key, ids))

    def _find(self, identity: Hashable, before: CachedBlock | None, ids: tuple[int, ...]) -> CachedBlock | None:
        held = self._index.get(self._key(identity, before, ids))
        return held if held is not None and self._same(held, identity, before, ids) else None

    @staticmethod
    def _same(held: CachedBlock, identity: Hashable, before: CachedBlock | None, ids: tuple[int, ...]) -> bool:
        return held.before is before and held.identity == identity and held.ids == ids

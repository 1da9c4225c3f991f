"""Block pool, prefix cache and block tables by themselves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_llm.blocks.step import BLOCK, SLOT_MAP, WRITE_MAP, StepShape
from poot_llm.driver.block_pool import BlockError, BlockPool
from poot_llm.driver.contiguous_kv import ContiguousKv
from poot_llm.driver.kv import Ids, Lease, Placed, Placement
from poot_llm.driver.paged_kv import PagedKv
from poot_llm.driver.prefix_cache import PrefixCache

IDENTITY = ("weights", None)
TEXT = [*range(100, 100 + 5 * BLOCK)]


def of(ids: Sequence[int]) -> Ids:
    return lambda start, stop: ids[start:stop]


def taken(kv: PagedKv, ids: Sequence[int], identity: object = IDENTITY, shared: int = 1000) -> Lease:
    lease = kv.take(ids, len(ids) + 1, identity, shared)
    assert lease is not None
    return lease


def test_blocks_are_taken_all_or_none() -> None:
    pool = BlockPool(5)
    assert pool.take(5) is None and pool.free == 4
    assert pool.take(3) == [1, 2, 3]
    pool.share(2)
    for block in (2, 1):
        pool.give_back(block)
    assert (pool.references(2), pool.free) == (1, 2)
    assert pool.take(2) == [1, 4]
    with pytest.raises(BlockError, match="nobody holds"):
        pool.give_back(0)
    pool.give_back(2)
    with pytest.raises(BlockError, match="nobody holds"):
        pool.give_back(2)
    with pytest.raises(BlockError, match="nobody holds"):
        pool.share(2)
    with pytest.raises(BlockError, match="has none to give"):
        BlockPool(1)


def test_a_full_block_is_shared_and_a_filling_one_is_not() -> None:
    kv = PagedKv(4, 96, 20, cache=True)
    first = taken(kv, TEXT[:40])
    kv.computed(first, of(TEXT), 31)
    assert taken(kv, TEXT[:40]).kept == BLOCK
    kv.computed(first, of(TEXT), 40)
    third = taken(kv, TEXT[:40])
    assert third.kept == 32 and third.blocks[:2] == first.blocks[:2]
    assert third.blocks[2] != first.blocks[2]


def test_the_last_id_is_always_computed() -> None:
    kv = PagedKv(4, 96, 20, cache=True)
    lease = taken(kv, TEXT[:32])
    kv.computed(lease, of(TEXT), 32)
    assert taken(kv, TEXT[:32]).kept == 16
    assert taken(kv, TEXT[:33]).kept == 32


def test_identity_and_supplied_positions_separate_what_ids_do_not() -> None:
    kv = PagedKv(8, 96, 40, cache=True)
    lease = taken(kv, TEXT[:40])
    kv.computed(lease, of(TEXT), 40)
    assert taken(kv, TEXT[:40], ("weights", "adapter")).kept == 0
    assert taken(kv, TEXT[:40], shared=20).kept == 16
    other = taken(kv, [1] * 40, shared=20)
    kv.computed(other, of([1] * 40), 40)
    assert taken(kv, [1] * 40).kept == 16


def test_equal_blocks_become_one() -> None:
    """Two prompts that were computed side by side, neither knowing of the other."""
    kv = PagedKv(4, 96, 20, cache=True)
    first, second = taken(kv, TEXT[:40]), taken(kv, TEXT[:40])
    held = kv.pool.free
    kv.computed(first, of(TEXT), 40)
    kv.computed(second, of(TEXT), 40)
    assert second.blocks[:2] == first.blocks[:2] and list(second.table[:2]) == second.blocks[:2]
    assert kv.pool.free == held + 2
    for lease in (second, first):
        kv.give_back(lease)
    use = kv.use()
    assert (use.blocks_held, use.blocks_cached, use.blocks_free) == (0, 2, 19)


def test_a_shared_block_that_one_computed_again_is_idle_once_the_other_lets_go() -> None:
    """After a reset both still hold it, and only one has it from the cache anew."""
    kv = PagedKv(4, 96, 20, cache=True)
    first, second = taken(kv, TEXT[:40]), taken(kv, TEXT[:40])
    for lease in (first, second):
        kv.computed(lease, of(TEXT), 40)
    kv.forget([first, second])
    kv.computed(first, of(TEXT), 40)
    for lease in (first, second):
        kv.give_back(lease)
    use = kv.use()
    assert (use.blocks_held, use.blocks_cached, use.blocks_free) == (0, 2, 19)
    assert kv.cache is not None and kv.cache.evict(3) == 2


def test_colliding_hashes_are_told_apart() -> None:
    """Every hash is equal: only the first content gets in, and nothing is mistaken for it."""
    pool = BlockPool(10)
    cache = PrefixCache(pool, digest=lambda _: 7)
    blocks = pool.take(2)
    assert blocks is not None
    first = cache.register(IDENTITY, None, tuple(range(16)), blocks[0])
    assert first is not None and first.block == blocks[0]
    assert cache.register(IDENTITY, None, tuple(range(1, 17)), blocks[1]) is None
    assert cache.register(IDENTITY, first, tuple(range(16)), blocks[1]) is None
    assert cache.match(IDENTITY, range(1, 17)) == []
    assert cache.match("other", range(16)) == []
    assert cache.match(IDENTITY, range(16)) == [first]


def test_the_least_recently_used_go_first() -> None:
    kv = PagedKv(4, 64, 7, cache=True)
    assert kv.cache is not None
    texts = [[n * 1000 + i for i in range(33)] for n in range(3)]
    for text in texts[:2]:
        lease = taken(kv, text)
        kv.computed(lease, of(text), 33)
        kv.give_back(lease)
    kv.give_back(taken(kv, texts[0]))
    lease = taken(kv, texts[2])
    assert kv.use().evicted == 1
    kv.give_back(lease)
    # The last block of the second text went, its first one is still of use.
    assert [taken(kv, text).kept for text in texts[:2]] == [32, 16]


def test_what_a_sequence_holds_is_not_evicted() -> None:
    kv = PagedKv(4, 64, 5, cache=True)
    lease = taken(kv, TEXT[:33])
    kv.computed(lease, of(TEXT), 33)
    assert kv.take([1] * 17, 33, IDENTITY, 99) is None
    assert kv.use().evicted == 0 and kv.use().rows_taken == 1
    kv.give_back(lease)
    assert kv.take([1] * 17, 33, IDENTITY, 99) is not None


def test_an_adapter_that_goes_takes_its_blocks_along() -> None:
    kv = PagedKv(4, 64, 9, cache=True)
    assert kv.cache is not None
    for identity in (IDENTITY, ("weights", "adapter")):
        lease = taken(kv, TEXT[:33], identity)
        kv.computed(lease, of(TEXT), 33)
        kv.give_back(lease)
    kv.cache.forget(("weights", "adapter"))
    assert kv.use().blocks_cached == 2
    assert taken(kv, TEXT[:33], ("weights", "adapter")).kept == 0
    assert taken(kv, TEXT[:33]).kept == 32


def test_a_reset_forgets_contents_and_keeps_blocks() -> None:
    kv = PagedKv(4, 64, 12, cache=True)
    first = taken(kv, TEXT[:33])
    kv.computed(first, of(TEXT), 33)
    second = taken(kv, TEXT[:33])
    kv.forget([first, second])
    assert second.blocks[:2] == first.blocks[:2]
    assert taken(kv, TEXT[:33]).kept == 0
    kv.computed(second, of(TEXT), 33)
    kv.computed(first, of(TEXT), 33)
    assert first.blocks[:2] == second.blocks[:2]
    kv.give_back(first)
    kv.give_back(second)
    assert taken(kv, TEXT[:33]).kept == 32


def test_slots_of_a_step() -> None:
    kv = PagedKv(3, 48, 12, cache=False)
    kv.give_back(taken(kv, [1]))
    first, second = taken(kv, [1] * 20), taken(kv, [1] * 3)
    shape = StepShape(4, 4, 48, 32, 12)
    slots = kv.slots(shape, Placement.of([Placed(first, 2, 14, 4), Placed(second, 0, 0, 3)]))
    a, b = first.blocks
    np.testing.assert_array_equal(slots[SLOT_MAP], [[second.blocks[0], 0], [0, 0], [a, b], [0, 0]])
    start = second.blocks[0] * BLOCK
    expected = [[start, start + 1, start + 2, -1], [-1] * 4, [a * 16 + 14, a * 16 + 15, b * 16, b * 16 + 1], [-1] * 4]
    np.testing.assert_array_equal(slots[WRITE_MAP], expected)
    assert slots[SLOT_MAP].dtype == slots[WRITE_MAP].dtype == np.int32


def test_a_contiguous_row_keeps_what_it_held() -> None:
    kv = ContiguousKv(2, 64, cache=True)
    first = kv.take(TEXT[:20], 30, IDENTITY, 99)
    assert first is not None and (first.row, first.kept) == (0, 0)
    kv.computed(first, of(TEXT), 20)
    kv.give_back(first)
    other = kv.take([1, 2, 3], 30, IDENTITY, 99)
    assert other is not None and (other.row, other.kept) == (1, 0)
    kv.give_back(other)
    assert kv.use().reused == 0
    again = kv.take(TEXT[:20], 30, IDENTITY, 99)
    assert again is not None and (again.row, again.kept) == (0, 19)
    kv.computed(again, of(TEXT), 20)
    kv.give_back(again)
    longer = kv.take(TEXT[:30], 40, IDENTITY, 99)
    assert longer is not None and (longer.row, longer.kept) == (again.row, 20)
    beside = kv.take(TEXT[:30], 40, IDENTITY, 99)
    assert beside is not None and (beside.row, beside.kept) == (1, 0)
    assert kv.take([1], 2, IDENTITY, 99) is None and kv.use().rows_taken == 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 70), st.integers(0, 3)), max_size=40))
def test_blocks_always_add_up(calls: list[tuple[int, int, int]]) -> None:
    """Takes, growth, computing and giving back in any order: each block is free, held or cached, and counted once."""
    kv = PagedKv(4, 80, 12, cache=True)
    assert kv.cache is not None
    open_: list[tuple[Lease, list[int]]] = []
    for call, length, which in calls:
        if call <= 1:
            ids = [which * 7 + place // 20 for place in range(length)]
            lease = kv.take(ids, length + 1, IDENTITY, 1000)
            if lease is not None:
                open_.append((lease, ids))
        elif open_ and call == 2:
            kv.extend(open_[which % len(open_)][0], length)
        elif open_ and call == 3:
            lease, ids = open_[which % len(open_)]
            kv.computed(lease, of(ids), min(len(ids), length))
        elif open_ and call == 4:
            kv.give_back(open_.pop(which % len(open_))[0])
        elif call == 5 and which == 0:
            kv.forget([lease for lease, _ in open_])
        holds = [0] * 12
        for lease, _ in open_:
            assert list(lease.table[: len(lease.blocks)]) == lease.blocks and not lease.table[len(lease.blocks) :].any()
            for block in lease.blocks:
                holds[block] += 1
        held = sum(map(bool, holds))
        use = kv.use()
        assert use.blocks_held == held and use.blocks_free == 11 - held
        references = [kv.pool.references(block) for block in range(12)]
        assert references[0] == 0 and sum(references) == sum(holds) + len(kv.cache)
    for lease, _ in open_:
        kv.give_back(lease)
    assert kv.use().blocks_held == 0 and kv.use().rows_taken == 0

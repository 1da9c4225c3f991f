"""Sub-allocation against a model of memory: pieces apart, aligned, within their blocks; few blocks; nothing lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_vulkan_device.allocator import Allocator, Block, Piece

BLOCK = 4096


class Pool:
    """Memory of two types with so many bytes each; counts what is out."""

    def __init__(self, nbytes: int) -> None:
        self.left = [nbytes, nbytes]
        self.calls = 0
        self.held: set[int] = set()

    def allocate(self, type: int, nbytes: int) -> Any | None:
        if nbytes > self.left[type]:
            return None
        self.left[type] -= nbytes
        self.calls += 1
        self.held.add(self.calls)
        return self.calls

    def release(self, type: int, nbytes: int, memory: Any) -> None:
        self.held.remove(memory)
        self.left[type] += nbytes


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 6000), st.sampled_from([1, 16, 64, 256])),
        st.tuples(st.just("give"), st.integers(0, 200), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_pieces_are_apart_and_everything_comes_back(steps: list[tuple[str, int, int, int]]) -> None:
    pool = Pool(1 << 15)
    allocator = Allocator(pool, (BLOCK, BLOCK))
    pieces: list[Piece] = []
    for what, number, nbytes, alignment in steps:
        if what == "take":
            piece = allocator.take(number, nbytes, alignment)
            if piece is None:
                # Not even a block of the piece's own size was left.
                assert pool.left[number] < nbytes
                continue
            assert piece.offset % alignment == 0
            assert piece.offset + nbytes <= piece.block.nbytes
            assert piece.block.type == number
            for other in pieces:
                if other.block is piece.block:
                    assert piece.offset + nbytes <= other.offset or other.offset + other.nbytes <= piece.offset
            pieces.append(piece)
        elif pieces:
            allocator.give(pieces.pop(number % len(pieces)))
        assert allocator.blocks == len(pool.held)
    for piece in pieces:
        allocator.give(piece)
    assert allocator.blocks <= 2, "one empty block a type is kept"
    allocator.trim()
    assert not pool.held
    assert pool.left == [1 << 15, 1 << 15]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_a_block_that_got_everything_back_is_whole(sizes: list[int], random: Any) -> None:
    block = Block(0, BLOCK * 4, None)
    taken = []
    for size in sizes:
        offset = block.take(size, 8)
        assert offset is not None
        taken.append((offset, size))
    free = sum(high - low for low, high in block.free)
    assert free == block.nbytes - sum(sizes)
    random.shuffle(taken)
    for offset, size in taken:
        block.give(offset, size)
        assert all(a[1] < b[0] for a, b in zip(block.free, block.free[1:], strict=False)), "neighbours are joined"
    assert block.empty


def test_many_small_pieces_share_a_block() -> None:
    pool = Pool(1 << 20)
    allocator = Allocator(pool, (BLOCK, BLOCK))
    pieces = [allocator.take(0, 64, 64) for _ in range(BLOCK // 64)]
    assert pool.calls == 1
    assert {piece.offset for piece in pieces if piece is not None} == set(range(0, BLOCK, 64))
    allocator.take(0, 64, 64)
    assert pool.calls == 2


def test_a_large_piece_has_a_block_of_its_own_that_goes_with_it() -> None:
    pool = Pool(1 << 20)
    allocator = Allocator(pool, (BLOCK, BLOCK))
    large = allocator.take(0, BLOCK // 2 + 1, 16)
    assert large is not None
    assert large.block.nbytes == BLOCK // 2 + 1
    allocator.give(large)
    assert not pool.held


def test_the_smallest_range_that_holds_it() -> None:
    block = Block(0, 1000, None)
    places = [block.take(100, 1) for _ in range(10)]
    assert places == list(range(0, 1000, 100))
    block.give(100, 100)
    block.give(400, 300)
    assert block.take(80, 1) == 100
    assert block.take(200, 1) == 400


@pytest.mark.parametrize("short", [BLOCK - 1, 100])
def test_where_no_usual_block_fits_one_of_the_piece_s_size_does(short: int) -> None:
    allocator = Allocator(Pool(short), (BLOCK, BLOCK))
    piece = allocator.take(0, 64, 16)
    assert piece is not None
    assert piece.block.nbytes == 64


def test_a_kept_block_is_given_back_where_memory_runs_out() -> None:
    pool = Pool(BLOCK * 2 - 1)
    allocator = Allocator(pool, (BLOCK, BLOCK))
    small = allocator.take(0, 16, 16)
    assert small is not None
    allocator.give(small)
    assert len(pool.held) == 1
    large = allocator.take(0, BLOCK, 16)
    assert large is not None
    assert len(pool.held) == 1

"""Random words: a thread a word."""

from __future__ import annotations

from poot_executor.kernel.lang import Hook, group_id, group_size, i32, kernel, thread_id, u32
from poot_executor.kernels.threefry import threefry


@kernel
def random_bits(*, seed: Hook, position: Hook, store: Hook, rows: int, columns: int, across: int) -> None:
    """out[row, id] = word 0 of threefry(key = seed[row], counter = (position[row], id)); `across` groups a grid row."""
    place = (group_id(1) * across + group_id(0)) * group_size() + thread_id()
    if place < rows * columns:
        row = place // columns
        key0 = seed(row, i32(0))
        key1 = seed(row, i32(1))
        store(place, threefry(key0, key1, u32(position(row)), u32(place % columns)))

"""Threefry-2x32 of 20 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
section 3.2)."""

from __future__ import annotations

from poot_executor.graph.threefry import PARITY, ROTATIONS
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.lang import device, static


@device
def threefry(key0: Handle, key1: Handle, counter0: Handle, counter1: Handle) -> Handle:
    """Word 0 of the block, from u32 key and counter words."""
    key2 = key0 ^ key1 ^ int(PARITY)
    keys = (key0, key1, key2)
    x = counter0 + key0
    y = counter1 + key1
    for i in static(range(20)):
        turn = ROTATIONS[i % 8]
        x = x + y
        y = ((y << turn) | (y >> (32 - turn))) ^ x
        if i % 4 == 3:
            x = x + keys[(i // 4 + 1) % 3]
            y = y + keys[(i // 4 + 2) % 3] + (i // 4 + 1)
    return x

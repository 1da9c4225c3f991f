"""Threefry-2x32 with 20 rounds, a counter-based random generator.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
section 3.2 and table 2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_TURNS = tuple((np.array(n, np.uint32), np.array(32 - n, np.uint32)) for n in ROTATIONS)
"""Left and right: arrays, since numpy takes as long to convert a number as to shift 500."""
PARITY = np.uint32(0x1BD11BDA)

Words = NDArray[np.uint32]


def threefry2x32(key: tuple[Words, Words], counter: tuple[Words, Words]) -> tuple[Words, Words]:
    """Two words for a key of two words and a counter of two words; arrays broadcast against one
    another.
    """
    schedule = (*key, key[0] ^ key[1] ^ PARITY)
    x, y = (words.copy() for words in np.broadcast_arrays(counter[0] + schedule[0], counter[1] + schedule[1]))
    # In place: the arrays of all ids would not stay in a cache if each of a hundred operations made another.
    turned = np.empty_like(y)
    for i in range(20):
        left, right = _TURNS[i % 8]
        np.add(x, y, out=x)
        np.left_shift(y, left, out=turned)
        np.right_shift(y, right, out=y)
        np.bitwise_or(y, turned, out=y)
        np.bitwise_xor(y, x, out=y)
        if i % 4 == 3:
            injection = i // 4 + 1
            np.add(x, schedule[injection % 3], out=x)
            np.add(y, schedule[(injection + 1) % 3] + np.uint32(injection), out=y)
    return x, y


def random_words(seed: Words, position: NDArray[np.int32], count: int) -> Words:
    """u32[rows, count]: word 0 for key = `seed` (u32[rows, 2]) and counter = (`position`
    (i32[rows]), 0 ... count - 1).
    """
    key = (seed[:, :1], seed[:, 1:])
    place = position.astype(np.uint32)[:, None]
    return threefry2x32(key, (place, np.arange(count, dtype=np.uint32)[None, :]))[0]

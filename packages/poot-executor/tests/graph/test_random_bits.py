"""Threefry-2x32 against the known answers that its authors publish with Random123."""

import numpy as np
import pytest

from poot_executor.dtype import I32, U32
from poot_executor.graph.threefry import threefry2x32

KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("key", "counter", "answer"), KNOWN)
def test_known_answers(key, counter, answer):
    words = threefry2x32(*(tuple(np.array([w], np.uint32) for w in pair) for pair in (key, counter)))
    assert tuple(int(w[0]) for w in words) == answer


def test_bits_are_word_0_by_seed_position_and_column(run):
    seeds = [[0x13198A2E, 0x03707344], [0, 0], [0x13198A2E, 0x03707344]]
    bits = run("random_bits", (seeds, U32), ([0x243F6A88, 0, 0x243F6A88], I32), count=6)
    assert bits[1, 0] == 0x6B200159
    assert np.array_equal(bits[0], bits[2]), "the row itself does not enter"
    for column in range(6):
        counter = (np.array([0x243F6A88], np.uint32), np.array([column], np.uint32))
        key = tuple(np.array([w], np.uint32) for w in seeds[0])
        assert bits[0, column] == threefry2x32(key, counter)[0][0]


def test_bits_look_uniform(run, rng):
    seed = rng.integers(0, 2**32, (4, 2), dtype=np.uint32)
    bits = run("random_bits", (seed, U32), (rng.integers(0, 10**6, 4, np.int32), I32), count=50_000)
    ones = np.unpackbits(bits.view(np.uint8)).mean()
    assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(bits.size * 32)
    assert len(np.unique(bits)) > bits.size * 0.999

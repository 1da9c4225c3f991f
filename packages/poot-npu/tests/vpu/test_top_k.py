"""The greatest of long rows, which are found by blocks, against a stable sort."""

import numpy as np
import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.inputs import Recorder
from poot_eval.conformance.session import open_session
from poot_executor.dtype import F32
from poot_npu.vpu.top_k import block_width

LOWEST = np.finfo(np.float32).min


def hostile_rows(n, rng):
    """Ties, NaN, zeros of both signs, rows of few numbers, and the lowest finite number beside -inf."""
    rows = rng.normal(0, 3, (8, n)).astype(np.float32)
    rows[1] = np.round(rows[1])
    rows[2] = np.where(rng.random(n) < 0.5, np.nan, np.round(rows[2]))
    rows[3] = 0
    rows[4] = np.where(rng.random(n) < 0.5, -0.0, 0.0)
    rows[5] = -np.inf
    rows[6] = -np.inf
    rows[6, rng.choice(n, 3, replace=False)] = LOWEST
    rows[6, rng.integers(n)] = 1
    rows[7] = np.where(rng.random(n) < 0.9, LOWEST, rows[7])
    return rows


@pytest.mark.parametrize(("n", "k"), [(49_152, 20), (5_000, 20), (1_009, 20), (96, 1), (640, 5)])
def test_places_are_those_of_a_stable_sort(rng, n, k):
    rows = hostile_rows(n, rng)
    g = Recorder("greatest", rng)
    x = g.slot(rows, F32)
    g.output(g.builder.apply("arg_top_k", x, k=k))
    g.output(g.builder.apply("arg_top_k", g.slot(rows.reshape(2, 4, n), F32), k=k))
    with open_or_skip("vpu:cpu") as device, open_session(device, g.builder.build(), g.given()) as session:
        flat, deep = session.run(session.lower()).outputs.values()
    expected = np.argsort(-np.where(np.isnan(rows), -np.inf, rows), axis=1, kind="stable")[:, :k]
    assert np.array_equal(flat, expected)
    assert np.array_equal(deep.reshape(8, k), expected)


def test_blocks_are_as_long_as_saves_most():
    assert block_width(49_152, 20) == 48
    assert block_width(1_009, 20) is None, "a prime number has no blocks"
    assert block_width(50, 20) is None, "blocks would hold about as many"
    n, k = 5_000, 20
    width = block_width(n, k)
    assert width is not None and n % width == 0 and 4 * (n // width + k * width) <= n

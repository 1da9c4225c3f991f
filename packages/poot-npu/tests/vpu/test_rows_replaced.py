"""Rows replaced inside a model, some of which are dropped: to those the plug-in's scatter has no place to give."""

import numpy as np
import pytest

from poot_eval.conformance.inputs import Recorder, anything
from poot_eval.conformance.matching import assert_device_matches
from poot_executor.dtype import BOOL, F32, I32, U32
from poot_executor.graph import primitives as p

KEPT = {
    "all": [3, 0, 4],
    "none": [-1, -1, -1],
    "the first dropped": [-1, 2, 4],
    "the last dropped": [2, 0, -1],
    "one kept, which is row 0": [-7, 0, -1],
    "one kept, which is not": [-7, -1, 3],
}


@pytest.mark.parametrize("dtype", [F32, I32, U32, BOOL], ids=str)
@pytest.mark.parametrize("name", KEPT)
def test_dropped_rows_change_nothing(device, rng, name, dtype):
    g = Recorder("rows", rng)
    index = g.slot(np.array(KEPT[name], np.int32), I32)
    for rows in ((), (7,), (2, 3)):
        old, new = (g.slot(anything(rng, (n, *rows), dtype), dtype) for n in (5, 3))
        g.output(p.scatter_update(old, index, new))
    assert_device_matches(device, g.builder.build(), g.given())

"""Long rows on a target with groups to spare: parts of them first, then what joins the parts."""

from __future__ import annotations

import numpy as np
import pytest

from poot_executor.compile import Caps
from poot_executor.dtype import F32, I32
from poot_executor.graph import primitives as p

MANY = Caps(group_threads=8, parallel_groups=64, subgroup_width=4, max_bindings=31, features=frozenset(["subgroup"]))
PLAIN = Caps(group_threads=8, parallel_groups=64, max_bindings=31)


def kinds(match):
    return [d.region for d in match.program.dispatches], [d.schedule.get("parts") for d in match.program.dispatches]


@pytest.mark.parametrize("caps", [MANY, PLAIN], ids=["subgroups", "plain"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 4000), (3, 2711), (2, 4096)])
@pytest.mark.parametrize("op", ["argmax", "max", "sum", "int_max"])
def test_long_rows_are_taken_in_parts(g, run, caps, op, rows, columns):
    x = g.floats(rows, columns)
    if op == "int_max":
        x = p.cast(x * 1000.0, I32)
    found = {
        "argmax": lambda: p.argmax(x, 1), "max": lambda: p.reduce_max(x, 1), "sum": lambda: p.sum_(x, 1),
        "int_max": lambda: p.reduce_max(x, 1),
    }[op]()  # fmt: skip
    g.output(found)
    _, parts = kinds(run(g, caps))
    assert len([n for n in parts if n]) == 2


def test_equal_maxima_of_several_parts_give_the_lowest_column(g, run):
    x = np.zeros((2, 4000), np.float32)
    x[0, [77, 1999, 3999]] = 5.0
    x[1, 3000:] = np.nan
    g.output(p.argmax(g.slot(x, F32), 1))
    match = run(g, MANY)
    assert len(match.program.dispatches) == 2


def test_rows_that_fill_the_target_are_taken_whole(g, run):
    x = g.floats(20, 4000)
    g.output(p.argmax(x, 1))
    g.output(p.sum_(x, 1))
    assert all(parts is None for parts in kinds(run(g, MANY))[1])

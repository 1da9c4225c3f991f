"""Crossed parameters: each combination once, and of them a run without sweeps has every value of every list."""

from __future__ import annotations

import pytest

from poot_eval.conformance.crossed import crossed


@pytest.mark.parametrize("sizes", [(3, 4), (5, 2), (1, 6), (3, 3, 3), (2, 5, 4)])
def test_every_value_is_in_what_always_runs(sizes: tuple[int, ...]) -> None:
    lists = [range(size) for size in sizes]
    made = crossed(*lists)
    values = [case.values for case in made]
    assert len(set(values)) == len(values) and {len(case) for case in values} == {len(sizes)}
    always = [case.values for case in made if not case.marks]
    assert all({mark.name for mark in case.marks} <= {"sweep"} for case in made)
    for place, numbers in enumerate(lists):
        assert {case[place] for case in always} == set(numbers)
    if len(set(sizes)) == 1:
        assert len({(case[0], case[1]) for case in always}) == sizes[0] ** 2
    assert len(made) == len(always) * min(sizes)

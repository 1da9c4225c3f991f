"""Schedules of each architecture, and the bytes below which none gets."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from poot_executor.compile import compile
from poot_executor.compile.target import Target
from poot_rocm_device.architecture import ARCHITECTURES, architecture_named
from poot_rocm_device.caps import caps_of
from poot_rocm_device.schedules import SCHEDULES, floor_seconds


def test_every_architecture_has_one() -> None:
    assert list(SCHEDULES) == [architecture.name for architecture in ARCHITECTURES]
    for architecture in ARCHITECTURES:
        schedule, caps = SCHEDULES[architecture.name], caps_of(architecture)
        assert schedule.group_threads % architecture.wave == 0, "a group is whole waves"
        assert caps.parallel_groups == schedule.groups_per_unit * architecture.units
        assert (caps.group_threads, caps.split_tiles, caps.many_rows) == (
            schedule.group_threads,
            schedule.split_tiles,
            schedule.many_rows,
        )


@pytest.mark.parametrize("format", ["bf16", "q4_1", "q8_0"])
def test_a_step_reads_no_more_than_is_stored(library_kernels: ModuleType, format: str) -> None:
    """A weight's layout has as many bytes as its file, whatever the wave, and one dispatch of a step reads each."""
    for name in ("gfx942", "gfx1100"):
        target = Target("rocm", caps_of(architecture_named(name)))
        program = compile(library_kernels.gated(np.random.default_rng(0), 1, format), target)
        readers = [{arg.place.key for arg in command.args} for command in program.dispatches]
        assert program.weights
        for use in program.weights:
            layout = use.layout
            assert sum(use.key in keys for keys in readers) == 1
            assert layout.nbytes == layout.rows * layout.blocks * layout.format.nbytes


def test_the_floor_is_bytes_over_the_memorys_peak() -> None:
    assert floor_seconds(architecture_named("gfx1100"), 960_000_000) == pytest.approx(1e-3)
    assert floor_seconds(architecture_named("gfx942"), 0) == 0

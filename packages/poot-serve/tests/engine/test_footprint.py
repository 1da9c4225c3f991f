"""Rows where each step holds weights of its own: as many as suit, fewer where memory is short, refused with numbers."""

from __future__ import annotations

import asyncio

import pytest

from poot_eval.conformance import open_or_skip
from poot_executor.errors import SettingsError
from poot_llm.driver import DriverOptions
from poot_llm.opening import open_driver
from poot_serve.engine.client import EngineClient
from poot_serve.engine.footprint import SUFFIXES, Footprint, suited
from poot_serve.engine.settings import EngineSettings

OPTIONS = DriverOptions(rows=16, capacity=64, chunk=16)


def test_it_grows_with_rows(handle) -> None:
    sizes = [Footprint.of(handle, OPTIONS, rows) for rows in (1, 4, 16)]
    assert [one.steps for one in sizes] == [4, 8, 10]
    assert sizes[0].nbytes < sizes[1].nbytes < sizes[2].nbytes
    assert sizes[2].nbytes > 5 * handle.stored_bytes


@pytest.mark.device("vpu")
def test_it_counts_the_steps_that_a_driver_has(handle) -> None:
    with open_or_skip("vpu"):
        pass
    for rows in (1, 3, 4):
        with open_driver(handle, "vpu:cpu", DriverOptions(rows=rows, capacity=64, chunk=16)) as opened:
            assert Footprint.of(handle, OPTIONS, rows).steps == len(SUFFIXES) * len(list(opened.driver.steps.shapes()))


def test_nobody_chose_and_memory_is_unknown(handle) -> None:
    assert suited(handle, OPTIONS, chosen=False, free=None).rows == 16
    assert suited(handle, DriverOptions(rows=2, capacity=64), chosen=False, free=None).rows == 2
    assert suited(handle, OPTIONS, chosen=True, free=None).rows == 16


def test_fewer_rows_where_memory_is_short(handle) -> None:
    one, four = (Footprint.of(handle, OPTIONS, rows).nbytes for rows in (1, 4))
    share = OPTIONS.memory_fraction
    assert suited(handle, OPTIONS, chosen=False, free=round(four / share) + 2).rows == 4
    assert suited(handle, OPTIONS, chosen=False, free=round(four / share) - 2).rows == 1
    assert suited(handle, OPTIONS, chosen=False, free=round(one / share) + 2).rows == 1


def test_what_was_asked_for_is_refused_with_what_would_fit(handle) -> None:
    free = round(Footprint.of(handle, OPTIONS, 4).nbytes / OPTIONS.memory_fraction) + 2
    with pytest.raises(
        SettingsError, match=r"16 rows of 64 positions: 10 steps, about .* may be used: --rows 4 would fit"
    ):
        suited(handle, OPTIONS, chosen=True, free=free)


def test_nothing_fits(handle) -> None:
    for chosen in (True, False):
        with pytest.raises(SettingsError, match="0 MB may be used: take a smaller model or --capacity"):
            suited(handle, OPTIONS, chosen=chosen, free=1)


@pytest.mark.device("vpu")
def test_an_engine_says_what_it_chose(handle) -> None:
    async def facts(fit_rows: bool):
        settings = EngineSettings(handle.path, "vpu:cpu", driver=OPTIONS, fit_rows=fit_rows, prepare_all=fit_rows)
        async with EngineClient(settings) as client:
            return await client.ready()

    with open_or_skip("vpu"):
        pass
    chosen = asyncio.run(facts(True))
    assert chosen.rows == 16
    assert chosen.steps == 10
    assert "16 rows of 64 positions: 10 steps, about" in chosen.note
    # Where steps are compiled as they are needed, none of them is there yet.
    lazy = asyncio.run(facts(False))
    assert (lazy.rows, lazy.steps, lazy.note) == (16, 0, "")

"""What an engine process opens: a device and a driver on it, with every step prepared."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from poot_llm.driver import Driver
from poot_llm.opening import OpenDriver, open_driver
from poot_llm.registry import Models
from poot_serve.engine.footprint import SUFFIXES, Footprint, suited
from poot_serve.engine.messages import EngineFacts
from poot_serve.engine.settings import EngineSettings


@contextmanager
def open_serving(settings: EngineSettings) -> Generator[tuple[Driver, EngineFacts], None, None]:
    """Raises what opening the checkpoint and the device raises, and what cannot be prepared by name."""
    started = perf_counter()
    handle = Models().open(settings.model)
    options, note = settings.driver, ""
    while True:
        with open_driver(handle, settings.device, options) as opened:
            footprint = _footprint(opened, settings)
            if footprint is not None and footprint.rows != options.rows:
                # Sizes are settled as a driver opens, and only what is open says what steps cost there.
                options = replace(options, rows=footprint.rows)
                continue
            if footprint is not None:
                note = f"each step holds weights of its own: {footprint}"
            driver = opened.driver
            if settings.prepare_all:
                _prepare(driver)
            yield driver, _facts(opened, perf_counter() - started, note)
            return


def _footprint(opened: OpenDriver, settings: EngineSettings) -> Footprint | None:
    """What the rows take, where steps are dear and all are prepared; None elsewhere. Raises SettingsError with the
    numbers where they do not fit.
    """
    driver = opened.driver
    if not (driver.few_programs and driver.handle.generates and settings.prepare_all):
        return None
    memory = driver.stats().memory
    free = None if memory is None else memory.free
    return suited(driver.handle, settings.driver, chosen=not settings.fit_rows, free=free)


def _prepare(driver: Driver) -> None:
    """Every step that a request may need. Where programs are dear, greedy steps and those of one more sampling suffix
    serve all requests, and passes over whole texts are prepared when texts of their length come.
    """
    if driver.few_programs:
        if driver.handle.generates:
            driver.prepare(SUFFIXES)
    elif driver.handle.generates:
        driver.prepare()
    else:
        driver.prepare_encode()


def _facts(opened: OpenDriver, seconds: float, note: str) -> EngineFacts:
    driver, handle = opened.driver, opened.driver.handle
    plan = driver.plan if handle.generates else None
    return EngineFacts(
        model=handle.name,
        device=str(opened.choice),
        encodes=not handle.generates,
        rows=driver.options.encode_rows if plan is None else plan.rows,
        capacity=driver.encode_limit if plan is None else plan.capacity,
        vocabulary=handle.config.vocabulary,
        blocks=None if plan is None else plan.blocks,
        weight_bytes=handle.stored_bytes,
        kv_bytes=0 if plan is None else plan.kv_bytes,
        load_seconds=seconds,
        prepare_seconds=driver.prepare_seconds,
        steps=0 if plan is None else len(driver.prepared),
        note="; ".join(filter(None, (note, *(() if plan is None else plan.notes)))),
    )

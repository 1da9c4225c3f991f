"""A model on a device: what every command that computes opens, in the order in which refusals are cheap."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter

from poot_executor.discover import Choice, open_device
from poot_executor.engine import Engine
from poot_executor.settings import read_settings
from poot_llm.cli.loading import Loading, StagedEngine
from poot_llm.cli.output import note
from poot_llm.driver import Driver, DriverOptions
from poot_llm.opening import machine_options
from poot_llm.registry import ModelHandle


@dataclass(frozen=True, slots=True)
class Session:
    """An open driver over the device `choice`; `open_seconds` is what opening took. `loading` shows what goes on."""

    driver: Driver
    engine: Engine
    choice: Choice
    open_seconds: float
    loading: Loading


def driver_options(arguments: argparse.Namespace) -> DriverOptions:
    """The options --capacity and --chunk. Raises SettingsError by name."""
    chosen = {} if arguments.chunk is None else {"chunk": arguments.chunk}
    return DriverOptions(capacity=arguments.capacity, **chosen)


@contextmanager
def open_session(handle: ModelHandle, arguments: argparse.Namespace) -> Iterator[Session]:
    """Open the device that --device names and a driver on it; both are closed at the end.

    "auto" says on standard error what it chose and what it skipped. Raises DeviceNotFound, and what the driver raises.
    """
    started = perf_counter()
    settings = read_settings()
    options = driver_options(arguments)
    loading = Loading(handle.name)
    with loading:
        loading.stage("opening a device")
        device, choice = open_device(arguments.device, settings.device)
    with device:
        if arguments.device == "auto":
            note(str(choice))
        options = replace(options, compile=machine_options(options.compile, device, choice, settings))
        with StagedEngine(device, loading.stage) as engine, Driver(handle, engine, options) as driver:
            yield Session(driver, engine, choice, perf_counter() - started, loading)

"""A driver as everything that serves opens it: the device by name, programs kept between processes, schedules that were
measured on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from poot_executor.compile import CompileOptions
from poot_executor.compile.program_cache import ProgramCache
from poot_executor.device import Device
from poot_executor.discover import Choice, open_device
from poot_executor.engine import Engine
from poot_executor.settings import Settings, read_settings
from poot_executor.tuned import load_schedules
from poot_llm.driver import Driver, DriverOptions
from poot_llm.registry import ModelHandle


@dataclass(frozen=True, slots=True)
class OpenDriver:
    """A driver, and the device that was chosen for it."""

    driver: Driver
    choice: Choice


def machine_options(options: CompileOptions, device: Device, choice: Choice, settings: Settings) -> CompileOptions:
    """The options with what this machine keeps, where they say nothing themselves: the folder of compiled programs, the
    schedules that `poot tune` measured on the device, and POOT_DUMP's folder.
    """
    measured = options.schedules
    if not measured.picks:
        measured = load_schedules(settings.tuned, device.target, choice.description)
    return replace(
        options,
        dump=settings.dump if options.dump is None else options.dump,
        cache=ProgramCache(settings.programs) if options.cache is None else options.cache,
        schedules=measured,
    )


@contextmanager
def open_driver(
    handle: ModelHandle, device: str = "auto", options: DriverOptions | None = None, settings: Settings | None = None
) -> Iterator[OpenDriver]:
    """Open a device, as `poot devices` lists them, and a driver on it; both are closed at the end. `settings` are by
    default the environment's.

    Raises SettingsError for a bad POOT_ variable, DeviceNotFound listing what there is, and what `Driver` raises.
    """
    settings = read_settings() if settings is None else settings
    options = DriverOptions() if options is None else options
    opened, choice = open_device(device, settings.device)
    with opened:
        options = replace(options, compile=machine_options(options.compile, opened, choice, settings))
        with Engine(opened) as engine, Driver(handle, engine, options) as driver:
            yield OpenDriver(driver, choice)

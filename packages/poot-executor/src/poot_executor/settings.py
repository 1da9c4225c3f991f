"""Settings: one dataclass, read once. Environment variables POOT_* are parsed here and nowhere else; a bad value is an
error."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poot_executor.errors import SettingsError


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """What a device is opened with. `timeout` bounds every wait, in seconds; `cache` is the compile cache's folder,
    None for none."""

    timeout: float = 600.0
    cache: Path | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. `home` is poot's cache folder (checkpoints, compiled kernels); `dump` is where compile writes each
    pass's graph."""

    home: Path
    timeout: float = 600.0
    compile_cache: bool = True
    dump: Path | None = None
    require_devices: frozenset[str] = frozenset()

    @property
    def device(self) -> DeviceSettings:
        """What a device is opened with."""
        return DeviceSettings(self.timeout, self.home / "kernels" if self.compile_cache else None)

    @property
    def programs(self) -> Path | None:
        """The folder of compiled programs; None keeps none."""
        return self.home / "programs" if self.compile_cache else None

    @property
    def tuned(self) -> Path:
        """The folder of measured schedules, which `poot tune` writes."""
        return self.home / "tuned"


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment (POOT_HOME, POOT_TIMEOUT, POOT_COMPILE_CACHE, POOT_DUMP, POOT_REQUIRE_DEVICE).

    Raises SettingsError with the variable's name for a bad value or an unknown POOT_ variable.
    """
    given = os.environ if environment is None else environment
    known = {"POOT_HOME", "POOT_TIMEOUT", "POOT_COMPILE_CACHE", "POOT_DUMP", "POOT_REQUIRE_DEVICE"}
    for name in given:
        if name.startswith("POOT_") and name not in known:
            raise SettingsError(f"{name} is not a setting; poot reads {', '.join(sorted(known))}")
    home = _home(given)
    try:
        timeout = float(given.get("POOT_TIMEOUT", "600"))
    except ValueError:
        raise SettingsError(f"POOT_TIMEOUT={given['POOT_TIMEOUT']!r} is not a number of seconds") from None
    if not 0 < timeout < float("inf"):
        raise SettingsError(f"POOT_TIMEOUT={timeout:g} must be positive and finite")
    switch = given.get("POOT_COMPILE_CACHE", "1")
    if switch not in ("0", "1"):
        raise SettingsError(f"POOT_COMPILE_CACHE={switch!r} must be 0 or 1")
    dump = Path(given["POOT_DUMP"]) if given.get("POOT_DUMP") else None
    required = frozenset(filter(None, given.get("POOT_REQUIRE_DEVICE", "").split(",")))
    return Settings(home, timeout, switch == "1", dump, required)


def _home(given: Mapping[str, str]) -> Path:
    """$POOT_HOME, or `poot` in the platform's folder for a user's caches: $XDG_CACHE_HOME or ~/.cache, ~/Library/Caches
    on macOS, %LOCALAPPDATA% on Windows. The folder may not exist yet."""
    chosen = given.get("POOT_HOME")
    if chosen:
        path = _expanded(chosen)
        if not path.is_absolute():
            raise SettingsError(f"POOT_HOME={chosen!r} is not an absolute path")
        return path
    # The XDG specification: a relative path in the variable is to be ignored.
    folder = given.get("XDG_CACHE_HOME", "")
    if Path(folder).is_absolute():
        return Path(folder) / "poot"
    if sys.platform == "win32" and given.get("LOCALAPPDATA"):
        return Path(given["LOCALAPPDATA"]) / "poot"
    home = _expanded("~")
    return (home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache") / "poot"


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingsError(f"no home folder is known ({error}): set POOT_HOME to an absolute path") from error

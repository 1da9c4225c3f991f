"""Where poot keeps what it downloads."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from poot_executor.errors import SettingsError


def cache_dir(environment: Mapping[str, str] | None = None) -> Path:
    """$POOT_CACHE, or `poot` in the platform's folder for a user's caches. The folder may not exist yet.

    That folder is $XDG_CACHE_HOME or ~/.cache, ~/Library/Caches on macOS, %LOCALAPPDATA% on Windows. Raises
    SettingsError for a POOT_CACHE that is not an absolute path, or where no home folder can be found.
    """
    values = os.environ if environment is None else environment
    chosen = values.get("POOT_CACHE")
    if chosen is not None:
        path = _expanded(chosen)
        if not path.is_absolute():
            raise SettingsError(f"POOT_CACHE: {chosen!r} is not an absolute path")
        return path
    return _platform_caches(values) / "poot"


def _platform_caches(values: Mapping[str, str]) -> Path:
    # The XDG specification: a relative path in the variable is to be ignored.
    folder = values.get("XDG_CACHE_HOME", "")
    if Path(folder).is_absolute():
        return Path(folder)
    if sys.platform == "win32" and values.get("LOCALAPPDATA"):
        return Path(values["LOCALAPPDATA"])
    home = _expanded("~")
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise SettingsError(f"POOT_CACHE: no home folder is known ({error}); set it to an absolute path") from error

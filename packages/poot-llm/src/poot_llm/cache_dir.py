"""Where poot keeps what it downloads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from poot_executor.settings import read_settings


def cache_dir(environment: Mapping[str, str] | None = None) -> Path:
    """The settings' home folder: $POOT_HOME, or `poot` in the platform's folder for caches. Raises SettingsError."""
    return read_settings(environment).home

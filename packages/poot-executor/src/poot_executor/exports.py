"""Where each name of the package lies: it is imported when it is asked for. `__init__.pyi` is the same for checkers."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Any

_NAMES = MappingProxyType(
    {
        "device": ("Device", "Driver"),
        "discover": ("Choice", "Status", "commands", "installed", "open_device", "survey"),
        "engine": ("Engine",),
        "errors": ("PootError",),
        "executor": ("EntryId", "ExecutableId", "Executor", "StepId", "StepInputs", "StepOutputs"),
        "settings": ("DeviceSettings", "Settings", "read_settings"),
        "stats": ("EngineStats",),
    }
)
MODULES = MappingProxyType({name: module for module, names in _NAMES.items() for name in names})
"""The package's names, each with its module."""


def __getattr__(name: str) -> Any:
    """The package's: called for a name that it does not hold yet. Raises AttributeError."""
    if name not in MODULES:
        raise AttributeError(f"module 'poot_executor' has no attribute {name!r}")
    return getattr(import_module(f"poot_executor.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    """The package's."""
    return sorted(MODULES)

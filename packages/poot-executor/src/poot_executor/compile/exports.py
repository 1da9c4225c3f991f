"""Where each name of the package `compile` lies: it is imported when it is asked for. Who needs a target's capabilities
alone, as devices do, pays for no compiler. `__init__.pyi` is the same for checkers."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import Any

_NAMES = MappingProxyType(
    {
        "options": ("CompileLimits", "CompileOptions"),
        "pipeline": ("compile",),
        "program": ("Program",),
        "target": ("Caps", "Granularity", "Target"),
    }
)
MODULES = MappingProxyType({name: module for module, names in _NAMES.items() for name in names})
"""The package's names, each with its module."""


def __getattr__(name: str) -> Any:
    """The package's: called for a name that it does not hold yet. Raises AttributeError."""
    if name not in MODULES:
        raise AttributeError(f"module 'poot_executor.compile' has no attribute {name!r}")
    return getattr(import_module(f"poot_executor.compile.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    """The package's."""
    return sorted(MODULES)

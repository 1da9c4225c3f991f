"""The engine: executables, entries and steps over one device. docs/contract.md has its rules."""

from poot_executor.engine.engine import Engine

__all__ = ["Engine"]

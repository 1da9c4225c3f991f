"""Errors that know where in the source they come from."""

from __future__ import annotations

from poot_executor.errors import KernelError


class LocatedKernelError(KernelError):
    """A KernelError whose message starts with the file and line."""


def at(line: str, error: KernelError | str) -> LocatedKernelError:
    """The error with `line` ("file.py:12") before it, unless it already has one."""
    return error if isinstance(error, LocatedKernelError) else LocatedKernelError(f"{line}: {error}")

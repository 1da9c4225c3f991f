"""Variables of a kernel under construction, which become SSA values: what loops carry and branches merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poot_executor.errors import KernelError
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.operations import Value

if TYPE_CHECKING:
    from poot_executor.kernel.builder import KernelBuilder


class Var:
    """A variable: `get` and `set`, anywhere in the scope that it was declared in. Made by `KernelBuilder.var`."""

    __slots__ = ("alive", "builder", "name", "value")

    def __init__(self, builder: KernelBuilder, name: str, value: Handle | None) -> None:
        self.builder = builder
        self.name = name
        self.value = value
        self.alive = True

    def get(self) -> Handle:
        """Its value here. Raises KernelError where it may be unset or its scope has ended."""
        self._check()
        if self.value is None:
            raise KernelError(f"{self.name or 'a variable'} is not set on every path to here")
        self.builder.close_if()
        return self.value

    def set(self, value: Value) -> None:
        """Give it a value of its type."""
        self._check()
        handle = self.builder.as_handle(value, None if self.value is None else self.value.dtype)
        if self.value is not None and handle.type != self.value.type:
            raise KernelError(f"{self.name or 'a variable'} is {self.value.type} and is set to {handle.type}: cast it")
        self.builder.close_if()
        self.value = handle

    def clear(self) -> None:
        """Leave it unset from here on."""
        self._check()
        self.builder.close_if()
        self.value = None

    def drop(self) -> None:
        """End it before its scope does: loops and branches to come need not consider it."""
        self.builder.end_var(self)

    def _check(self) -> None:
        if not self.alive:
            raise KernelError(f"{self.name or 'a variable'} was declared in a scope that has ended")

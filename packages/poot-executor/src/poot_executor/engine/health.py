"""Whether an engine may still touch its device."""

from __future__ import annotations

from poot_executor.errors import (
    CallOrder,
    DeviceLost,
    DeviceTimeout,
    KernelFault,
    Poisoned,
)


class Health:
    """An engine's standing: well, poisoned (with the reason), or closed. Poison is for good.

    `traps` says that a failed kernel check is a real trap on this target, which loses the context.
    """

    def __init__(self, traps: bool) -> None:
        self._traps = traps
        self._reason: str | None = None
        self._closed = False

    @property
    def reason(self) -> str | None:
        """Why the engine is poisoned; None where it is not."""
        return self._reason

    @property
    def closed(self) -> bool:
        """Whether the engine was closed."""
        return self._closed

    def require(self) -> None:
        """Raise Poisoned or CallOrder where the device must not be touched any more."""
        if self._reason is not None:
            raise Poisoned(
                f"this engine is poisoned ({self._reason}) and refuses all work: open the device again in a new process"
            )
        if self._closed:
            raise CallOrder("this engine is closed: make a new one")

    def observe(self, error: BaseException) -> bool:
        """Take note of an error that a device call raised. True where the device is lost to us."""
        fatal = isinstance(error, (DeviceLost, DeviceTimeout, Poisoned))
        if fatal or (self._traps and isinstance(error, KernelFault)):
            self.poison(f"{type(error).__name__}: {error}")
        return self._reason is not None

    def poison(self, reason: str) -> None:
        """Refuse all work from now on. The first reason stays."""
        if self._reason is None:
            self._reason = reason

    def close(self) -> None:
        """Refuse all work from now on; poisoned or not."""
        self._closed = True

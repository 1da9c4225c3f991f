"""A device's context: current in every call and refused once it is lost, with the fault word of failed checks."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from poot_executor.errors import DeviceLost, DeviceTimeout, KernelFault, OutOfMemory, Poisoned
from poot_ptx_device.native import Handle, Native
from poot_ptx_device.pinned import pin
from poot_ptx_device.results import OutOfDeviceMemory
from poot_ptx_device.wait import wait_until

FAULT_BYTES = 4


class Context:
    """The primary context of one GPU, as one device uses it. `forget` is called when it is lost: then nothing may be
    given back.

    `with context("name"):` makes it current for driver calls and turns what they raise into the device's errors. One
    object serves every call, a few times a step, so a call must not be inside another.
    """

    def __init__(self, native: Native, ordinal: int, *, timeout: float, forget: Callable[[], None]) -> None:
        self._native = native
        self._ordinal = ordinal
        self._timeout = timeout
        self._forget = forget
        self._reason = ""
        self._name = ""
        self._kernels: dict[int, str] = {}
        self._context: Handle = native.retain(ordinal)
        try:
            native.make_current(self._context)
            self.stream: Handle = native.create_stream()
            self._fault = pin(native, FAULT_BYTES)
            self.fault_address = native.device_address(self._fault.address)
        except BaseException:
            native.release(ordinal)
            raise

    @property
    def poisoned(self) -> bool:
        """Whether every call is refused."""
        return bool(self._reason)

    def name_kernel(self, identity: int, name: str) -> None:
        """What a fault word with this identity stands for."""
        self._kernels[identity] = name

    def require(self, call: str) -> None:
        """Raise Poisoned where the context is lost or closed. The driver is not touched."""
        if self._reason:
            raise Poisoned(
                f"{call} was refused, the device was not touched: {self._reason}; open it again in a new process"
            )

    def wait(self, event: Handle, what: str) -> None:
        """Until the event has happened. Raises DeviceTimeout, and what the driver reports."""
        if not wait_until(lambda: self._native.event_done(event), self._timeout):
            self.poison(f"{what} did not finish within {self._timeout:g} s")
            raise DeviceTimeout(what, self._timeout)

    def poison(self, reason: str) -> None:
        """Refuse everything from now on. What the device may still use is leaked."""
        self._reason = reason
        self._forget()

    def close(self) -> None:
        """Give back what the context holds itself, and the context; nothing may be pending."""
        self._native.destroy_stream(self.stream)
        self._native.host_free(self._fault.address)
        self._native.release(self._ordinal)
        self.poison("it was closed")

    def enter_thread(self) -> None:
        """Let the calling thread's driver calls mean this context, outside of any guard."""
        self._native.make_current(self._context)

    def __call__(self, name: str) -> Context:
        """The guard of a call, which errors name."""
        self._name = name
        return self

    def __enter__(self) -> None:
        self.require(self._name)
        self._native.make_current(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OutOfDeviceMemory):
            raise OutOfMemory(0, None, None, f"what {self._name} needs") from error
        if not isinstance(error, DeviceLost):
            return
        self.poison(str(error))
        word = int(self._fault.view.view("<u4")[0])
        if word:
            raise KernelFault(self._kernels.get(word >> 8, "unknown"), word & 0xFF) from error

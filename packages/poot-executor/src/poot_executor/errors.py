"""Every error poot raises, under `PootError`. A message says what happened and what to do next."""

from __future__ import annotations


class PootError(Exception):
    """The root: catch it to catch everything that poot refuses or reports."""


# Compiling and binding


class GraphError(PootError):
    """A graph that is not well formed: shapes, dtypes, order or state pairs."""


class KernelError(PootError):
    """A kernel that the kernel language cannot express or the verifier rejects, with file and line."""


class Unsupported(PootError):
    """Something a target or the compiler does not do, by name: the operation and what is missing."""

    def __init__(self, what: str, missing: str) -> None:
        super().__init__(f"{what}: {missing}")
        self.what = what
        self.missing = missing


class CompileLimit(PootError):
    """A finite compile limit was exceeded: name, the limit and the count."""

    def __init__(self, name: str, limit: int, count: int) -> None:
        super().__init__(f"compile limit {name} is {limit}, this program needs {count}")
        self.name = name
        self.limit = limit
        self.count = count


class BindError(PootError):
    """An input, weight or state of a program that is missing, unknown or of the wrong type."""


# Running


class DeviceError(PootError):
    """Any fault of a device."""


class OutOfMemory(DeviceError):
    """An allocation that did not fit. The device stays usable. Sizes in bytes; None is unknown."""

    def __init__(self, asked: int, free: int | None, limit: int | None, kind: str = "memory") -> None:
        known = [f"{name} {value:,} bytes" for name, value in (("free", free), ("limit", limit)) if value is not None]
        super().__init__(
            f"out of device memory: asked for {asked:,} bytes of {kind}" + (f" ({', '.join(known)})" if known else "")
        )
        self.asked = asked
        self.free = free
        self.limit = limit


class DeviceLost(DeviceError):
    """The device faulted or went away. The call that observes it raises this; its context is poisoned."""


class DeviceTimeout(DeviceError):
    """A wait for the device outlasted its bound. The context is poisoned."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(
            f"{what} did not finish within {seconds:g} s; the device is poisoned: open it again in a new process"
        )
        self.seconds = seconds


class Poisoned(DeviceError):
    """A call on a context that was poisoned earlier. The device was not touched."""


class KernelFault(DeviceError):
    """A kernel's own check failed. `kernel` names it, `code` is the check's code."""

    def __init__(self, kernel: str, code: int) -> None:
        super().__init__(f"kernel {kernel} failed its check {code}; reset the state before the next step")
        self.kernel = kernel
        self.code = code


class CheckFailed(DeviceError):
    """A validation check of the program rejected the step. `code` is the check's place, `index` the first offender."""

    def __init__(self, code: int, index: int) -> None:
        super().__init__(
            f"validation check {code} rejected the step at index {index}; reset the state before the next step"
        )
        self.code = code
        self.index = index


class NeedsReset(DeviceError):
    """A step after one that failed once it had replayed: call `reset_state` first."""


class CallOrder(PootError):
    """A call out of order: a step collected before an older one, a third one submitted, an engine that is closed."""


class DeviceNotFound(PootError):
    """A device that was asked for by name and is not there, with what is."""


class DuplicateDevice(PootError):
    """Two distributions that claim one entry-point name."""

    def __init__(self, name: str, first: str, second: str) -> None:
        super().__init__(f"{name!r} is claimed by both {first} and {second}: uninstall one of them")
        self.name = name
        self.first = first
        self.second = second


# Files and requests


class CheckpointError(PootError):
    """A checkpoint file that is truncated, hostile, or not what it claims: file, and tensor, field or offset."""


class WeightError(PootError):
    """A weight that is missing, surplus or of the wrong shape, by name."""


class RequestError(PootError):
    """A request that is refused, by field: a prompt that does not fit, a parameter out of range."""


class SettingsError(PootError):
    """A setting or environment variable with a bad value, by name."""

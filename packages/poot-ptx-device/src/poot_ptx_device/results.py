"""What a result of the driver means: the context goes on, there is no memory, or everything is lost."""

from __future__ import annotations

from poot_executor.errors import DeviceError, DeviceLost
from poot_ptx_device.errors import CudaError

SUCCESS, OUT_OF_MEMORY, NOT_READY = 0, 2, 600

_HARMLESS = frozenset(
    {
        1, OUT_OF_MEMORY,  # invalid value
        3, 34, 35, 36, 100, 101, 102,  # not initialized, a stub, no or no such device
        200, 209, 218, 221, 222, 223, 300, 301, 302, 303, 500,  # code that cannot be loaded, or is not there
        201, 400, 401, 402, NOT_READY,  # handles and their state
        701,  # a launch that asks for more than there is
        800, 801, 803, 804,  # not permitted, not supported
        *range(900, 909),  # stream capture
        910, 912, 913, 914, 915,
    }
)  # fmt: skip
"""Results after which the context is as before, by number (CUresult). After any other one nothing in it is reliable."""


class OutOfDeviceMemory(Exception):
    """The driver found no memory; the caller knows what was asked for."""


def error_of(call: str, code: int, name: str, message: str) -> DeviceError | OutOfDeviceMemory:
    """The exception for a result that is not success."""
    if code == OUT_OF_MEMORY:
        return OutOfDeviceMemory(f"{call}: {message}")
    if code in _HARMLESS:
        return CudaError(call, name, message)
    return DeviceLost(
        f"{call} reported {name} ({message}): the context is lost and poisoned: open the device again in a new process"
    )

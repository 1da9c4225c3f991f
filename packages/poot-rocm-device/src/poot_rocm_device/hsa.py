"""The HSA runtime by ctypes: one method for each function that poot calls, with statuses as errors.

A handle is a structure of one 64-bit number. The calling convention of x86-64, the only processor that AMD's runtime
is for, passes such a structure as it passes the number, so handles are plain numbers here.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

from poot_executor.errors import DeviceError, DeviceLost
from poot_rocm_device.errors import HsaError, OutOfDeviceMemory
from poot_rocm_device.hsa_types import (
    LESS_THAN,
    PROFILE_FULL,
    QUEUE_SINGLE,
    ROUNDING_DEFAULT,
    AgentInfo,
    DispatchTime,
    EventCallback,
    HandleCallback,
    PoolInfo,
    Queue,
    QueueCallback,
    Status,
    SymbolInfo,
    SystemInfo,
)

LIBRARY = "libhsa-runtime64.so.1"

_POINTER = c_void_p
_STATUS_FUNCTIONS: Mapping[str, tuple[Any, ...]] = {
    "hsa_init": (),
    "hsa_shut_down": (),
    "hsa_status_string": (c_uint32, ctypes.POINTER(c_char_p)),
    "hsa_system_get_info": (c_uint32, _POINTER),
    "hsa_iterate_agents": (HandleCallback, _POINTER),
    "hsa_agent_get_info": (c_uint64, c_uint32, _POINTER),
    "hsa_amd_agent_iterate_memory_pools": (c_uint64, HandleCallback, _POINTER),
    "hsa_amd_memory_pool_get_info": (c_uint64, c_uint32, _POINTER),
    "hsa_amd_memory_pool_allocate": (c_uint64, c_size_t, c_uint32, ctypes.POINTER(c_void_p)),
    "hsa_amd_memory_pool_free": (_POINTER,),
    "hsa_amd_agents_allow_access": (c_uint32, ctypes.POINTER(c_uint64), _POINTER, _POINTER),
    "hsa_amd_memory_async_copy": (
        _POINTER, c_uint64, _POINTER, c_uint64, c_size_t, c_uint32, _POINTER, c_uint64
    ),
    "hsa_signal_create": (c_int64, c_uint32, _POINTER, ctypes.POINTER(c_uint64)),
    "hsa_signal_destroy": (c_uint64,),
    "hsa_code_object_reader_create_from_memory": (c_char_p, c_size_t, ctypes.POINTER(c_uint64)),
    "hsa_code_object_reader_destroy": (c_uint64,),
    "hsa_executable_create_alt": (c_uint32, c_uint32, c_char_p, ctypes.POINTER(c_uint64)),
    "hsa_executable_load_agent_code_object": (c_uint64, c_uint64, c_uint64, c_char_p, _POINTER),
    "hsa_executable_freeze": (c_uint64, c_char_p),
    "hsa_executable_destroy": (c_uint64,),
    "hsa_executable_get_symbol_by_name": (c_uint64, c_char_p, ctypes.POINTER(c_uint64), ctypes.POINTER(c_uint64)),
    "hsa_executable_symbol_get_info": (c_uint64, c_uint32, _POINTER),
    "hsa_amd_register_system_event_handler": (EventCallback, _POINTER),
    "hsa_queue_create": (
        c_uint64, c_uint32, c_uint32, QueueCallback, _POINTER, c_uint32, c_uint32,
        ctypes.POINTER(ctypes.POINTER(Queue)),
    ),
    "hsa_queue_destroy": (_POINTER,),
    "hsa_amd_profiling_set_profiler_enabled": (_POINTER, c_int),
    "hsa_amd_profiling_get_dispatch_time": (c_uint64, c_uint64, ctypes.POINTER(DispatchTime)),
}  # fmt: skip
"""Argument types of what returns a status."""

_VALUE_FUNCTIONS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "hsa_signal_store_screlease": (None, (c_uint64, c_int64)),
    "hsa_signal_store_relaxed": (None, (c_uint64, c_int64)),
    "hsa_signal_wait_scacquire": (c_int64, (c_uint64, c_uint32, c_int64, c_uint64, c_uint32)),
    "hsa_queue_add_write_index_screlease": (c_uint64, (_POINTER, c_uint64)),
    "hsa_queue_load_read_index_scacquire": (c_uint64, (_POINTER,)),
}
"""Result and argument types of what returns a value, or nothing."""

_HARMLESS = frozenset({0x1001, *range(0x1002, 0x1016), *range(0x1017, 0x1025), 40, 44})
"""Statuses after which the runtime is as before: a wrong argument, a full table, code that does not load. After any
other one nothing is reliable."""


class Hsa:
    """A loaded runtime library. Raises OSError where it does not load, AttributeError where it lacks a function."""

    def __init__(self, path: str | os.PathLike[str] = LIBRARY) -> None:
        self._library = ctypes.CDLL(os.fspath(path))
        for name, arguments in _STATUS_FUNCTIONS.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, c_uint32
        for name, (result, arguments) in _VALUE_FUNCTIONS.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, result
        library = self._library
        # Of every step: without a method of Python between.
        self.store_signal = library.hsa_signal_store_screlease
        self.reset_signal = library.hsa_signal_store_relaxed
        self.add_write_index = library.hsa_queue_add_write_index_screlease
        self.load_read_index = library.hsa_queue_load_read_index_scacquire

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status > Status.INFO_BREAK:
            raise self.error(name, status)

    def error(self, call: str, status: int) -> DeviceError | OutOfDeviceMemory:
        """The exception for a status that is not success."""
        words = self.words(status)
        if status == Status.OUT_OF_RESOURCES:
            return OutOfDeviceMemory(f"{call}: {words}")
        if status in _HARMLESS:
            return HsaError(call, status, words)
        return DeviceLost(
            f"{call} reported status {status:#x} ({words}): the context is lost and poisoned: open the device again"
            " in a new process"
        )

    def words(self, status: int) -> str:
        """What the runtime says of a status."""
        text = c_char_p()
        self._library.hsa_status_string(status, ctypes.byref(text))
        return (text.value or b"no words").decode(errors="replace").strip()

    # The runtime and its agents

    def init(self) -> int:
        """Begin; each success is undone by one `shut_down`. The status."""
        return int(self._library.hsa_init())

    def shut_down(self) -> None:
        """End what `init` began."""
        self._call("hsa_shut_down")

    def frequency(self) -> int:
        """Ticks of the system's clock in a second: timeouts are in those, and not in nanoseconds."""
        value = c_uint64()
        self._call("hsa_system_get_info", SystemInfo.TIMESTAMP_FREQUENCY, ctypes.byref(value))
        return value.value

    def agents(self) -> list[int]:
        """Every agent, processors too."""
        return self._handles("hsa_iterate_agents")

    def agent_number(self, agent: int, attribute: AgentInfo, type: type[Any] = c_uint32) -> int:
        """A number that an agent states."""
        value = type()
        self._call("hsa_agent_get_info", agent, attribute, ctypes.byref(value))
        return int(value.value)

    def agent_text(self, agent: int, attribute: AgentInfo) -> str:
        """A name that an agent states."""
        value = ctypes.create_string_buffer(65)
        self._call("hsa_agent_get_info", agent, attribute, value)
        return value.value.decode(errors="replace")

    def pools(self, agent: int) -> list[int]:
        """An agent's memory pools."""
        return self._handles("hsa_amd_agent_iterate_memory_pools", agent)

    def pool_number(self, pool: int, attribute: PoolInfo, type: type[Any] = c_uint32) -> int:
        """A number that a pool states."""
        value = type()
        self._call("hsa_amd_memory_pool_get_info", pool, attribute, ctypes.byref(value))
        return int(value.value)

    def _handles(self, name: str, *first: int) -> list[int]:
        found: list[int] = []

        def take(handle: int, _data: int | None) -> int:
            found.append(handle)
            return Status.SUCCESS

        self._call(name, *first, HandleCallback(take), None)
        return found

    def register_event_handler(self, callback: Any) -> int:
        """The status: the one of an error where somebody in this process was first. There is no way to unregister."""
        return int(self._library.hsa_amd_register_system_event_handler(callback, None))

    # Memory

    def allocate(self, pool: int, nbytes: int) -> int:
        """The address of new memory, not zeroed. Raises OutOfDeviceMemory."""
        address = c_void_p()
        try:
            self._call("hsa_amd_memory_pool_allocate", pool, nbytes, 0, ctypes.byref(address))
        except HsaError as error:
            # The answer where the pool could not hold as much if it were empty.
            if error.status == Status.INVALID_ALLOCATION:
                raise OutOfDeviceMemory(str(error)) from error
            raise
        assert address.value is not None
        return address.value

    def allow_access(self, agent: int, address: int) -> None:
        """Let an agent use memory of another one's pool."""
        self._call("hsa_amd_agents_allow_access", 1, ctypes.byref(c_uint64(agent)), None, address)

    def free(self, address: int) -> None:
        """Give memory back."""
        self._call("hsa_amd_memory_pool_free", address)

    def copy(self, target: int, target_agent: int, source: int, source_agent: int, nbytes: int, signal: int) -> None:
        """Begin to copy; the signal is counted down at the end, and negative where it failed."""
        self._call("hsa_amd_memory_async_copy", target, target_agent, source, source_agent, nbytes, 0, None, signal)

    # Signals and queues

    def create_signal(self, value: int) -> int:
        """A signal that anybody may wait for."""
        signal = c_uint64()
        self._call("hsa_signal_create", value, 0, None, ctypes.byref(signal))
        return signal.value

    def destroy_signal(self, signal: int) -> None:
        """Nobody may wait for it."""
        self._call("hsa_signal_destroy", signal)

    def wait_below(self, signal: int, value: int, ticks: int, state: int) -> int:
        """The signal's value once it is below another one, or after about so many ticks, or earlier: a wait may return
        whenever it likes."""
        return int(self._library.hsa_signal_wait_scacquire(signal, LESS_THAN, value, ticks, state))

    def create_queue(self, agent: int, packets: int, callback: Any) -> Any:
        """A queue for one producer, as a pointer to its `Queue`. The callback hears of its errors."""
        queue = ctypes.POINTER(Queue)()
        unknown = 0xFFFFFFFF
        self._call(
            "hsa_queue_create", agent, packets, QUEUE_SINGLE, callback, None, unknown, unknown, ctypes.byref(queue)
        )
        return queue

    def destroy_queue(self, queue: Any) -> None:
        """Nothing may be pending in it."""
        self._call("hsa_queue_destroy", queue)

    def profile(self, queue: Any) -> None:
        """Let the completion signals of a queue's dispatches keep their times."""
        self._call("hsa_amd_profiling_set_profiler_enabled", queue, 1)

    def dispatch_time(self, agent: int, signal: int) -> tuple[int, int]:
        """When the dispatch that counted a signal down began and ended, in ticks."""
        time = DispatchTime()
        self._call("hsa_amd_profiling_get_dispatch_time", agent, signal, ctypes.byref(time))
        return time.start, time.end

    # Code

    def load(self, agent: int, code: bytes) -> int:
        """An executable of a code object, frozen. Raises HsaError where the agent does not take it."""
        reader, executable = c_uint64(), c_uint64()
        self._call("hsa_code_object_reader_create_from_memory", code, len(code), ctypes.byref(reader))
        try:
            self._call("hsa_executable_create_alt", PROFILE_FULL, ROUNDING_DEFAULT, b"", ctypes.byref(executable))
            try:
                self._call("hsa_executable_load_agent_code_object", executable, agent, reader, b"", None)
                self._call("hsa_executable_freeze", executable, b"")
            except (HsaError, OutOfDeviceMemory):
                self._call("hsa_executable_destroy", executable)
                raise
        finally:
            self._call("hsa_code_object_reader_destroy", reader)
        return executable.value

    def unload(self, executable: int) -> None:
        """Nothing of it may run any more."""
        self._call("hsa_executable_destroy", executable)

    def symbol(self, executable: int, agent: int, name: str) -> int:
        """A kernel's symbol, by its descriptor's name. Raises HsaError where there is none."""
        symbol = c_uint64()
        self._call(
            "hsa_executable_get_symbol_by_name", executable, name.encode(), ctypes.byref(c_uint64(agent)),
            ctypes.byref(symbol),
        )  # fmt: skip
        return symbol.value

    def symbol_number(self, symbol: int, attribute: SymbolInfo) -> int:
        """A number that a kernel states."""
        value = c_uint64()
        self._call("hsa_executable_symbol_get_info", symbol, attribute, ctypes.byref(value))
        return value.value

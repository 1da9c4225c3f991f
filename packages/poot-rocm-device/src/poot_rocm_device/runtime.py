"""The HSA runtime of this process: begun once, with the handler of its events, and ended at exit.

There is one handler for each process and no way to take it back, and ROCr aborts the process at a memory fault that no
handler takes. So a runtime is begun at most once for each library and stays until the interpreter exits, when every
open device is closed before it: its threads must not call into an interpreter that is gone.
"""

from __future__ import annotations

import atexit
import weakref
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

from poot_executor.errors import DeviceNotFound, PootError
from poot_rocm_device.faults import Latch, describe_event
from poot_rocm_device.hsa import LIBRARY, Hsa
from poot_rocm_device.hsa_types import EventCallback, EventType, Status


class Closable(Protocol):
    """A device."""

    def close(self) -> None:
        """Give everything back."""


class NotStarted(Exception):
    """The runtime did not begin: the status of `hsa_init`."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"hsa_init: status {status:#x}, {words.partition(':')[0]}")
        self.status = status


class Runtime:
    """A runtime that has begun. Raises OSError or AttributeError for a library that is none, NotStarted, and
    DeviceNotFound where somebody else in this process has the handler.
    """

    def __init__(self, path: str) -> None:
        self.hsa = Hsa(path)
        status = self.hsa.init()
        if status != Status.SUCCESS:
            raise NotStarted(status, self.hsa.words(status))
        self._latches: dict[int, weakref.WeakSet[Latch]] = {}
        self._devices: set[Closable] = set()
        # Referred to as long as the process lives: the runtime calls it whenever it likes.
        self._handler = EventCallback(self._on_event)
        if self.hsa.register_event_handler(self._handler) != Status.SUCCESS:
            self.hsa.shut_down()
            raise DeviceNotFound(
                "another library of this process handles the HSA runtime's events, so a memory fault would go"
                " unnoticed: run poot in a process of its own"
            )
        atexit.register(self._end)

    def watch(self, agent: int, latch: Latch) -> None:
        """Trip the latch at events of an agent, as long as somebody holds it."""
        self._latches.setdefault(agent, weakref.WeakSet()).add(latch)

    def hold(self, device: Closable) -> None:
        """Keep a device until `let_go`, and close it before the interpreter ends: the runtime may call back into it as
        long as it has a queue."""
        self._devices.add(device)

    def let_go(self, device: Closable) -> None:
        """The device has no queue any more."""
        self._devices.discard(device)

    def _on_event(self, event: Any, _data: int | None) -> int:
        """Always success: with anything else the runtime ends the process."""
        try:
            told = event.contents
            if told.event_type == EventType.SHUTDOWN:
                return Status.SUCCESS
            reason = describe_event(told)
            for latch in self._concerned(told.memory_fault.agent):
                latch.trip(reason)
        # An exception would be printed, and lost.
        except Exception:  # noqa: BLE001
            return Status.SUCCESS
        return Status.SUCCESS

    def _concerned(self, agent: int) -> list[Latch]:
        """Who watches an agent; everybody where nobody does, since an event that nobody hears of is a wait in vain."""
        watching = list(self._latches.get(agent, ()))
        return watching or [latch for latches in list(self._latches.values()) for latch in latches]

    def _end(self) -> None:
        for device in list(self._devices):
            with suppress(PootError):
                device.close()
        with suppress(PootError):
            self.hsa.shut_down()


@cache
def runtime_at(path: str = LIBRARY) -> Runtime:
    """The process's runtime of a library. A failure is not kept: the next call tries again."""
    return Runtime(path)

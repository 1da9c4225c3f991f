"""Faults as they arrive, on a thread of the runtime: the first one is kept, and whoever waits is released."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from poot_executor.errors import DeviceLost
from poot_rocm_device.hsa_types import Event, EventType, Status

REASONS = (
    "the page is not there", "it is read only", "it holds no code", "only the host may touch it", "an ECC error",
    "the address is not exact",
)  # fmt: skip
"""hsa_amd_memory_fault_reason_t, from bit 0."""

QUEUE_ERRORS: Mapping[int, str] = {
    Status.EXCEPTION: "a wave trapped or was aborted",
    Status.INVALID_PACKET_FORMAT: "a packet is not well formed",
    Status.MEMORY_APERTURE_VIOLATION: "a wave left its aperture",
    Status.ILLEGAL_INSTRUCTION: "a wave met an illegal instruction",
    Status.MEMORY_FAULT: "a wave touched memory that is not there",
}
"""What statuses mean where a queue reports them."""


class Latch:
    """The first fault of one device. `release` lets go whoever waits, on the thread that reports."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        # Several threads may report: appending is one step of the interpreter, so one of them is first.
        self._reasons: list[str] = []

    @property
    def reason(self) -> str:
        """The first fault; "" where there was none."""
        return self._reasons[0] if self._reasons else ""

    def trip(self, reason: str) -> None:
        """Take a fault down. Never raises: what calls it is no Python."""
        self._reasons.append(reason)
        try:
            self._release()
        # Whoever waits looks at the reason again and again anyway.
        except Exception:  # noqa: BLE001
            return

    def check(self) -> None:
        """Raise DeviceLost once there was a fault."""
        if self._reasons:
            raise DeviceLost(f"{self.reason}: the context is lost and poisoned: open the device again in a new process")


def describe_event(event: Event) -> str:
    """A system event in words."""
    if event.event_type == EventType.MEMORY_FAULT:
        fault = event.memory_fault
        reasons = [text for bit, text in enumerate(REASONS) if fault.fault_reason_mask >> bit & 1]
        why = ", ".join(reasons) or f"reason {fault.fault_reason_mask:#x}"
        return f"the GPU faulted at address {fault.virtual_address:#x} ({why})"
    if event.event_type == EventType.HARDWARE_EXCEPTION:
        return "the GPU hung and was reset, or reported an exception of its hardware"
    if event.event_type == EventType.MEMORY_ERROR:
        return "the GPU reported an error of its memory"
    return f"the GPU reported event {event.event_type}"


def describe_queue_error(status: int, words: str) -> str:
    """A queue's error in words."""
    meaning = QUEUE_ERRORS.get(status, "")
    return f"the queue reported status {status:#x} ({meaning or words})"

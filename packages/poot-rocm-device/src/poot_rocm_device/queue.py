"""One user-mode queue: recorded packets are copied into its ring and published, and signals are waited for.

The ring is shared memory that the GPU's packet processor reads, and it may do so as soon as a packet's header is valid.
So bodies are written first and headers last, each header and setup as one aligned store of 32 bits; x86-64 keeps the
order of stores. The processor invalidates a header when it has read the packet, so every step copies all of them again.
"""

from __future__ import annotations

import ctypes
from time import monotonic, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import DeviceLost, DeviceTimeout
from poot_rocm_device.agents import Gpu
from poot_rocm_device.faults import Latch, describe_queue_error
from poot_rocm_device.hsa import Hsa
from poot_rocm_device.hsa_types import ACTIVE, BLOCKED, PACKET_BYTES, PACKET_WORDS, QueueCallback

Words = NDArray[np.uint32]

RING_PACKETS = 8192
"""Some steps of a large model: 512 KB of the host's memory."""

SPIN_SECONDS = 0.02
"""For so long a wait keeps its processor: a step takes milliseconds, and waking up would be added to it."""

SLICE_SECONDS = 0.01
"""How long a wait sleeps before it looks for a fault that did not release it."""

RELEASED = -1
"""What a signal holds that was released by a fault."""


class PacketQueue:
    """A queue of one GPU. `timeout` bounds every wait, in seconds. One thread uses it."""

    def __init__(self, hsa: Hsa, gpu: Gpu, *, timeout: float, packets: int = RING_PACKETS) -> None:
        self.timeout = timeout
        self.latch = Latch(self._release_waiters)
        self._hsa = hsa
        self._agent = gpu.agent
        self._ticks = hsa.frequency()
        # A callback must live as long as the runtime may call it, which is as long as its queue.
        self._callback = QueueCallback(self._on_error)
        self._queue: Any = hsa.create_queue(gpu.agent, min(packets, gpu.packets), self._callback)
        shown = self._queue.contents
        self._size = int(shown.size)
        self._doorbell = int(shown.doorbell_signal)
        self._address = ctypes.cast(self._queue, ctypes.c_void_p)
        memory = (ctypes.c_uint32 * (self._size * PACKET_WORDS)).from_address(shown.base_address)
        ring = np.ctypeslib.as_array(memory).reshape(self._size, PACKET_WORDS)
        self._heads, self._bodies = ring[:, 0], ring[:, 1:]
        assert shown.base_address % PACKET_BYTES == 0
        self._written = self._read = 0
        self._free_signals: list[int] = []
        self._waited: list[int] = []
        hsa.profile(self._queue)

    # Signals

    def take_signal(self) -> int:
        """A signal at 1, of those that were given back where there are any."""
        if not self._free_signals:
            return self._hsa.create_signal(1)
        signal = self._free_signals.pop()
        self._hsa.reset_signal(signal, 1)
        return signal

    def give_signal(self, signal: int) -> None:
        """Nothing may count it down any more."""
        self._free_signals.append(signal)

    def expect(self, signal: int) -> None:
        """A fault releases whoever waits for this signal, until `wait` has returned."""
        self._waited.append(signal)

    def wait(self, signal: int, what: str) -> None:
        """Until the signal is counted down. Raises DeviceTimeout, and DeviceLost where there was a fault."""
        hsa, latch = self._hsa, self.latch
        first = min(self.timeout, SPIN_SECONDS)
        value = hsa.wait_below(signal, 1, int(first * self._ticks), ACTIVE)
        if value >= 1:
            end = monotonic() + self.timeout - first
            while value >= 1:
                latch.check()
                left = end - monotonic()
                if left <= 0:
                    raise DeviceTimeout(what, self.timeout)
                value = hsa.wait_below(signal, 1, int(min(left, SLICE_SECONDS) * self._ticks) + 1, BLOCKED)
        latch.check()
        if value < 0:
            raise DeviceLost(f"{what} failed on the device: it is poisoned: open it again in a new process")
        self._waited.remove(signal)

    def seconds(self, start: int, end: int) -> float:
        """From the begin of the dispatch that one signal belongs to, to the end of the other one's."""
        first, _ = self._hsa.dispatch_time(self._agent, start)
        _, last = self._hsa.dispatch_time(self._agent, end)
        return (last - first) / self._ticks

    # Packets

    def submit(self, packets: Words, what: str) -> None:
        """Publish packets, shape (count, 16), in order; where they do not fit into the ring, wait for room, bounded."""
        count = len(packets)
        if count <= self._size - (self._written - self._read):
            self._publish(packets)
            return
        done = 0
        while done < count:
            # At least half a ring at a time, so that a step is few pieces.
            room = self._await_room(min(count - done, self._size // 2), what)
            piece = packets[done : done + room]
            self._publish(piece)
            done += len(piece)

    def _await_room(self, least: int, what: str) -> int:
        end = monotonic() + self.timeout
        while True:
            self._read = self._hsa.load_read_index(self._address)
            room = self._size - (self._written - self._read)
            if room >= least:
                return room
            self.latch.check()
            if monotonic() > end:
                raise DeviceTimeout(what, self.timeout)
            sleep(1e-5)

    def _publish(self, packets: Words) -> None:
        count, hsa = len(packets), self._hsa
        first = hsa.add_write_index(self._address, count)
        place = first & (self._size - 1)
        straight = self._size - place
        heads, bodies = self._heads, self._bodies
        if count <= straight:
            bodies[place : place + count] = packets[:, 1:]
            heads[place : place + count] = packets[:, 0]
        else:
            bodies[place:] = packets[:straight, 1:]
            bodies[: count - straight] = packets[straight:, 1:]
            heads[place:] = packets[:straight, 0]
            heads[: count - straight] = packets[straight:, 0]
        self._written = first + count
        hsa.store_signal(self._doorbell, self._written - 1)

    # Faults and the end

    def _on_error(self, status: int, _queue: int | None, _data: int | None) -> None:
        """On a thread of the runtime. What was in the queue never completes."""
        try:
            self.latch.trip(describe_queue_error(status, self._hsa.words(status)))
        # What is raised in a callback is lost, the reason is not: without words it is as good.
        except Exception:  # noqa: BLE001
            self.latch.trip(f"the queue reported status {status:#x}")

    def _release_waiters(self) -> None:
        for signal in list(self._waited):
            self._hsa.store_signal(signal, RELEASED)

    def close(self) -> None:
        """Nothing may be pending."""
        self._hsa.destroy_queue(self._address)
        for signal in self._free_signals:
            self._hsa.destroy_signal(signal)
        self._free_signals.clear()

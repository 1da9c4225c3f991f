"""Bytes in and out of memory that the host does not see: through a staging buffer, a piece at a time, each waited
for.
"""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.device import Buffer, BufferKind
from poot_vulkan_device.api import Handle
from poot_vulkan_device.commands import Commands
from poot_vulkan_device.memory import Bytes, Memory
from poot_vulkan_device.submission import Queue

STAGING_BYTES = 8 << 20
"""Bytes moved at a time."""


class Transfers:
    """Copies on the device's queue: after everything that was submitted, done when they return."""

    def __init__(self, encoder: Commands, memory: Memory, queue: Queue) -> None:
        self._encoder = encoder
        self._queue = queue
        self._staging: Buffer = memory.allocate(BufferKind.STAGING, STAGING_BYTES)
        view = self._staging.handle.view
        assert view is not None
        self._view: Bytes = view

    def zero(self, buffer: Buffer) -> None:
        """Zero a whole buffer."""
        self._run("allocate", lambda commands: self._encoder.fill_zero(commands, buffer.handle.buffer))

    def write(self, buffer: Buffer, offset: int, data: Bytes) -> None:
        """Host bytes into a buffer."""
        for start in range(0, data.size, STAGING_BYTES):
            piece = data[start : start + STAGING_BYTES]
            self._view[: piece.size] = piece
            self._copy("write", (self._staging, 0), (buffer, offset + start), piece.size)

    def read(self, buffer: Buffer, offset: int, out: Bytes) -> None:
        """Bytes of a buffer to the host."""
        for start in range(0, out.size, STAGING_BYTES):
            piece = out[start : start + STAGING_BYTES]
            self._copy("read", (buffer, offset + start), (self._staging, 0), piece.size)
            piece[:] = self._view[: piece.size]

    def _copy(self, what: str, source: tuple[Buffer, int], target: tuple[Buffer, int], nbytes: int) -> None:
        from_, to = (source[0].handle.buffer, source[1]), (target[0].handle.buffer, target[1])
        self._run(what, lambda commands: self._encoder.copy(commands, from_, to, nbytes))

    def _run(self, what: str, record: Callable[[Handle], None]) -> None:
        commands = self._encoder.begin()
        record(commands)
        self._encoder.end(commands)
        self._queue.wait(self._queue.submit(commands), what)
        self._encoder.free([commands])

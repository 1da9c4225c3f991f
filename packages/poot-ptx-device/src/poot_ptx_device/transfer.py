"""Host bytes to device memory and back, through two pieces of page-locked memory that take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from poot_ptx_device.native import Handle, Native
from poot_ptx_device.pinned import Pinned, pin

PIECE_BYTES = 4 << 20

Wait = Callable[[Handle, str], None]
"""wait(event, what) returns once the event has happened, and raises where it does not in time."""


@dataclass(slots=True)
class _Piece:
    """Page-locked memory and the event that says that the device is done with it."""

    memory: Pinned
    event: Handle
    busy: bool = False


@dataclass(slots=True)
class Transfers:
    """Copies in the order of one stream. Nothing is allocated before the first one."""

    native: Native
    stream: Handle
    wait: Wait
    _pieces: list[_Piece] = field(default_factory=list)
    _turn: int = 0

    def upload(self, address: int, data: NDArray[np.uint8]) -> None:
        """The bytes are taken before it returns; they arrive after everything submitted before."""
        for start, stop in _runs(data.size):
            piece = self._next("write")
            piece.memory.view[: stop - start] = data[start:stop]
            self.native.upload(address + start, piece.memory.address, stop - start, self.stream)
            self._mark(piece)

    def download(self, out: NDArray[np.uint8], address: int) -> None:
        """The bytes as everything submitted before leaves them; the next run is on its way while one is copied out."""
        pending: list[tuple[_Piece, int, int]] = []
        for start, stop in _runs(out.size):
            piece = self._next("read")
            self.native.download(piece.memory.address, address + start, stop - start, self.stream)
            self._mark(piece)
            pending.append((piece, start, stop))
            if len(pending) == len(self._pieces):
                self._land(out, *pending.pop(0))
        for landed in pending:
            self._land(out, *landed)

    def _land(self, out: NDArray[np.uint8], piece: _Piece, start: int, stop: int) -> None:
        self.wait(piece.event, "read")
        piece.busy = False
        out[start:stop] = piece.memory.view[: stop - start]

    def _next(self, what: str) -> _Piece:
        if not self._pieces:
            self._pieces = [_Piece(pin(self.native, PIECE_BYTES), self.native.create_event()) for _ in range(2)]
        piece = self._pieces[self._turn]
        self._turn = 1 - self._turn
        if piece.busy:
            self.wait(piece.event, what)
            piece.busy = False
        return piece

    def _mark(self, piece: _Piece) -> None:
        self.native.record_event(piece.event, self.stream)
        piece.busy = True

    def release(self) -> None:
        """Give the memory back; nothing may be on its way."""
        for piece in self._pieces:
            self.native.destroy_event(piece.event)
            self.native.host_free(piece.memory.address)
        self._pieces.clear()


def _runs(nbytes: int) -> Iterator[tuple[int, int]]:
    for start in range(0, nbytes, PIECE_BYTES):
        yield start, min(start + PIECE_BYTES, nbytes)

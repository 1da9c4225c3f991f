"""A whole file, mapped read-only, with bounds-checked little-endian reads that refuse by offset."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import CheckpointError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file as a read-only view of its mapping, which lives as long as the view.

    Raises CheckpointError where the file is absent, unreadable, not a plain file or empty.
    """
    try:
        if not path.is_file():
            what = "is not a plain file" if path.exists() else "no such file"
            raise CheckpointError(f"{path}: {what}")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size == 0:
                raise CheckpointError(f"{path}: the file is empty (0 bytes)")
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    return np.frombuffer(mapping, np.uint8)


class Cursor:
    """A position in mapped bytes. Every read is checked against what remains before it allocates.

    `what` names the field being read, for messages. Offsets are bytes from the start of the file.
    """

    __slots__ = ("_bytes", "_path", "offset")

    def __init__(self, path: Path, data: NDArray[np.uint8], offset: int = 0) -> None:
        self._path = path
        self._bytes = data.data
        self.offset = offset

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the file."""
        return len(self._bytes) - self.offset

    def refuse(self, what: str, problem: str) -> CheckpointError:
        """The error to raise for a field that starts at the present offset."""
        return CheckpointError(f"{self._path}: {what} at byte {self.offset}: {problem}")

    def need(self, what: str, count: int, each: int = 1) -> None:
        """Raise CheckpointError unless `count` items of at least `each` bytes can follow."""
        if count * each > self.remaining:
            claim = f"{count:,} bytes" if each == 1 else f"{count:,} items of {each} bytes or more"
            problem = f"claims {claim}, {self.remaining:,} bytes remain"
            raise self.refuse(what, problem)

    def take(self, what: str, count: int) -> memoryview:
        """The next `count` bytes, a view of the mapping."""
        self.need(what, count)
        view = self._bytes[self.offset : self.offset + count]
        self.offset += count
        return view

    def u32(self, what: str) -> int:
        """The next 4 bytes as a number."""
        return int(_U32.unpack(self.take(what, 4))[0])

    def u64(self, what: str) -> int:
        """The next 8 bytes as a number."""
        return int(_U64.unpack(self.take(what, 8))[0])

    def text(self, what: str) -> str:
        """A u64 byte count and that many bytes of UTF-8."""
        start = self.offset
        count = self.u64(what)
        raw = self.take(what, count)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            self.offset = start
            raise self.refuse(what, f"is not UTF-8 ({error.reason} at its byte {error.start})") from error

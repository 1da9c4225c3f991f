"""Compiled models on disk, by content, which several processes may share.

A file is named by its key and holds

    magic (8) · SHA-256 of the rest (32) · key (32) · lengths (8 each: text, then each blob; their number before them)
    · text · blobs, each from a multiple of 4,096

Anything else (truncated, altered, foreign, of another key) is no entry, and is written over. Entries are written to a
temporary file that is renamed, so that a reader sees an old one or a new one, whole; what one process has mapped stays
as it was when another replaces it. A folder that cannot be written costs the entries and never a compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MAGIC = b"POOTVPU1"
SUFFIX = ".vpu"
PAGE = 4096
MAX_BYTES = 4 << 30
"""Bytes of entries that the folder holds; the oldest go first."""
_HEAD = struct.Struct("<8s32s32sQ")

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What was kept: `text` as bytes, `blobs` as views of the mapped file, which is this process's own to write.

    `settle` gives its pages back, which are read again where they are touched. A touch brings as much with it as the
    kernel holds together, two megabytes often: so what is read again and again is held apart (`hold`), in `pages`.
    """

    text: bytes
    blobs: tuple[Bytes, ...]
    mapped: mmap.mmap
    pages: set[int] = field(default_factory=set)

    def hold(self, number: int, start: int, stop: int) -> None:
        """Copy the pages of a blob's bytes, so that reading them touches the file no more."""
        at = self.blobs[number].ctypes.data - np.frombuffer(self.mapped, np.uint8).ctypes.data
        for page in range((at + start) // PAGE, -(-(at + stop) // PAGE)):
            self.mapped[page * PAGE] = self.mapped[page * PAGE]  # a write, and so a page of its own
            self.pages.add(page)

    def settle(self) -> None:
        """Drop the other pages from this process's resident set."""
        if hasattr(mmap, "MADV_DONTNEED") and mmap.PAGESIZE == PAGE:
            start = 0
            for page in [*sorted(self.pages), -(-len(self.mapped) // PAGE)]:
                if start < page:
                    length = min(page * PAGE, len(self.mapped)) - start * PAGE
                    self.mapped.madvise(mmap.MADV_DONTNEED, start * PAGE, length)
                start = page + 1


class BlobFolder:
    """A folder of entries; None keeps nothing. `rejected` counts files that were no entry, `warning` is the first
    reason why one could not be kept."""

    def __init__(self, folder: Path | None, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self.rejected = 0
        self.warning: str | None = None

    def __bool__(self) -> bool:
        return self._folder is not None

    def read(self, key: bytes) -> Entry | None:
        """The entry of that key; None where there is none that is whole."""
        if self._folder is None:
            return None
        path = self._path(key)
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            self._warn(f"{path} cannot be read: {error}")
            return None
        entry = _opened(mapped, key)
        if entry is None:
            self.rejected += 1
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # no longer the oldest
        return entry

    def write(self, key: bytes, text: bytes, blobs: Sequence[bytes | memoryview]) -> None:
        """Keep an entry, in the place of one that was there."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(prefix=".writing-", dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    digest = hashlib.sha256()
                    file.write(bytes(40))
                    for part in _parts(key, text, blobs):
                        digest.update(part)
                        file.write(part)
                    file.seek(0)
                    file.write(MAGIC + digest.digest())
                Path(name).replace(self._path(key))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            self._bound()
        except OSError as error:
            self._warn(f"{self._folder} cannot be written: {error}")

    def _bound(self) -> None:
        """Evict the oldest entries once there are too many bytes."""
        assert self._folder is not None
        listed = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self._folder.glob(f"*{SUFFIX}"))
        total = sum(size for _, size, _ in listed)
        for _, size, path in listed[:-1]:
            if total <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size

    def _path(self, key: bytes) -> Path:
        assert self._folder is not None
        return self._folder / (key.hex() + SUFFIX)

    def _warn(self, reason: str) -> None:
        self.warning = self.warning or reason


def _parts(key: bytes, text: bytes, blobs: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """What follows the digest, in order."""
    head = key + struct.pack(f"<{2 + len(blobs)}Q", len(blobs), len(text), *(len(blob) for blob in blobs)) + text
    yield head
    at = 40 + len(head)
    for blob in blobs:
        yield bytes(-at % PAGE)
        yield blob
        at += -at % PAGE + len(blob)


def _opened(mapped: mmap.mmap, key: bytes) -> Entry | None:
    whole = memoryview(mapped)
    if len(whole) < _HEAD.size + 8:
        return None
    magic, digest, named, count = _HEAD.unpack_from(whole)
    if magic != MAGIC or named != key or hashlib.sha256(whole[40:]).digest() != digest:
        return None
    lengths = struct.unpack_from(f"<{count + 1}Q", whole, _HEAD.size)
    at = _HEAD.size + 8 * (count + 1)
    text = bytes(whole[at : at + lengths[0]])
    at += lengths[0]
    blobs = []
    for length in lengths[1:]:
        at += -at % PAGE
        blobs.append(np.frombuffer(whole[at : at + length], np.uint8))
        at += length
    return Entry(text, tuple(blobs), mapped)

"""A folder of checked files by content key, which several processes may share: what the caches keep their entries in.

A file is named by its key and holds

    magic (8) · SHA-256 of the rest (32) · key (32) · payload

Anything else (truncated, altered, foreign, of another key) is no entry: it is rejected, and written over. Entries are
written to a temporary file that is renamed, so that a reader sees an old one or a new one, whole.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path

TEMPORARY = ".writing-"
MAX_BYTES = 256 << 20
"""Bytes of entries a folder holds by default; the oldest go first."""
MAX_ENTRY_BYTES = 64 << 20
ABANDONED_SECONDS = 3600.0
"""A temporary file older than this belongs to a process that died while writing it."""
MAGIC_BYTES, HASH_BYTES = 8, 32


@dataclass(frozen=True, slots=True)
class FolderStats:
    """`rejected` (files that were no entry), `written`, `evicted`; `warning` is the first reason why an entry could not
    be kept, None where all were."""

    rejected: int
    written: int
    evicted: int
    warning: str | None


class EntryFolder:
    """A folder of entries with one `magic` and `suffix`; None keeps nothing.

    A folder that cannot be read or written, or is full, costs the entries and never raises.
    """

    def __init__(self, folder: Path | None, magic: bytes, suffix: str, max_bytes: int = MAX_BYTES) -> None:
        assert len(magic) == MAGIC_BYTES
        self._folder = folder
        self._magic = magic
        self._suffix = suffix
        self._max_bytes = max_bytes
        self._size: int | None = None
        self._counts = dict.fromkeys(("rejected", "written", "evicted"), 0)
        self._warning: str | None = None

    def read(self, key: bytes) -> bytes | None:
        """The payload of an entry; None where there is none that is whole."""
        if self._folder is None:
            return None
        path = self._path(key)
        try:
            data = _read_regular(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.warn(f"compile cache {path} cannot be read: {error}")
            return None
        found = None if data is None else open_entry(self._magic, key, data)
        if found is None:
            self.reject()
            return None
        try:
            with suppress(FileNotFoundError):  # another process evicted it after it was read
                os.utime(path)  # no longer the oldest
        except OSError as error:
            self.warn(f"compile cache {path} cannot be touched: {error}")
        return found

    def write(self, key: bytes, payload: bytes) -> None:
        """Keep an entry, in the place of one that was there."""
        data = seal_entry(self._magic, key, payload)
        if self._folder is None or len(data) > min(self._max_bytes, MAX_ENTRY_BYTES):
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(self._path(key), data)
            self._counts["written"] += 1
            self._bound(len(data))
        except OSError as error:
            self.warn(f"compile cache {self._folder} cannot be written: {error}")

    def remove(self, key: bytes) -> None:
        """Forget an entry, if it is there."""
        if self._folder is not None:
            with suppress(OSError):
                self._path(key).unlink(missing_ok=True)

    def reject(self) -> None:
        """Count an entry whose payload is not what its key says."""
        self._counts["rejected"] += 1

    def warn(self, reason: str) -> None:
        """Note why something could not be kept; the first reason stays."""
        if self._warning is None:
            self._warning = reason

    def stats(self) -> FolderStats:
        """The counts since this was made."""
        return FolderStats(**self._counts, warning=self._warning)

    def _path(self, key: bytes) -> Path:
        assert self._folder is not None
        return self._folder / (key.hex() + self._suffix)

    def _bound(self, added: int) -> None:
        """Evict the oldest entries once there are too many bytes, down to nine tenths of the bound.

        The size is counted at the first write and then kept, so processes that share the folder may
        together pass the bound by what each wrote since it last counted.
        """
        if self._size is not None:
            self._size += added
        if self._size is not None and self._size <= self._max_bytes:
            return
        entries = _entries(self._folder, self._suffix) if self._folder is not None else []
        self._size = sum(size for _, size, _ in entries)
        if self._size <= self._max_bytes:
            return
        for _, size, path in sorted(entries):
            if self._size <= self._max_bytes * 9 // 10:
                break
            path.unlink(missing_ok=True)
            self._size -= size
            self._counts["evicted"] += 1


def seal_entry(magic: bytes, key: bytes, payload: bytes) -> bytes:
    """The bytes of an entry's file."""
    hashed = hashlib.sha256(key)
    hashed.update(payload)
    return b"".join((magic, hashed.digest(), key, payload))


def open_entry(magic: bytes, key: bytes, data: bytes) -> bytes | None:
    """The payload in a file's bytes; None for what `seal_entry` did not write for `key`."""
    head = MAGIC_BYTES + HASH_BYTES
    rest = memoryview(data)[head:]
    if data[:MAGIC_BYTES] != magic or data[MAGIC_BYTES:head] != hashlib.sha256(rest).digest():
        return None
    return bytes(rest[HASH_BYTES:]) if rest[:HASH_BYTES] == key else None


def canonical(value: object) -> str:
    """Text that is equal for equal values in every process. Raises TypeError for unknown types."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (frozenset, set)):
        return "{" + ",".join(sorted(canonical(v) for v in value)) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(canonical(v) for v in value) + ")"
    if isinstance(value, Mapping):
        items = sorted((canonical(k), canonical(v)) for k, v in value.items())
        return "{" + ",".join(f"{k}:{v}" for k, v in items) + "}"
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__ + canonical([getattr(value, field.name) for field in fields(value)])
    raise TypeError(f"what is hashed holds a {type(value).__name__}, which has no canonical text")


def _read_regular(path: Path) -> bytes | None:
    """A regular file's bytes; None where it is something else or larger than an entry may be."""
    # Not blocking: opening a pipe that someone put there must not wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except IsADirectoryError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_ENTRY_BYTES:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_ENTRY_BYTES + 1)
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, whole."""
    descriptor, name = tempfile.mkstemp(prefix=TEMPORARY, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _entries(folder: Path, suffix: str) -> list[tuple[float, int, Path]]:
    """(modification time, bytes, path) of every entry; removes what dead writers left behind."""
    entries: list[tuple[float, int, Path]] = []
    now = time.time()
    for path in folder.iterdir():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # another process evicted it
        if path.suffix == suffix and stat.S_ISREG(status.st_mode):
            entries.append((status.st_mtime, status.st_size, path))
        elif path.name.startswith(TEMPORARY) and now - status.st_mtime > ABANDONED_SECONDS:
            path.unlink(missing_ok=True)
    return entries

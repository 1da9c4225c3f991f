"""Compiled kernels on disk, by content: what a kernel compiles to is a pure function of its key.

A file is named by a hash of everything its code depends on: the target's kind and caps, the
kernel's digest, poot's version and what the device says of its emitter. It holds

    magic (8) · SHA-256 of the rest (32) · key (32) · three fields: length (u32), bytes

where numbers are little-endian and the fields are name, code and entry point. Anything else
(truncated, altered, foreign, of another key) is no entry: it is compiled again and written over.
Nothing is unpickled or run.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import Enum
from importlib import metadata, util
from pathlib import Path

from poot_executor.compile.target import Target
from poot_executor.device import Compiled

MAGIC = b"POOTKRN1"
SUFFIX = ".kernel"
TEMPORARY = ".writing-"
MAX_BYTES = 256 << 20
"""Bytes of entries a folder holds by default; the oldest go first."""
MAX_ENTRY_BYTES = 64 << 20
ABANDONED_SECONDS = 3600.0
"""A temporary file older than this belongs to a process that died while writing it."""
_HEAD = len(MAGIC) + 32


@dataclass(frozen=True, slots=True)
class CacheStats:
    """`hits`, `misses` (compiled), `rejected` (files that were no entry), `written`, `evicted`.

    `warning` is the first reason why an entry could not be kept; None where all were.
    """

    hits: int
    misses: int
    rejected: int
    written: int
    evicted: int
    warning: str | None


class CompileCache:
    """A folder of compiled kernels that several processes may share. None keeps nothing.

    A folder that cannot be read or written, or is full, costs the cache and never a compile: the
    first reason is in `stats().warning`. `emitter` is what else the code depends on, such as
    `source_digest` of the device's package.
    """

    def __init__(self, folder: Path | None, *, emitter: str = "", max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._context = f"{metadata.version('poot-executor')}\n{emitter}"
        self._max_bytes = max_bytes
        self._size: int | None = None
        self._counts = dict.fromkeys(("hits", "misses", "rejected", "written", "evicted"), 0)
        self._warning: str | None = None

    def get(self, target: Target, digest: bytes, make: Callable[[], Compiled]) -> Compiled:
        """A kernel's code, by digest: from disk, else from `make`, whose errors pass."""
        key = cache_key(target, digest, self._context)
        found = self._read(key)
        if found is not None:
            self._counts["hits"] += 1
            return found
        self._counts["misses"] += 1
        compiled = make()
        self._write(key, encode_entry(key, compiled))
        return compiled

    def stats(self) -> CacheStats:
        """The counts since this cache was made."""
        return CacheStats(**self._counts, warning=self._warning)

    def _path(self, key: bytes) -> Path:
        assert self._folder is not None
        return self._folder / (key.hex() + SUFFIX)

    def _read(self, key: bytes) -> Compiled | None:
        if self._folder is None:
            return None
        path = self._path(key)
        try:
            data = _read_regular(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"compile cache {path} cannot be read: {error}")
            return None
        found = None if data is None else decode_entry(key, data)
        if found is None:
            self._counts["rejected"] += 1
            return None
        try:
            with suppress(FileNotFoundError):  # another process evicted it after it was read
                os.utime(path)  # no longer the oldest
        except OSError as error:
            self._warn(f"compile cache {path} cannot be touched: {error}")
        return found

    def _write(self, key: bytes, data: bytes) -> None:
        if self._folder is None or len(data) > min(self._max_bytes, MAX_ENTRY_BYTES):
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _replace(self._path(key), data)
            self._counts["written"] += 1
            self._bound(len(data))
        except OSError as error:
            self._warn(f"compile cache {self._folder} cannot be written: {error}")

    def _bound(self, added: int) -> None:
        """Evict the oldest entries once there are too many bytes, down to nine tenths of the bound.

        The size is counted at the first write and then kept, so processes that share the folder may
        together pass the bound by what each wrote since it last counted.
        """
        if self._size is not None:
            self._size += added
        if self._size is not None and self._size <= self._max_bytes:
            return
        entries = _entries(self._folder) if self._folder is not None else []
        self._size = sum(size for _, size, _ in entries)
        if self._size <= self._max_bytes:
            return
        for _, size, path in sorted(entries):
            if self._size <= self._max_bytes * 9 // 10:
                break
            path.unlink(missing_ok=True)
            self._size -= size
            self._counts["evicted"] += 1

    def _warn(self, reason: str) -> None:
        if self._warning is None:
            self._warning = reason


def cache_key(target: Target, digest: bytes, context: str) -> bytes:
    """32 bytes that name what a kernel of that digest compiles to on that target."""
    caps = "\n".join(f"{f.name}={_canonical(getattr(target.caps, f.name))}" for f in fields(target.caps))
    parts = (context.encode(), target.kind.encode(), caps.encode(), digest)
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(struct.pack("<Q", len(part)) + part)
    return hashed.digest()


def encode_entry(key: bytes, compiled: Compiled) -> bytes:
    """The bytes of an entry's file."""
    parts = (compiled.name.encode(), compiled.code, compiled.entry.encode())
    payload = key + b"".join(struct.pack("<I", len(part)) + part for part in parts)
    return MAGIC + hashlib.sha256(payload).digest() + payload


def decode_entry(key: bytes, data: bytes) -> Compiled | None:
    """The entry in a file's bytes; None for what `encode_entry` did not write for `key`."""
    payload = data[_HEAD:]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : _HEAD] != hashlib.sha256(payload).digest():
        return None
    if payload[:32] != key:
        return None
    parts: list[bytes] = []
    at = 32
    while at + 4 <= len(payload):
        (length,) = struct.unpack_from("<I", payload, at)
        parts.append(payload[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(payload) or len(parts) != 3:
        return None
    try:
        return Compiled(parts[0].decode(), parts[1], parts[2].decode())
    except UnicodeDecodeError:
        return None


def source_digest(package: str) -> str:
    """A hash of an installed package's Python sources, without importing it; "" where it has none.

    It changes with every edit of an emitter, where a version number does not.
    """
    spec = util.find_spec(package)
    hashed = hashlib.sha256()
    sources = [
        path
        for folder in (spec.submodule_search_locations or () if spec is not None else ())
        for path in sorted(Path(folder).rglob("*.py"))
    ]
    for path in sources:
        content = path.read_bytes()
        hashed.update(f"{path.name} {len(content)}\n".encode() + content)
    return hashed.hexdigest() if sources else ""


def _canonical(value: object) -> str:
    """Text that is equal for equal values in every process. Raises TypeError for unknown types."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (frozenset, set)):
        return "{" + ",".join(sorted(_canonical(v) for v in value)) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ",".join(_canonical(v) for v in value) + ")"
    if isinstance(value, Mapping):
        items = sorted((_canonical(k), _canonical(v)) for k, v in value.items())
        return "{" + ",".join(f"{k}:{v}" for k, v in items) + "}"
    raise TypeError(f"caps hold a {type(value).__name__}, which has no canonical text")


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


def _entries(folder: Path) -> list[tuple[float, int, Path]]:
    """(modification time, bytes, path) of every entry; removes what dead writers left behind."""
    entries: list[tuple[float, int, Path]] = []
    now = time.time()
    for path in folder.iterdir():
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # another process evicted it
        if path.suffix == SUFFIX and stat.S_ISREG(status.st_mode):
            entries.append((status.st_mtime, status.st_size, path))
        elif path.name.startswith(TEMPORARY) and now - status.st_mtime > ABANDONED_SECONDS:
            path.unlink(missing_ok=True)
    return entries

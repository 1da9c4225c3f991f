"""Compiled kernels on disk, by content: what a kernel compiles to is a pure function of its key.

A file is named by a hash of everything its code depends on: the target's kind and caps, the
kernel's digest, poot's version and what the device says of its emitter. It is an entry of `entry_folder.py`, whose
payload has three fields of a length (u32, little-endian) and its bytes: name, code and entry point. Anything else
(truncated, altered, foreign, of another key) is no entry: it is compiled again and written over.
Nothing is unpickled or run.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import metadata, util
from pathlib import Path

from poot_executor.compile.target import Target
from poot_executor.device import Compiled
from poot_executor.entry_folder import MAX_BYTES, EntryFolder, canonical, open_entry, seal_entry

MAGIC = b"POOTKRN1"
SUFFIX = ".kernel"


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
        self._folder = EntryFolder(folder, MAGIC, SUFFIX, max_bytes)
        self._context = f"{metadata.version('poot-executor')}\n{emitter}"
        self._hits = self._misses = 0

    def get(self, target: Target, digest: bytes, make: Callable[[], Compiled]) -> Compiled:
        """A kernel's code, by digest: from disk, else from `make`, whose errors pass."""
        found = self.find(target, digest)
        if found is not None:
            return found
        compiled = make()
        self.keep(target, digest, compiled)
        return compiled

    def find(self, target: Target, digest: bytes) -> Compiled | None:
        """A kernel's code, by digest, from disk; None where it has to be made, and then kept."""
        payload = self._folder.read(cache_key(target, digest, self._context))
        if payload is not None:
            found = _unpack(payload)
            if found is not None:
                self._hits += 1
                return found
            self._folder.reject()
        self._misses += 1
        return None

    def keep(self, target: Target, digest: bytes, compiled: Compiled) -> None:
        """Write what was made."""
        self._folder.write(cache_key(target, digest, self._context), _pack(compiled))

    def stats(self) -> CacheStats:
        """The counts since this cache was made."""
        kept = self._folder.stats()
        return CacheStats(self._hits, self._misses, kept.rejected, kept.written, kept.evicted, kept.warning)


def cache_key(target: Target, digest: bytes, context: str) -> bytes:
    """32 bytes that name what a kernel of that digest compiles to on that target."""
    return hash_parts(context.encode(), *target_parts(target), digest)


def target_parts(target: Target) -> tuple[bytes, bytes]:
    """A target's kind and caps, as bytes that are equal for equal targets."""
    caps = "\n".join(f"{f.name}={canonical(getattr(target.caps, f.name))}" for f in fields(target.caps))
    return target.kind.encode(), caps.encode()


def hash_parts(*parts: bytes) -> bytes:
    """SHA-256 over parts, each with its length."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(struct.pack("<Q", len(part)))
        hashed.update(part)
    return hashed.digest()


def encode_entry(key: bytes, compiled: Compiled) -> bytes:
    """The bytes of an entry's file."""
    return seal_entry(MAGIC, key, _pack(compiled))


def decode_entry(key: bytes, data: bytes) -> Compiled | None:
    """The entry in a file's bytes; None for what `encode_entry` did not write for `key`."""
    payload = open_entry(MAGIC, key, data)
    return None if payload is None else _unpack(payload)


def _pack(compiled: Compiled) -> bytes:
    parts = (compiled.name.encode(), compiled.code, compiled.entry.encode())
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def _unpack(payload: bytes) -> Compiled | None:
    parts: list[bytes] = []
    at = 0
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

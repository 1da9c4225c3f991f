"""The driver's pipeline cache on disk: what it compiled is found again by the next process.

A driver may trust what it is given, so it is given only what poot itself wrote: a file holds magic (8), SHA-256 of the
rest (32), the driver's data. It is named after device and driver. Anything else is no cache, and is written over.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

MAGIC = b"POOTVPC1"
MAX_BYTES = 64 << 20
_HEAD = len(MAGIC) + 32


class PipelineCache:
    """A file in `folder`, which is made when it is first needed; None keeps nothing. A file that cannot be read or
    written costs the cache and nothing else: `warning` says why.
    """

    def __init__(self, folder: Path | None, identity: str) -> None:
        self._path = None if folder is None else folder / f"vulkan-{identity}.pipelines"
        self._known = b""
        self.warning: str | None = None

    def read(self) -> bytes:
        """The driver's data; empty where there is none."""
        if self._path is None:
            return b""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return b""
        except OSError as error:
            self.warning = f"pipeline cache {self._path} cannot be read: {error}"
            return b""
        payload = data[_HEAD:]
        if len(data) > MAX_BYTES or data[:_HEAD] != MAGIC + hashlib.sha256(payload).digest():
            return b""
        self._known = payload
        return payload

    def write(self, payload: bytes) -> None:
        """Keep the driver's data, unless it is what was read: a reader sees the old file or the new one, whole."""
        if self._path is None or payload == self._known or len(payload) > MAX_BYTES - _HEAD:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, name = tempfile.mkstemp(prefix=".writing-", dir=self._path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(MAGIC + hashlib.sha256(payload).digest() + payload)
                Path(name).replace(self._path)
            except BaseException:
                with suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            self.warning = f"pipeline cache {self._path} cannot be written: {error}"

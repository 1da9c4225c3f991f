"""Where a kernel's arguments lie: addresses of its buffers in order, of the fault word where it has checks, then the
buffers' element counts.

There are no others: a kernel that asks for no size of its grid gets no hidden arguments from the compiler.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

ADDRESS, COUNT = struct.Struct("<Q"), struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Kernarg:
    """The layout for a number of buffers. Offsets and sizes in bytes."""

    buffers: int
    checks: bool

    @property
    def fault(self) -> int:
        """The offset of the fault word's address, where there is one."""
        return 8 * self.buffers

    @property
    def counts(self) -> int:
        """The offset of the first element count."""
        return 8 * (self.buffers + self.checks)

    @property
    def nbytes(self) -> int:
        """Bytes of all arguments."""
        return self.counts + 4 * self.buffers

    def pack(self, addresses: Sequence[int], counts: Sequence[int], fault: int | None) -> bytes:
        """The bytes of a dispatch's arguments. `fault` is the fault word's address: exactly where the kernel checks.

        Raises ValueError where something is missing or surplus.
        """
        if (len(addresses), len(counts), fault is not None) != (self.buffers, self.buffers, self.checks):
            raise ValueError(f"{len(addresses)} addresses and {len(counts)} counts for {self}")
        words = [ADDRESS.pack(address) for address in (*addresses, *(() if fault is None else (fault,)))]
        return b"".join([*words, *(COUNT.pack(count) for count in counts)])

"""Code objects without code: the ELF file that a loader accepts, for executors that know a kernel by its content.

The layout is the one of LLVM's AMDGPU back end: a shared object for the HSA, a symbol `NAME.kd` of 64 bytes for each
kernel, whose descriptor states segment sizes in its first words.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_HEADER_BYTES, _PROGRAM_BYTES, _SECTION_BYTES, _SYMBOL_BYTES = 64, 56, 64, 24
_DESCRIPTOR_BYTES = 64
_MACHINE_AMDGPU, _OSABI_HSA, _ABI_VERSION = 224, 64, 3
_SHARED_OBJECT, _LOAD, _STRINGS, _DYNAMIC_SYMBOLS = 3, 1, 3, 11


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a kernel descriptor states: its entry's name and its segments in bytes."""

    entry: str
    kernarg_bytes: int
    group_bytes: int = 0
    private_bytes: int = 0


def code_object(kernel: Descriptor, machine: int, note: bytes = b"") -> bytes:
    """The file of one kernel for a machine (EF_AMDGPU_MACH). `note` lies in it, unread, so that contents differ."""
    names = b"\0" + f"{kernel.entry}.kd".encode() + b"\0"
    descriptor = struct.pack("<III52x", kernel.group_bytes, kernel.private_bytes, kernel.kernarg_bytes)
    start = _HEADER_BYTES + _PROGRAM_BYTES
    place = -(-start // 64) * 64
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    symbols += struct.pack("<IBBHQQ", 1, 0x11, 3, 1, place, _DESCRIPTOR_BYTES)
    body = descriptor + symbols + names + note
    at_symbols, at_names = place + _DESCRIPTOR_BYTES, place + _DESCRIPTOR_BYTES + len(symbols)
    sections_at = -(-(place + len(body)) // 8) * 8
    identity = b"\x7fELF" + bytes([2, 1, 1, _OSABI_HSA, _ABI_VERSION]) + bytes(7)
    header = identity + struct.pack(
        "<HHIQQQIHHHHHH", _SHARED_OBJECT, _MACHINE_AMDGPU, 1, 0, _HEADER_BYTES, sections_at, machine, _HEADER_BYTES,
        _PROGRAM_BYTES, 1, _SECTION_BYTES, 3, 0,
    )  # fmt: skip
    nbytes = place + len(body)
    segment = struct.pack("<IIQQQQQQ", _LOAD, 4, 0, 0, 0, nbytes, nbytes, 4096)
    sections = [
        (0, 0, 0, 0, 0),
        (_DYNAMIC_SYMBOLS, at_symbols, len(symbols), 2, _SYMBOL_BYTES),
        (_STRINGS, at_names, len(names), 0, 0),
    ]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, type, 0, offset, offset, size, link, 0, 8, entry)
        for type, offset, size, link, entry in sections
    )
    file = (header + segment).ljust(place, b"\0") + body
    return file.ljust(sections_at, b"\0") + table

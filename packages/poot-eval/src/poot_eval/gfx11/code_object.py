"""Code objects: the ELF file that a compiler writes for an AMD GPU, and each kernel's descriptor in it.

Of the file this reads the loadable segments and the dynamic symbols; of a kernel the 64 bytes of
its descriptor (code object versions 3 to 5), which say how its first registers are filled.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from poot_eval.gfx11.faults import CodeObjectError

_MACHINE_AMDGPU = 224
_OS_HSA = 64
_SEGMENT_LOAD = 1
_SECTION_SYMBOLS = 11
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DESCRIPTOR = struct.Struct("<IIIIq20sIIIHH4s")

ARCHITECTURES: Mapping[int, str] = {
    0x41: "gfx1100",
    0x46: "gfx1101",
    0x47: "gfx1102",
    0x44: "gfx1103",
    0x43: "gfx1150",
    0x4A: "gfx1151",
}
"""The low byte of the header's flags, for each architecture whose instructions are interpreted."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a kernel's descriptor says. Sizes are in bytes; addresses are within the code object.

    `private` is per work-item. `user_registers` counts the scalar registers that the packet
    processor fills before the group's ids. `inputs` names those that are filled, in order.
    """

    name: str
    address: int
    entry: int
    lds: int
    private: int
    kernarg: int
    vector_registers: int
    user_registers: int
    inputs: tuple[str, ...]
    group_ids: tuple[bool, bool, bool]
    group_info: bool
    item_ids: int
    wave: int
    mode: int
    """Bits of the MODE register: rounding in 0-3, denormals in 4-7, clamping of NaN in 8, IEEE in 9."""


@dataclass(frozen=True, slots=True)
class CodeObject:
    """A code object as it lies in memory: `image` starts at its address 0."""

    architecture: str
    image: bytes
    kernels: Mapping[str, Descriptor]

    def kernel(self, name: str) -> Descriptor:
        """Raises CodeObjectError for a name that it does not hold."""
        if name not in self.kernels:
            raise CodeObjectError(f"no kernel {name!r} in the code object, which has {', '.join(sorted(self.kernels))}")
        return self.kernels[name]


def read_code_object(blob: bytes) -> CodeObject:
    """Read a linked code object. Raises CodeObjectError for what is none, or of another architecture."""
    try:
        return _read(blob)
    except struct.error as error:
        raise CodeObjectError(f"a truncated code object: {error}") from error


def _read(blob: bytes) -> CodeObject:
    header = _HEADER.unpack_from(blob)
    ident, machine, segments_at, sections_at, flags = header[0], header[2], header[5], header[6], header[7]
    segment_count, section_count = header[10], header[12]
    if ident[:4] != b"\x7fELF" or ident[7] != _OS_HSA or machine != _MACHINE_AMDGPU:
        raise CodeObjectError("not a code object for an AMD GPU under HSA")
    architecture = ARCHITECTURES.get(flags & 0xFF)
    if architecture is None:
        raise CodeObjectError(f"a code object whose architecture number is {flags & 0xFF:#x}: only gfx11 is known")
    image = bytearray()
    for i in range(segment_count):
        kind, _, offset, address, _, stored, size, _ = _SEGMENT.unpack_from(blob, segments_at + i * _SEGMENT.size)
        if kind != _SEGMENT_LOAD:
            continue
        if offset + stored > len(blob):
            raise CodeObjectError("a truncated code object: a segment ends past the file")
        image.extend(bytes(max(0, address + size - len(image))))
        image[address : address + stored] = blob[offset : offset + stored]
    symbols = _symbols(blob, sections_at, section_count)
    kernels = {
        name.removesuffix(".kd"): _descriptor(name.removesuffix(".kd"), image, address)
        for name, address in symbols.items()
        if name.endswith(".kd")
    }
    return CodeObject(architecture, bytes(image), kernels)


def _symbols(blob: bytes, sections_at: int, count: int) -> dict[str, int]:
    sections = [_SECTION.unpack_from(blob, sections_at + i * _SECTION.size) for i in range(count)]
    found: dict[str, int] = {}
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != _SECTION_SYMBOLS:
            continue
        strings = sections[link][4]
        for at in range(offset, offset + size, _SYMBOL.size):
            name_at, _, _, _, value, _ = _SYMBOL.unpack_from(blob, at)
            end = blob.index(b"\0", strings + name_at)
            found[blob[strings + name_at : end].decode()] = value
    return found


_INPUTS = (
    ("private_segment_buffer", 4), ("dispatch", 2), ("queue", 2), ("kernarg", 2), ("dispatch_id", 2),
    ("flat_scratch", 2), ("private_size", 1),
)  # fmt: skip
"""What each bit of the kernel code properties asks for, and how many scalar registers it takes."""

INPUT_WIDTHS: Mapping[str, int] = dict(_INPUTS)


def _descriptor(name: str, image: bytes | bytearray, address: int) -> Descriptor:
    lds, private, kernarg, _, entry, _, _, rsrc1, rsrc2, properties, _, _ = _DESCRIPTOR.unpack_from(image, address)
    wave = 32 if properties >> 10 & 1 else 64
    granule = 8 if wave == 32 else 4
    return Descriptor(
        name=name,
        address=address,
        entry=address + entry,
        lds=lds,
        private=private,
        kernarg=kernarg,
        vector_registers=((rsrc1 & 63) + 1) * granule,
        user_registers=rsrc2 >> 1 & 31,
        inputs=tuple(what for bit, (what, _) in enumerate(_INPUTS) if properties >> bit & 1),
        group_ids=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        group_info=bool(rsrc2 >> 10 & 1),
        item_ids=rsrc2 >> 11 & 3,
        wave=wave,
        mode=(rsrc1 >> 12 & 0xFF) | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9,
    )

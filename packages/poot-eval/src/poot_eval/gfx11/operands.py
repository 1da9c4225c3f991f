"""Operands of instructions: registers, inline constants and literals, with their sign and absolute-value modifiers."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

VCC, TTMP, NULL, M0, EXEC, SCC = 106, 108, 124, 125, 126, 253

_NAMED: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1), "m0": (M0, 1), "null": (NULL, 1),
        "exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1), "src_scc": (SCC, 1), "scc": (SCC, 1),
    }
)  # fmt: skip

LOCAL_APERTURE = 0x0001_0000_0000_0000
PRIVATE_APERTURE = 0x0002_0000_0000_0000
"""Where a flat address means the group's local memory, and the lane's private one: above every user address."""

_APERTURES: Mapping[str, int] = MappingProxyType(
    {
        "src_shared_base": LOCAL_APERTURE, "src_shared_limit": LOCAL_APERTURE | 0xFFFFFFFF,
        "src_private_base": PRIVATE_APERTURE, "src_private_limit": PRIVATE_APERTURE | 0xFFFFFFFF,
    }
)  # fmt: skip

_REGISTER = re.compile(r"(v|s|ttmp)(?:(\d+)|\[(\d+):(\d+)\]|\[(\d+)\])(?:\.([lh]))?$")


@dataclass(frozen=True, slots=True)
class Operand:
    """`kind` is "v" (vector register), "s" (scalar register, special ones by their number), "const" or "off".

    A constant is kept as it was written: what its bits are depends on the type that reads it.
    `high` says that the operand is the upper half of its register.
    """

    kind: str
    index: int = 0
    count: int = 1
    constant: int | float = 0
    neg: bool = False
    abs: bool = False
    high: bool = False

    def bits(self, dtype: str) -> int:
        """A constant's bits, as an operand of type `dtype`: f16, f32, f64, b16, b32 or b64."""
        value = self.constant
        width = int(dtype[1:])
        if isinstance(value, float):
            form = {"f64": "<d", "f16": "<e", "b16": "<e"}.get(dtype, "<f")
            return int.from_bytes(struct.pack(form, value), "little")
        # A literal of a 64-bit float is its upper half; small whole numbers are inline constants.
        if dtype == "f64" and not -16 <= value <= 64:
            return (value & 0xFFFFFFFF) << 32
        return value & ((1 << width) - 1)


def parse_operand(text: str) -> Operand:
    """Raises ValueError for text that is no operand."""
    neg = abs_ = False
    body = text
    if body.startswith("-") and not re.match(r"-(\d|\.)", body):
        neg, body = True, body[1:]
    elif body.startswith("neg(") and body.endswith(")"):
        neg, body = True, body[4:-1]
    if body.startswith("|") and body.endswith("|"):
        abs_, body = True, body[1:-1]
    if body == "off":
        return Operand("off")
    if body in _NAMED:
        index, count = _NAMED[body]
        return Operand("s", index, count, neg=neg, abs=abs_)
    if body in _APERTURES:
        return Operand("const", count=2, constant=_APERTURES[body])
    match = _REGISTER.match(body)
    if match:
        kind, single, low, high, alone, half = match.groups()
        first = int(single or low or alone)
        count = int(high) - first + 1 if high else 1
        if kind == "ttmp":
            kind, first = "s", first + TTMP
        return Operand(kind, first, count, neg=neg, abs=abs_, high=half == "h")
    if body.startswith("lit("):
        body = body[4:-1]
    constant = float(body) if re.match(r"-?\d*\.\d+|-?\d+e", body) else int(body, 0)
    return Operand("const", constant=constant, neg=neg, abs=abs_)

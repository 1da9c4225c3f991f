"""WGSL functions for what the language lacks: infinities and NaN as constants, and the high product. Elementary
functions and half conversions are routines of the kernel language.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

# A constant infinity is an error in WGSL: it is made from bits at run time.
_BITS = """\
fn poot_bits(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}"""

# The 64-bit product from four products of 16-bit halves; WGSL has no wide multiplication.
_MULHI = """\
fn poot_mulhi(a: u32, b: u32) -> u32 {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u);
}"""

ROUTINES: Mapping[str, str] = MappingProxyType({"poot_bits": _BITS, "poot_mulhi": _MULHI})
"""Every function by name."""


def routine_text(used: Iterable[str]) -> str:
    """The functions that `used` names, in the table's order."""
    wanted = set(used)
    return "\n\n".join(text for name, text in ROUTINES.items() if name in wanted)

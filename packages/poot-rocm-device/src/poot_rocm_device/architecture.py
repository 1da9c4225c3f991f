"""GPU generations that kernels are emitted for, as data."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from poot_executor.errors import Unsupported

GB = 10**9


@dataclass(frozen=True, slots=True)
class Architecture:
    """An AMD GPU by its compiler's name.

    `wave` lanes run as one. `mach` is the architecture's number in a code object's header (EF_AMDGPU_MACH, "User Guide
    for AMDGPU Backend" of LLVM). `units` are the compute units of a large GPU of this kind, or of one of its dies where
    each is a device of its own, and `bandwidth` is the peak of its memory in bytes a second, as its data sheet has it.
    `mixed_dot` says that the dot product of bytes takes the sign of each operand, `matrix`
    whose instructions multiply matrices (`fragment_text.FAMILIES`); None: none.
    """

    name: str
    wave: int
    mach: int
    units: int
    bandwidth: int
    mixed_dot: bool
    matrix: str | None = None


ARCHITECTURES = (
    Architecture("gfx90a", 64, 0x3F, 104, 1_600 * GB, mixed_dot=False, matrix="cdna2"),
    Architecture("gfx942", 64, 0x4C, 304, 5_300 * GB, mixed_dot=False, matrix="cdna3"),
    Architecture("gfx1030", 32, 0x36, 80, 512 * GB, mixed_dot=False),
    Architecture("gfx1100", 32, 0x41, 96, 960 * GB, mixed_dot=True, matrix="rdna3"),
    Architecture("gfx1151", 32, 0x4A, 40, 256 * GB, mixed_dot=True, matrix="rdna3"),
    Architecture("gfx1201", 32, 0x4E, 64, 640 * GB, mixed_dot=True, matrix="rdna4"),
)
"""Instinct MI200 and MI300, Radeon RX 6000, RX 7000, the GPU of Ryzen AI Max, RX 9000. The large ones are the MI250X,
of which a die is a device, MI300X, RX 6900 XT, RX 7900 XTX, Radeon 8060S and RX 9070 XT."""


def architecture_named(name: str) -> Architecture:
    """The architecture of a name, which may carry features after a colon as an agent's does ("gfx90a:sramecc+:xnack-").

    Raises Unsupported where there is none.
    """
    plain = name.split(":", maxsplit=1)[0]
    for architecture in ARCHITECTURES:
        if architecture.name == plain:
            return architecture
    raise Unsupported("rocm", f"{name} is none of {', '.join(a.name for a in ARCHITECTURES)}")


def architecture_of(features: Set[str]) -> Architecture:
    """The architecture that capabilities name. Raises Unsupported where they name none."""
    for architecture in ARCHITECTURES:
        if architecture.name in features:
            return architecture
    raise Unsupported("rocm", f"the capabilities name none of {', '.join(a.name for a in ARCHITECTURES)}")

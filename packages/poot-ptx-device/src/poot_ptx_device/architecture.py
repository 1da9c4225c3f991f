"""GPU generations that kernels are emitted for: what the PTX text declares, and which devices run it."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from poot_executor.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Architecture:
    """A PTX target: its name, the PTX version that knows it, and the least compute capability that runs it.

    `exact`: only that very capability runs it, as for targets with instructions of one generation.
    """

    name: str
    version: str
    capability: tuple[int, int]
    exact: bool = False

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a device of that compute capability runs code for this target."""
        return capability == self.capability if self.exact else capability >= self.capability

    @property
    def warpgroups(self) -> bool:
        """Whether warpgroups multiply from shared memory."""
        return self.exact and self.capability == (9, 0)

    @property
    def dependent_launch(self) -> bool:
        """Whether a kernel may start before the one it depends on has ended."""
        return self.capability >= (9, 0)


ARCHITECTURES = (
    Architecture("sm_80", "7.4", (8, 0)),
    Architecture("sm_90", "8.0", (9, 0)),
    Architecture("sm_90a", "8.0", (9, 0), exact=True),
    Architecture("sm_100", "8.6", (10, 0)),
)
"""From the least capable to the most. Versions are the least that have the target and what kernels use."""


def architecture_of(features: Set[str]) -> Architecture:
    """The architecture that capabilities name. Raises Unsupported where they name none."""
    for architecture in reversed(ARCHITECTURES):
        if architecture.name in features:
            return architecture
    raise Unsupported("ptx", f"the capabilities name none of {', '.join(a.name for a in ARCHITECTURES)}")


def warpgroup_architecture(capability: tuple[int, int]) -> Architecture | None:
    """The architecture of a device whose warpgroups multiply; None where it has none."""
    return next((a for a in ARCHITECTURES if a.warpgroups and a.runs_on(capability)), None)


def best_architecture(capability: tuple[int, int]) -> Architecture | None:
    """The most capable architecture that a device runs; None below compute capability 8.0."""
    return next((a for a in reversed(ARCHITECTURES) if not a.exact and a.runs_on(capability)), None)

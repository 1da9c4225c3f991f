"""What a program is compiled for, as data, so that compiling for absent hardware works and is tested."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.warpgroups import FEATURE, SHARED_BYTES


class Granularity(Enum):
    """KERNEL: the device runs kernels that poot plans. GRAPH: it takes whole graphs and plans them itself."""

    KERNEL = "kernel"
    GRAPH = "graph"


EXACT_ERRORS: Mapping[str, float] = MappingProxyType(
    {
        "div": 0.5,
        "sqrt": 0.5,
        "rsqrt": 1.0,
        "exp": 1.0,
        "log": 1.0,
        "sin": 1.0,
        "cos": 1.0,
        "tanh": 1.0,
        "erf": 1.0,
        "pow": 2.0,
        "fragment_mma": 0.5,
    }
)
"""Errors in units in the last place (ULP) of a target whose arithmetic is IEEE and whose library is good."""


JOINED_GROUPS = 512
"""What devices take as `joined_groups`: fewer than a large GPU runs at once, so that none waits for another."""

Pick = tuple[tuple[str, int], ...]
"""Tunables of one region by name, in the order of the names."""


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits, features and stated errors of a device. Sizes in bytes; None is unlimited or unknown.

    `features` names capabilities of the kernel operation table ("subgroup", "dot4") and of later ones. `subgroup_width`
    is set only where it is fixed. `tile_rows` is the number of weight rows interleaved in a device layout. `contracts`
    says that the target may by itself fuse a·b + c, leave out the rounding of a sum that feeds one, and multiply
    factors in another order; `flushes_denormals` that f32 denormals read or computed become zero. `errors` are ULP
    bounds of kernel operations ("fragment_mma": of the magnitudes summed, for each term); `operations` is the op set of
    a whole-graph device (empty: all). `group_threads` is the group size that schedules start from, `parallel_groups`
    how many groups keep the device busy, and `split_tiles` the fewest tiles of positions for which it pays that another
    group takes them; up to `whole_tiles` a single group takes all. `early_words` are the 32-bit words of keys and
    values that a lane of an attention may hold before the queries are there; 0: none. `position_lanes` lanes share a
    position of an attention of one row a group, which has as many times the threads. `joined_groups` is over how many
    groups small dispatches are launched as one; 0: each is launched alone. `few_programs` says that a program takes
    seconds to be made ready, and memory of its own for weights. `many_rows` activation rows and more are contracted in
    tiles that the threads of a group share; None: never. `fragments` are the products of opaque matrix fragments that a
    target with the feature "fragments" has. `pick` is the compiler's own: tunables that were measured for the region
    that is being scheduled.
    """

    granularity: Granularity = Granularity.KERNEL
    max_bindings: int = 16
    max_binding_bytes: int | None = None
    max_buffer_bytes: int | None = None
    max_groups: tuple[int, int, int] = (65535, 65535, 65535)
    max_group_size: int = 256
    max_shared_bytes: int = 16384
    offset_alignment: int = 256
    group_threads: int = 64
    parallel_groups: int = 1
    split_tiles: int = 1
    whole_tiles: int = 1
    early_words: int = 0
    position_lanes: int = 1
    joined_groups: int = 0
    tile_rows: int = 1
    subgroup_width: int | None = None
    features: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()
    traps: bool = False
    contracts: bool = False
    flushes_denormals: bool = False
    few_programs: bool = False
    errors: Mapping[str, float] = field(default_factory=lambda: EXACT_ERRORS, hash=False)
    many_rows: int | None = None
    fragments: tuple[FragmentShape, ...] = ()
    pick: Pick = ()

    @property
    def most_shared_bytes(self) -> int:
        """The most shared memory that any kernel has; schedules that do without warpgroups keep to `max_shared_bytes`,
        so that several groups share a multiprocessor."""
        return max(self.max_shared_bytes, SHARED_BYTES if FEATURE in self.features else 0)

    def picked(self, name: str) -> int | None:
        """A measured tunable of the region that is being scheduled; None where the heuristic decides."""
        return next((value for known, value in self.pick if known == name), None)


@dataclass(frozen=True, slots=True)
class Target:
    """A backend kind ("wgpu", "ptx") and what it can do."""

    kind: str
    caps: Caps

"""What an adapter can do, as data: limits from the library, features that it names, and errors of its arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

from poot_executor.compile.target import JOINED_GROUPS, Caps
from poot_executor.known_answers import DOT4, PACK_HALF, UNBOUNDED_LOOPS, UNPACK_HALF

WANTED = ("subgroup", "subgroup-barrier", "timestamp-query")
"""Library features that are asked for where the adapter has them."""

ALWAYS_TRIED = frozenset({DOT4, PACK_HALF, UNPACK_HALF, UNBOUNDED_LOOPS})
"""Features of kernels that every implementation of WGSL should have, and keeps where their known answers were right."""

_ROUTINES: Mapping[str, float] = MappingProxyType(
    {"exp": 2.0, "log": 1.5, "sin": 3.5, "cos": 3.5, "tanh": 2.0, "erf": 2.0, "pow": 2.0}
)
"""ULP of the routines where division and rounding are exact. Sine and cosine for |x| ≤ 100,000.
tests/test_accuracy.py holds them to it."""

LLVMPIPE_ERRORS: Mapping[str, float] = MappingProxyType({"div": 0.5, "sqrt": 0.5, "rsqrt": 1.5, **_ROUTINES})
"""ULP on Mesa's llvmpipe, the worst of 2^18 random arguments an operation over its range, against float64."""

WGSL_ERRORS: Mapping[str, float] = MappingProxyType(
    {"div": 2.5, "sqrt": 3.0, "rsqrt": 2.0, **{name: 2 * error for name, error in _ROUTINES.items()}}
)
"""ULP that WGSL allows (section "Floating point accuracy"); the routines divide, and so inherit some of it."""


GPU_THREADS = 256
"""A group's threads, that schedules start from: on an H200 the kernels take what they take through Vulkan, where more
than 64 pay."""

GPU_SPLIT_TILES = 2
"""Combining what groups of an attention gathered takes an H200 3 µs, what a tile of positions takes."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's facts. `processors` are the machine's CPUs, which a `software` adapter runs on; `subgroup_sizes` the
    least and the greatest width; `limits` are named in `adapters`."""

    name: str
    driver: str
    backend: str
    software: bool
    processors: int
    subgroup_sizes: tuple[int, int]
    features: frozenset[str]
    limits: Mapping[str, int]

    @property
    def is_llvmpipe(self) -> bool:
        """Mesa's driver for the CPU, whose arithmetic and limits are known."""
        return self.name.startswith("llvmpipe")


def caps_of(
    adapter: Adapter, features: Set[str], subgroup_width: int | None, *, flushes_denormals: bool = False
) -> Caps:
    """The caps of an adapter with those kernel features. `flushes_denormals` says that it was seen to."""
    limit = adapter.limits
    groups = limit["groups"]
    width = subgroup_width if "subgroup" in features else None
    return Caps(
        # One storage buffer is the fault word's.
        max_bindings=limit["bindings"] - 1,
        max_binding_bytes=limit["binding_bytes"] // 256 * 256,
        max_buffer_bytes=limit["buffer_bytes"] // 256 * 256,
        max_groups=(groups, groups, groups),
        max_group_size=min(limit["group_size"], limit["group_size_x"]),
        max_shared_bytes=limit["shared_bytes"],
        # 256: the largest value of this limit that WebGPU lets an adapter have, so that layouts are the same
        # everywhere.
        offset_alignment=max(256, limit["offset_alignment"]),
        group_threads=32 if adapter.is_llvmpipe else min(GPU_THREADS, limit["group_size"], limit["group_size_x"]),
        split_tiles=1 if adapter.software else GPU_SPLIT_TILES,
        joined_groups=JOINED_GROUPS,
        # WebGPU does not say how wide a GPU is: this many groups fill a large one.
        parallel_groups=adapter.processors if adapter.software else 256,
        # A CPU reads ahead where neighbouring lanes have rows of their own, and a reduction over lanes costs it much.
        # On a GPU the lanes of a subgroup share a row, as far as it has subgroups of one width.
        tile_rows=32 if adapter.software or width is None else 1,
        subgroup_width=width,
        # Fewer activation rows fit the registers of one thread. A CPU's barriers cost it more than tiles spare.
        many_rows=None if adapter.software else 9,
        features=frozenset(features),
        # naga asks for no exact arithmetic. Mesa's llvmpipe does not fuse, but simplifies (a + b) − a, factors
        # a·b + a·c, and multiplies the constants of a product first.
        contracts=True,
        # WGSL lets any implementation flush denormals; of llvmpipe what was seen holds: newer ones do.
        flushes_denormals=flushes_denormals or not adapter.is_llvmpipe,
        errors=LLVMPIPE_ERRORS if adapter.is_llvmpipe else WGSL_ERRORS,
    )

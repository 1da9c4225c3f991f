"""What a physical device can do, as poot's caps, with errors of its arithmetic."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType

from poot_executor.compile.target import JOINED_GROUPS, Caps
from poot_vulkan_device.adapter import Adapter, Kind

_ROUTINES: Mapping[str, float] = MappingProxyType(
    {"exp": 2.0, "log": 1.5, "sin": 3.5, "cos": 3.5, "tanh": 2.0, "erf": 2.0, "pow": 2.0}
)
"""ULP of the routines where division is exact. Sine and cosine for |x| ≤ 100,000."""

PRODUCT_ERROR = 0.5
"""ULP of the magnitudes summed that each term of a matrix product may cost: Vulkan states none, and this is what adding
one term after another would. tests/test_tiles.py holds devices to it."""

LLVMPIPE_ERRORS: Mapping[str, float] = MappingProxyType(
    {"div": 0.5, "sqrt": 0.5, "rsqrt": 1.5, "fragment_mma": PRODUCT_ERROR, **_ROUTINES}
)
"""ULP on Mesa's llvmpipe, the worst of 2^18 random arguments an operation over its range, against float64."""

VULKAN_ERRORS: Mapping[str, float] = MappingProxyType(
    {
        "div": 2.5,
        "sqrt": 4.5,
        "rsqrt": 2.0,
        "fragment_mma": PRODUCT_ERROR,
        **{name: 2 * error for name, error in _ROUTINES.items()},
    }
)
"""ULP that Vulkan allows ("Precision and Operation of SPIR-V Instructions"): a square root is 1 / inversesqrt. The
routines divide, and so inherit some of it."""

WATCHDOG_WORK = 4 << 30
"""Bytes moved by one submission to a device that may drive a display: well below a second on a slow one."""

GPU_THREADS = 128
"""A group's threads, that schedules start from: with 128 and 256 an H200 takes 1,001 and 1,044 µs for a step of a 1B
model in bf16, 828 and 850 in q4_0; before, with 64, 128 and 256, 1,101, 1,077 and 1,101 in bf16.
"""

GPU_SPLIT_TILES = 2
"""Combining what groups of an attention gathered takes an H200 3 µs, what a tile of positions takes."""

GPU_WHOLE_TILES = 4
"""So few one group walks alone: a second dispatch takes an H200 3 µs."""

NVIDIA = "10de-"
"""What the identity of a device of NVIDIA begins with: its PCI vendor."""

NVIDIA_EARLY_WORDS = 128
"""Of a lane's 255 registers there. Others have fewer, or compilers that would put them into memory: none was
measured."""

GPU_GROUPS = 256
"""Vulkan does not say how wide a GPU is: this many groups fill a large one."""

GPU_MANY_ROWS = 9
"""Activation rows from which on a GPU takes tiles of them: fewer fit the registers of one thread, which then reads a
weight once as well. On llvmpipe, whose barriers and shared memory are a CPU's, tiles take 1.2 to 14 times as long.
"""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What known answers say of f32: products and sums are fused or rearranged; fma rounds once; denormals are
    flushed.
    """

    contracts: bool = False
    fuses: bool = False
    flushes_denormals: bool = False


def caps_of(
    adapter: Adapter, features: Set[str], subgroup_width: int | None, arithmetic: Arithmetic | None = None
) -> Caps:
    """The caps of a device with those features and that arithmetic."""
    limits, arithmetic = adapter.limits, arithmetic or Arithmetic()
    width = subgroup_width if "subgroup" in features else None
    errors = LLVMPIPE_ERRORS if adapter.name.startswith("llvmpipe") else VULKAN_ERRORS
    return Caps(
        # One storage buffer is the fault word's.
        max_bindings=limits.bindings - 1,
        max_binding_bytes=limits.binding_bytes // 256 * 256,
        max_buffer_bytes=min(limits.allocation_bytes, max(adapter.heaps)) // 256 * 256,
        max_groups=limits.groups,
        max_group_size=limits.group_size,
        max_shared_bytes=limits.shared_bytes,
        # 256: the largest value that Vulkan lets this limit have, so that layouts are the same everywhere.
        offset_alignment=max(256, limits.offset_alignment),
        group_threads=32 if adapter.software else min(GPU_THREADS, limits.group_size),
        split_tiles=1 if adapter.software else GPU_SPLIT_TILES,
        whole_tiles=1 if adapter.software else GPU_WHOLE_TILES,
        early_words=NVIDIA_EARLY_WORDS if adapter.identity.startswith(NVIDIA) else 0,
        joined_groups=JOINED_GROUPS,
        parallel_groups=os.cpu_count() or 1 if adapter.software else GPU_GROUPS,
        # A CPU reads ahead where neighbouring lanes have rows of their own, and a reduction over lanes costs it much.
        # On a GPU the lanes of a subgroup share a row, as far as it has any.
        tile_rows=32 if adapter.software or width is None else 1,
        subgroup_width=width,
        many_rows=None if adapter.software else GPU_MANY_ROWS,
        features=frozenset(features),
        contracts=arithmetic.contracts,
        flushes_denormals=arithmetic.flushes_denormals,
        # An fma of two roundings is off by a unit of the product.
        errors=errors if arithmetic.fuses else MappingProxyType({**errors, "fma": 1.0}),
    )


def work_budget(adapter: Adapter) -> int | None:
    """The work of one submission; None where no watchdog ends a long one."""
    return WATCHDOG_WORK if adapter.kind in (Kind.INTEGRATED, Kind.DISCRETE) else None

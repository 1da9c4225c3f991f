"""What NVIDIA GPUs can do, as data."""

from __future__ import annotations

from collections.abc import Set

from poot_executor.compile.target import JOINED_GROUPS, Caps
from poot_executor.kernel.fused_routines import ERRORS
from poot_ptx_device.architecture import Architecture

DEPENDENT_LAUNCH = "dependent_launch"
"""The feature that kernels wait for the one before themselves, so that they may be launched while it still runs."""

EARLY_LOADS = "early_loads"
"""The feature that such a kernel loads its first weights before it waits, where it reads little."""

EARLY_LAUNCH = "early_launch"
"""The feature that such a kernel lets the one behind it start as soon as its own first weights are on their way."""

OPTIONS = frozenset({DEPENDENT_LAUNCH, EARLY_LOADS, EARLY_LAUNCH})
"""The options of a device that has dependent launch: those that were measured to pay. On an H200 the first won 5 % of a
small model's step and lost nothing on a large one; the second up to 20 % of a small bf16 contraction and lost up to 3 %
of a large one, which the emitter leaves alone; the third 11 to 13 % of a small model's step, 1 % of one of a billion
weights, and nothing on a large one.
"""

EARLY_BYTES = 48 << 20
"""Bytes that a kernel reads at most for its loads to come early; a weight is bound twice, so twice its bytes."""

GROUP_THREADS = 128
TILE_ROWS = 1
"""Rows of a weight lie one after the other: the lanes of a subgroup share a row."""

WARP = 32

PARALLEL_GROUPS = 256
"""About two for each multiprocessor of a large GPU. The same for all: equal kernels are equal code everywhere."""

SPLIT_TILES = 2
"""Combining what groups gathered takes an H200 1 µs, a tile of positions 3: of 15 tiles, two a group are faster than
four or eight by 6 to 80 % of a step."""

WHOLE_TILES = 4
"""So few are rarely all seen, and one group ends sooner than a second dispatch: by 4 % of a small model's step."""

EARLY_WORDS = 128
"""Of a thread's 255 registers. With them, and two dispatches fewer, a step of 135M took an H200 449 µs in place of 475.
Heads of 64 in f32 and of 128 in halves need as many, 154 to 166 registers in all."""

POSITION_LANES = 4
"""A lane that has a position alone reads its row of K eight bytes at a time, each subgroup 32 lines at once, and three
quarters of the lanes wait where few positions are seen. On an H200 one row took 380 µs in place of 405 (135M), 548 for
573 (0.5B) and 1,820 for 1,943 (8B in q4_0), and 512 for 581 at depth 2,000 (135M); with two lanes 380, 549, 1,826 and
588, with eight 410, 574, 1,846 and 527. Eight rows of 8B at depth 2,000, four a group, took 4,833 in place of 4,314.
"""


def caps_of(architecture: Architecture, *, options: Set[str] | None = None) -> Caps:
    """The caps of a device that runs an architecture's code.

    `options`, of DEPENDENT_LAUNCH, EARLY_LOADS, EARLY_LAUNCH and WARPGROUP, are what is chosen by measurement: unless
    said otherwise OPTIONS, where there is such a thing. WARPGROUP is of an architecture that has it, and of a device
    that gave its known answers.
    """
    if options is None:
        options = OPTIONS if architecture.dependent_launch else frozenset()
    return Caps(
        # Kernel parameters are 4 KB: a pointer and a count take 12 bytes.
        max_bindings=64,
        # Element indices are i32.
        max_binding_bytes=(1 << 33) - 256,
        max_buffer_bytes=None,
        max_groups=((1 << 31) - 1, 65535, 65535),
        max_group_size=1024,
        # What a kernel may declare as its own.
        max_shared_bytes=48 << 10,
        offset_alignment=256,
        group_threads=GROUP_THREADS,
        parallel_groups=PARALLEL_GROUPS,
        split_tiles=SPLIT_TILES,
        whole_tiles=WHOLE_TILES,
        early_words=EARLY_WORDS,
        position_lanes=POSITION_LANES,
        joined_groups=JOINED_GROUPS,
        tile_rows=TILE_ROWS,
        subgroup_width=WARP,
        features=frozenset({"subgroup", "dot4", "packed_half", "mma", architecture.name, *options}),
        traps=True,
        contracts=False,
        flushes_denormals=False,
        errors=ERRORS,
    )

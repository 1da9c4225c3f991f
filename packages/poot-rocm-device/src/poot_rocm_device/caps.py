"""What AMD GPUs can do, as data. None of it was measured: no AMD GPU has run this."""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.compile.target import JOINED_GROUPS, Caps
from poot_executor.kernel.fragments import FEATURE, FragmentShape
from poot_executor.kernel.fused_routines import ERRORS
from poot_executor.known_answers import UNBOUNDED_LOOPS
from poot_rocm_device.architecture import Architecture
from poot_rocm_device.fragment_text import shapes_of
from poot_rocm_device.schedules import SCHEDULES


def products(architecture: Architecture) -> tuple[FragmentShape, ...]:
    """The products of matrices that an architecture has instructions for. No bound of their roundings is documented."""
    return () if architecture.matrix is None else shapes_of(architecture.matrix)


def caps_of(architecture: Architecture, *, fragments: Sequence[FragmentShape] = ()) -> Caps:
    """The caps of a device of an architecture.

    `fragments` are those of its `products` that the device has: it takes them once their known answers were right,
    since how lanes hold a matrix was read and never seen.
    """
    shapes, schedule = tuple(fragments), SCHEDULES[architecture.name]
    return Caps(
        # A kernel's arguments are 4 KB at most; a buffer has 12 bytes of them.
        max_bindings=64,
        # Offsets of elements are 32 bits of bytes: one register beside a base address that all lanes share.
        max_binding_bytes=(1 << 32) - 256,
        max_buffer_bytes=None,
        # A packet counts work-items in 32 bits.
        max_groups=((1 << 22) - 1, 65535, 65535),
        max_group_size=1024,
        max_shared_bytes=64 << 10,
        offset_alignment=256,
        group_threads=schedule.group_threads,
        parallel_groups=schedule.groups_per_unit * architecture.units,
        split_tiles=schedule.split_tiles,
        joined_groups=JOINED_GROUPS,
        # Rows of a weight lie one after the other: the lanes of a wave share a row.
        tile_rows=1,
        subgroup_width=architecture.wave,
        many_rows=schedule.many_rows,
        features=frozenset({"subgroup", "dot4", UNBOUNDED_LOOPS, architecture.name, *({FEATURE} if shapes else ())}),
        fragments=shapes,
        traps=True,
        contracts=False,
        flushes_denormals=False,
        errors=ERRORS,
    )

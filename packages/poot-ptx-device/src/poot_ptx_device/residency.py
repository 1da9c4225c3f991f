"""How many groups of a kernel a multiprocessor is asked to hold, which bounds the registers of a thread.

A kernel that reads memory once is as fast as bytes are on their way, which groups that are not there yet do not ask
for. The assembler does not know the grid: alone it takes the registers that its schedule likes, so that the last
groups of a grid begin when the first have ended.
"""

from __future__ import annotations

from math import prod

from poot_executor.kernel.ir import Kernel

MULTIPROCESSORS = 128
"""Of a large GPU, as in PARALLEL_GROUPS: equal kernels are equal code everywhere."""

REGISTERS, THREADS = 65536, 2048
"""Of a multiprocessor, on every architecture since sm_70 but those of small GPUs, which hold fewer threads."""

GROUPS_LEAST, GROUPS_MOST = 3, 32
"""With fewer groups the assembler's own choice leaves room for all; more a multiprocessor does not have."""

LEAST_REGISTERS = 64
"""Of a thread: fragments of four-bit weights, which need 64 to 72, would lie in memory with fewer."""


def bounds(kernel: Kernel) -> list[str]:
    """The directive that asks for room for all groups at once, where the kernel is to be resident and that leaves a
    thread LEAST_REGISTERS; else nothing."""
    if not kernel.resident or kernel.groups is None:
        return []
    each = -(-prod(kernel.groups) // MULTIPROCESSORS)
    threads = each * kernel.group_size
    fits = GROUPS_LEAST <= each <= GROUPS_MOST and threads <= THREADS and REGISTERS // threads >= LEAST_REGISTERS
    return [f".minnctapersm {each}"] if fits else []

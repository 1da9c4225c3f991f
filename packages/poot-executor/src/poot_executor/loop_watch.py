"""Loops that a device may end early, silently: which kernels have to notice, for emitters that stage faults.

Where the rounds of a kernel are not known to stay below what the device allows, its emitter notes each loop that ends
although its condition still holds, and the kernel faults with code `CUT_SHORT`.
"""

from __future__ import annotations

from poot_executor.compile.target import Caps
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel.loop_rounds import loop_rounds
from poot_executor.known_answers import LOOP_LIMIT, UNBOUNDED_LOOPS

CUT_SHORT = 0
"""The fault code of a loop that the device ended early; a kernel's own checks have codes from 1."""


def watches_loops(kernel: Kernel, caps: Caps) -> bool:
    """Whether the kernel has to find out if the device ends a loop early."""
    if UNBOUNDED_LOOPS in caps.features:
        return False
    rounds = loop_rounds(kernel)
    return rounds is None or rounds >= LOOP_LIMIT


def binds_fault(kernel: Kernel, caps: Caps) -> bool:
    """Whether the kernel has the fault word as one more binding."""
    return kernel.checks or watches_loops(kernel, caps)

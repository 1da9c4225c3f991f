"""A kernel's PTX: the one function that the rest of the package calls."""

from __future__ import annotations

from poot_executor.compile.target import Caps
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_limits import check_limits
from poot_ptx_device import emit_arithmetic, emit_control, emit_fragments, emit_memory, emit_subgroup, emit_warpgroups
from poot_ptx_device.emitter import Emitter, Guards
from poot_ptx_device.rules import RULES

RULE_MODULES = (emit_arithmetic, emit_memory, emit_subgroup, emit_fragments, emit_warpgroups, emit_control)
"""What fills the table; importing them does."""


def emit(kernel: Kernel, caps: Caps, guards: Guards = Guards.ALL) -> str:
    """The PTX of a kernel. Raises Unsupported naming the operation and its types."""
    check_limits("ptx", kernel, caps)
    return Emitter(kernel, caps, RULES, guards).text()

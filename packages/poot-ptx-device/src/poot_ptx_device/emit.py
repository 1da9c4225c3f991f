"""A kernel's PTX: the one function that the rest of the package calls."""

from __future__ import annotations

from poot_executor.compile.target import Caps
from poot_executor.errors import Unsupported
from poot_executor.kernel.ir import Kernel
from poot_ptx_device import emit_arithmetic, emit_control, emit_fragments, emit_memory, emit_subgroup, emit_warpgroups
from poot_ptx_device.emitter import Emitter, Guards
from poot_ptx_device.rules import RULES

RULE_MODULES = (emit_arithmetic, emit_memory, emit_subgroup, emit_fragments, emit_warpgroups, emit_control)
"""What fills the table; importing them does."""


def emit(kernel: Kernel, caps: Caps, guards: Guards = Guards.ALL) -> str:
    """The PTX of a kernel. Raises Unsupported naming the operation and its types."""
    shared = sum(4 * array.count for array in kernel.shared)
    for what, has, most in (
        ("threads a group", kernel.group_size, caps.max_group_size),
        ("buffers", len(kernel.params), caps.max_bindings),
        ("bytes of shared memory", shared, caps.most_shared_bytes),
    ):
        if has > most:
            raise Unsupported(f"ptx: kernel {kernel.name}", f"{has:,} {what}, the device has {most:,}")
    return Emitter(kernel, caps, RULES, guards).text()

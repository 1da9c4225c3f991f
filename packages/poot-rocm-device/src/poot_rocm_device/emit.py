"""A kernel's HIP text: the one function that the rest of the package calls."""

from __future__ import annotations

from poot_executor.compile.target import Caps
from poot_executor.errors import Unsupported
from poot_executor.kernel.ir import Kernel
from poot_rocm_device import emit_arithmetic, emit_control, emit_memory, emit_subgroup
from poot_rocm_device.emitter import Emitter
from poot_rocm_device.rules import RULES

RULE_MODULES = (emit_arithmetic, emit_memory, emit_subgroup, emit_control)
"""What fills the table; importing them does."""


def emit(kernel: Kernel, caps: Caps) -> str:
    """The HIP text of a kernel. Raises Unsupported naming the operation and its types."""
    shared = sum(4 * array.count for array in kernel.shared)
    for what, has, most in (
        ("threads a group", kernel.group_size, caps.max_group_size),
        ("buffers", len(kernel.params), caps.max_bindings),
        ("bytes of shared memory", shared, caps.max_shared_bytes),
    ):
        if has > most:
            raise Unsupported(f"rocm: kernel {kernel.name}", f"{has:,} {what}, the device has {most:,}")
    return Emitter(kernel, caps, RULES).text()

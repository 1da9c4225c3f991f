"""Limits of a target that a kernel by itself may exceed."""

from __future__ import annotations

from poot_executor.compile.target import Caps
from poot_executor.errors import Unsupported
from poot_executor.kernel.ir import Kernel


def check_limits(target: str, kernel: Kernel, caps: Caps) -> None:
    """Raise Unsupported where a kernel has more threads a group, buffers or shared memory than the target."""
    shared = sum(4 * array.count for array in kernel.shared)
    for what, has, most in (
        ("threads a group", kernel.group_size, caps.max_group_size),
        ("buffers", len(kernel.params), caps.max_bindings),
        ("bytes of shared memory", shared, caps.most_shared_bytes),
    ):
        if has > most:
            raise Unsupported(f"{target}: kernel {kernel.name}", f"{has:,} {what}, the device has {most:,}")

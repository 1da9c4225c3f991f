"""Kernels' HIP text: what the rest of the package calls."""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.compile.target import Caps
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_limits import check_limits
from poot_rocm_device import emit_arithmetic, emit_control, emit_fragments, emit_memory, emit_subgroup
from poot_rocm_device.architecture import architecture_of
from poot_rocm_device.emitter import Emitter
from poot_rocm_device.fragment_text import fragment_text
from poot_rocm_device.prelude import prelude
from poot_rocm_device.routine_text import routine_text
from poot_rocm_device.rules import RULES

RULE_MODULES = (emit_arithmetic, emit_memory, emit_subgroup, emit_fragments, emit_control)
"""What fills the table; importing them does."""


def emit(kernel: Kernel, caps: Caps) -> str:
    """The HIP text of a kernel. Raises Unsupported naming the operation and its types."""
    return emit_module((kernel,), caps)


def emit_module(kernels: Sequence[Kernel], caps: Caps) -> str:
    """Kernels of different contents as one text. Raises Unsupported as `emit` does."""
    architecture = architecture_of(caps.features)
    emitters = [_checked(kernel, caps) for kernel in kernels]
    bodies = [emitter.text() for emitter in emitters]
    routines = sorted(set[str]().union(*(emitter.routines for emitter in emitters)))
    parts = [
        f"// {', '.join(kernel.name for kernel in kernels)} for {architecture.name}\n",
        prelude(architecture.wave, mixed_dot=architecture.mixed_dot),
        *(routine_text(name) for name in routines),
        *(
            [fragment_text(architecture.matrix)]
            if architecture.matrix and any(e.uses_fragments for e in emitters)
            else []
        ),
        *bodies,
    ]
    return "".join(parts)


def _checked(kernel: Kernel, caps: Caps) -> Emitter:
    check_limits("rocm", kernel, caps)
    return Emitter(kernel, caps, RULES)

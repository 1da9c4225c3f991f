"""Kernels on the device: a shader module and its pipeline, made once for each kernel content."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.device import Compiled
from poot_executor.kernel.ir import Access, Kernel
from poot_wgpu_device.errors import WgpuError
from poot_wgpu_device.native import Handle, Native


@dataclass(frozen=True, slots=True, eq=False)
class WgpuKernel:
    """A kernel that can be dispatched. `faults`: it binds the fault word after its parameters.

    `read_only` says for each parameter whether the kernel only reads it.
    """

    name: str
    identity: int
    faults: bool
    read_only: tuple[bool, ...]
    layout: Handle
    pipeline: Handle


def load_kernel(native: Native, kernel: Kernel, compiled: Compiled, *, faults: bool) -> WgpuKernel:
    """Make the pipeline. Raises WgpuError with what the library says."""
    # Only `while` may run for ever; the library's iteration limit costs a counter in every loop.
    bounded = not any(op.kind == "while" for op in kernel.body.walk())
    module = native.create_module(compiled.code, bounded_loops=bounded)
    try:
        native.check(f"shader module of kernel {kernel.name}")
    except WgpuError:
        native.release_module(module)
        raise
    read_only = tuple(param.access is Access.READ for param in kernel.params)
    layout = native.create_group_layout([*read_only, False] if faults else read_only)
    pipeline = native.create_pipeline(module, layout, compiled.entry)
    native.release_module(module)
    loaded = WgpuKernel(kernel.name, kernel.identity, faults, read_only, layout, pipeline)
    try:
        native.check(f"pipeline of kernel {kernel.name}")
    except WgpuError:
        release_kernel(native, loaded)
        raise
    return loaded


def release_kernel(native: Native, kernel: WgpuKernel) -> None:
    """Give a kernel's objects back."""
    native.release_pipeline(kernel.pipeline)
    native.release_group_layout(kernel.layout)

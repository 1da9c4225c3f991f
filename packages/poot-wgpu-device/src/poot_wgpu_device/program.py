"""Kernels on the device: a shader module and its pipeline, made once for each kernel content."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.device import Compiled
from poot_executor.kernel.ir import Access, Kernel
from poot_wgpu_device.native import Handle, Native


@dataclass(frozen=True, slots=True, eq=False)
class WgpuKernel:
    """A kernel that can be dispatched. `checks`: it binds the fault word after its parameters."""

    name: str
    identity: int
    checks: bool
    params: int
    layout: Handle
    pipeline: Handle


def load_kernel(native: Native, kernel: Kernel, compiled: Compiled) -> WgpuKernel:
    """Make the pipeline. The caller checks for errors; on one the handles are invalid objects of the library, not null."""
    # Only `while` may run for ever; the library's iteration limit costs a counter in every loop.
    bounded = not any(op.kind == "while" for op in kernel.body.walk())
    module = native.create_module(compiled.code, bounded_loops=bounded)
    native.check(f"shader module of kernel {kernel.name}")
    read_only = [param.access is Access.READ for param in kernel.params] + [False] * kernel.checks
    layout = native.create_group_layout(read_only)
    pipeline = native.create_pipeline(module, layout, compiled.entry)
    native.release_module(module)
    native.check(f"pipeline of kernel {kernel.name}")
    return WgpuKernel(kernel.name, kernel.identity, kernel.checks, len(kernel.params), layout, pipeline)


def release_kernel(native: Native, kernel: WgpuKernel) -> None:
    """Give a kernel's objects back."""
    native.release_pipeline(kernel.pipeline)
    native.release_group_layout(kernel.layout)

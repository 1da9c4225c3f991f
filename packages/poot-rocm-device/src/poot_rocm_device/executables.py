"""Kernels on the GPU: a code object loaded as an executable, and what its descriptor states."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from poot_executor.device import Compiled
from poot_executor.errors import DeviceError
from poot_executor.kernel.ir import Kernel, Param
from poot_rocm_device.agents import Gpu
from poot_rocm_device.hsa import Hsa
from poot_rocm_device.hsa_types import SymbolInfo
from poot_rocm_device.kernarg import Kernarg


@dataclass(frozen=True, slots=True, eq=False)
class RocmKernel:
    """A kernel that can be dispatched, over `groups` at most and with `buffers` of at least the counts that they state:
    its code relies on both.

    `written` are the places of the buffers that it may change, `atomic` those of the ones that it changes with atomic
    operations. `object` is the address of its descriptor, `group_bytes` and `private_bytes` what that asks for
    a group and a work-item.
    """

    name: str
    identity: int
    buffers: tuple[Param, ...]
    written: frozenset[int]
    atomic: frozenset[int]
    groups: tuple[int, int, int] | None
    threads: int
    kernarg: Kernarg
    executable: int
    object: int
    group_bytes: int
    private_bytes: int


def load(hsa: Hsa, gpu: Gpu, kernel: Kernel, compiled: Compiled) -> RocmKernel:
    """Load a code object. Raises HsaError where the runtime refuses it, DeviceError where it takes other arguments."""
    executable = hsa.load(gpu.agent, compiled.code)
    try:
        symbol = hsa.symbol(executable, gpu.agent, f"{compiled.entry}.kd")
        kernarg = Kernarg(len(kernel.params), kernel.checks)
        stated = hsa.symbol_number(symbol, SymbolInfo.KERNARG_SEGMENT_SIZE)
        _check_arguments(kernel.name, kernarg.nbytes, stated)
        return RocmKernel(
            kernel.name,
            kernel.identity,
            kernel.params,
            _buffers(kernel, {"store", "atomic", "fragment_store"}),
            _buffers(kernel, {"atomic"}),
            kernel.groups,
            kernel.group_size,
            kernarg,
            executable,
            hsa.symbol_number(symbol, SymbolInfo.KERNEL_OBJECT),
            hsa.symbol_number(symbol, SymbolInfo.GROUP_SEGMENT_SIZE),
            hsa.symbol_number(symbol, SymbolInfo.PRIVATE_SEGMENT_SIZE),
        )
    except BaseException:
        hsa.unload(executable)
        raise


def _check_arguments(name: str, given: int, stated: int) -> None:
    # Compilers may round the size up to whole addresses.
    if not given <= stated < given + 8:
        raise DeviceError(
            f"kernel {name}: its code takes {stated} bytes of arguments, poot gives {given}: it was made by another"
            " version; remove it from the compile cache"
        )


def _buffers(kernel: Kernel, operations: Set[str]) -> frozenset[int]:
    """The places of the buffers that these operations name."""
    return frozenset(op.attrs["buffer"] for op in kernel.body.walk() if op.kind in operations and "buffer" in op.attrs)

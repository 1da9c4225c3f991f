"""Kernels on the device: PTX assembled once for each content and driver, its machine code kept on disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from poot_executor.cache import CompileCache
from poot_executor.compile.target import Target
from poot_executor.device import Compiled
from poot_executor.kernel.ir import Kernel, Param
from poot_ptx_device.addresses import dynamic_bytes
from poot_ptx_device.native import Gpu, Handle, Native


@dataclass(frozen=True, slots=True, eq=False)
class PtxKernel:
    """A kernel that can be dispatched, over `groups` at most and with `buffers` of at least the counts that they state:
    its code relies on both.

    `faults`: the fault word's address is its last parameter. `shared`: bytes that a launch gives it.
    """

    name: str
    identity: int
    faults: bool
    buffers: tuple[Param, ...]
    groups: tuple[int, int, int] | None
    threads: int
    shared: int
    module: Handle
    function: Handle


class Loader:
    """Makes handles of compiled kernels. `cache` keeps machine code of one driver version and GPU."""

    def __init__(self, native: Native, target: Target, cache: CompileCache) -> None:
        self._native = native
        self._target = Target(f"{target.kind} machine code", target.caps)
        self._cache = cache

    def of(self, target: Target) -> Loader:
        """The same for another target."""
        return Loader(self._native, target, self._cache)

    def find(self, compiled: Compiled) -> Compiled | None:
        """Machine code from disk; None where it has to be assembled, and then kept."""
        return self._cache.find(self._target, _digest(compiled))

    def keep(self, compiled: Compiled, code: Compiled) -> None:
        """Write what was assembled."""
        self._cache.keep(self._target, _digest(compiled), code)

    def assemble(self, compiled: Compiled) -> Compiled:
        """Machine code for the context that is current in this thread; nothing else of the loader's is used. Raises
        CudaError with the assembler's messages."""
        return Compiled(compiled.name, self._native.assemble(compiled.code, compiled.name), compiled.entry)

    def load(self, kernel: Kernel, compiled: Compiled, code: Compiled) -> PtxKernel:
        """Bring machine code to the device."""
        module = self._native.load_module(code.code)
        try:
            function = self._native.function(module, compiled.entry)
            shared = dynamic_bytes(kernel)
            if shared:
                self._native.allow_shared(function, shared)
        except BaseException:
            self._native.unload_module(module)
            raise
        launch = (kernel.checks, kernel.params, kernel.groups, kernel.group_size, shared)
        return PtxKernel(kernel.name, kernel.identity, *launch, module, function)

    def unload(self, kernel: PtxKernel) -> None:
        """Give a kernel's module back."""
        self._native.unload_module(kernel.module)


def _digest(compiled: Compiled) -> bytes:
    return hashlib.sha256(compiled.code).digest()


def machine_code_context(gpu: Gpu, driver_version: int) -> str:
    """What machine code depends on besides its PTX."""
    return f"compute capability {gpu.capability[0]}.{gpu.capability[1]}, driver {driver_version}"

"""Kernels under the simulated runtime as their HIP text, compiled for this processor: what is emitted runs, not what it
was emitted from.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import Any

from poot_eval.hip_host.library import HostKernel, Outcome, build, entry_of
from poot_eval.hsa import Descriptor, FakeRuntime, Launch, code_object
from poot_eval.hsa.runtime import ERROR, EXCEPTION, SUCCESS
from poot_executor.compile.target import Target
from poot_executor.device import Compiled
from poot_executor.kernel.ir import Kernel
from poot_executor.settings import DeviceSettings
from poot_rocm_device.agents import gpus
from poot_rocm_device.architecture import architecture_named, architecture_of
from poot_rocm_device.caps import products
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.emit import emit
from poot_rocm_device.kernarg import Kernarg
from poot_rocm_device.opening import open_gpu
from poot_rocm_device.runtime import Runtime

STATUSES = {Outcome.DONE: SUCCESS, Outcome.TRAPPED: EXCEPTION}


class Hosting:
    """A compiler of code objects that stand for a shared library each, and the executor that runs those. Libraries are
    made in a folder, by content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._libraries: dict[bytes, tuple[HostKernel, int]] = {}

    identity = "hosting"

    def __call__(self, kernel: Kernel, target: Target) -> Compiled:
        """Emit, compile for this processor, and name the result by what was emitted."""
        text = emit(kernel, target.caps)
        entry, digest = entry_of(text), hashlib.sha256(text.encode()).digest()
        folder = self._folder / digest.hex()
        folder.mkdir(exist_ok=True)
        kernarg = Kernarg(len(kernel.params), kernel.checks)
        shared = sum(-(-4 * array.count // 16) * 16 for array in kernel.shared)
        machine = architecture_of(target.caps.features).mach
        code = code_object(Descriptor(entry, kernarg.nbytes, shared), machine, digest)
        if code not in self._libraries:
            self._libraries[code] = HostKernel(build(text, entry, folder)), kernarg.nbytes
        return Compiled(kernel.name, code, entry)

    def alias(self, code: bytes, other: bytes) -> None:
        """Let a code object stand for what another one does."""
        self._libraries[code] = self._libraries[other]

    def execute(self, launch: Launch) -> int:
        """Run a dispatch; anything but its end or a trap is a fault of the text."""
        library, nbytes = self._libraries[launch.code_object]
        outcome = library.run(ctypes.string_at(launch.kernarg, nbytes), launch.groups, launch.group_size[0])
        return STATUSES.get(outcome, ERROR)


def open_hosting(
    fake: FakeRuntime,
    runtime: Runtime,
    kernels: Hosting,
    *,
    packets: int = 256,
    fragments: bool = False,
    **settings: Any,
) -> RocmDevice:
    """A device whose kernels run on this processor, with matrix fragments or without."""
    fake.execute(kernels.execute)
    (gpu,) = gpus(runtime.hsa)
    chosen = DeviceSettings(**{"timeout": 60.0, **settings})
    shapes = products(architecture_named(gpu.name)) if fragments else ()
    return open_gpu(runtime, gpu, kernels, chosen, packets=packets, fragments=shapes)

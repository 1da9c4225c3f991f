"""Kernels under the simulated runtime without machine code: the interpreter of kernel IR as its executor.

Code objects say by content which kernel they stand for, so everything below the compiler is the device's own.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import Any

import numpy as np

from poot_eval.hsa import Descriptor, FakeRuntime, Launch, code_object
from poot_eval.hsa.runtime import EXCEPTION, SUCCESS
from poot_eval.kernel_ir import run_kernel
from poot_executor.compile.target import Target
from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Compiled, Dispatch
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.settings import DeviceSettings
from poot_rocm_device.agents import gpus
from poot_rocm_device.architecture import architecture_of
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.kernarg import Kernarg
from poot_rocm_device.opening import open_gpu
from poot_rocm_device.runtime import Runtime

ENTRY = "poot_kernel"
N = 64


class Interpreting:
    """A compiler of code objects without code, and the executor that knows what they stand for."""

    def __init__(self) -> None:
        self.kernels: dict[bytes, Kernel] = {}
        self.launched: list[str] = []

    identity = "interpreting"

    def __call__(self, kernel: Kernel, target: Target) -> Compiled:
        """The content is the kernel's digest and no more."""
        kernarg = Kernarg(len(kernel.params), kernel.checks)
        shared = sum(4 * array.count for array in kernel.shared)
        code = code_object(
            Descriptor(ENTRY, kernarg.nbytes, shared), architecture_of(target.caps.features).mach, kernel.digest()
        )
        self.kernels[code] = kernel
        return Compiled(kernel.name, code, ENTRY)

    def execute(self, launch: Launch) -> int:
        """Interpret a dispatch over the memory that its arguments name."""
        kernel = self.kernels[launch.code_object]
        self.launched.append(kernel.name)
        kernarg = Kernarg(len(kernel.params), kernel.checks)
        arguments = ctypes.string_at(launch.kernarg, kernarg.nbytes)
        addresses = np.frombuffer(arguments, np.uint64, kernarg.buffers).tolist()
        counts = np.frombuffer(arguments, np.uint32, kernarg.buffers, kernarg.counts).tolist()
        buffers = [
            np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address)).view(param.dtype.numpy)
            for param, address, count in zip(kernel.params, addresses, counts, strict=True)
        ]
        faults = run_kernel(kernel, buffers, launch.groups, subgroup_width=32, counts=counts)
        for fault in faults:
            if hasattr(fault, "code"):
                word = int.from_bytes(arguments[kernarg.fault : kernarg.fault + 8], "little")
                ctypes.c_uint32.from_address(word).value = kernel.identity << 8 | fault.code
                return EXCEPTION
        return SUCCESS


def open_interpreting(
    fake: FakeRuntime, runtime: Runtime, interpreting: Interpreting, *, packets: int = 64, **settings: Any
) -> RocmDevice:
    """A device whose kernels are interpreted."""
    fake.execute(interpreting.execute)
    (gpu,) = gpus(runtime.hsa)
    return open_gpu(runtime, gpu, interpreting, DeviceSettings(**{"timeout": 60.0, **settings}), packets=packets)


def checked(name: str = "checked", code: int = 17) -> Kernel:
    """y[i] = x[i], with a check that it is a place of the buffer."""
    b = KernelBuilder(name, N)
    x, y = b.buffer("x", DType.I32, Access.READ), b.buffer("y", DType.I32, Access.READ_WRITE)
    i = b.thread_id()
    b.check((x[i] >= 0) & (x[i] < N), code)
    y[i] = x[i]
    return b.finish()


def tripled() -> Kernel:
    """y[i] = 3 · x[i] + 1."""
    b = KernelBuilder("tripled", N)
    x, y = b.buffer("x", DType.I32, Access.READ_WRITE), b.buffer("y", DType.I32, Access.READ_WRITE)
    i = b.thread_id()
    y[i] = x[i] * 3 + 1
    return b.finish()


def whole(buffer: Buffer) -> BufferSlice:
    """All of a buffer."""
    return BufferSlice(buffer, 0, buffer.nbytes)


class Step:
    """An input block, some intermediates, and an output block: x is checked, tripled, and tripled again."""

    def __init__(self, device: RocmDevice, kernel: Kernel | None = None) -> None:
        self.device = device
        self.x, self.y = device.allocate(BufferKind.INPUT, 4 * N), device.allocate(BufferKind.OUTPUT, 4 * N)
        self.between = [device.allocate(BufferKind.ARENA, 4 * N) for _ in range(2)]
        places = [self.x, *self.between, self.y]
        kernels = [kernel or checked(), tripled(), tripled()]
        self.dispatches = [
            Dispatch(device.loaded(k), tuple(BoundArg(whole(b), N) for b in pair), (1, 1, 1), 1)
            for k, pair in zip(kernels, pairwise(places), strict=True)
        ]
        self.recording = device.record(self.dispatches, whole(self.y))

    def submit(self, places: np.ndarray) -> None:
        """Write the input and replay."""
        self.device.write(self.x, places.astype(np.int32))
        self.device.replay(self.recording)

    def read(self) -> np.ndarray:
        """The output."""
        out = np.empty(N, np.int32)
        self.device.read(self.y, out)
        return out

    def run(self, places: np.ndarray) -> np.ndarray:
        """One whole step."""
        self.submit(places)
        self.device.synchronize()
        return self.read()

    def close(self) -> None:
        """Give everything back."""
        self.device.release(self.recording)
        for buffer in (self.x, self.y, *self.between):
            self.device.free(buffer)


def expected(places: np.ndarray) -> np.ndarray:
    """What a step makes of its input."""
    return 9 * places + 4

"""What a replay of a recorded step costs the host on `rocm`: slots written, packets published, outputs read.

It runs over the simulated HSA runtime, whose kernels do nothing, so the numbers are those of this processor and of
poot's own code; what AMD's library adds (three calls a step) is not in them. Needs a C compiler and libhsa-runtime-dev.

    python benchmarks/rocm_replay.py --packets 320
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from poot_eval.hsa import Descriptor, FakeRuntime, build_runtime, code_object
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

SLOT_BYTES, OUTPUT_BYTES = 64, 4096


class Empty:
    """A compiler of code objects without code."""

    identity = "empty"

    def __call__(self, kernel: Kernel, target: Target) -> Compiled:
        """The descriptor alone."""
        kernarg = Kernarg(len(kernel.params), kernel.checks)
        machine = architecture_of(target.caps.features).mach
        code = code_object(Descriptor("kernel", kernarg.nbytes), machine, kernel.digest())
        return Compiled(kernel.name, code, "kernel")


def touching() -> Kernel:
    """Reads one buffer and writes another one."""
    b = KernelBuilder("touching", 64)
    x, y = b.buffer("x", DType.U32, Access.READ_WRITE), b.buffer("y", DType.U32, Access.READ_WRITE)
    y[b.thread_id()] = x[b.thread_id()]
    return b.finish()


def whole(buffer: Buffer) -> BoundArg:
    """All of a buffer."""
    return BoundArg(BufferSlice(buffer, 0, buffer.nbytes), buffer.nbytes // 4)


def measure(fake: FakeRuntime, device: RocmDevice, packets: int, steps: int) -> dict[str, np.ndarray]:
    """Microseconds of each part of each step. The device is idle before a part begins, so that no wait is in it."""
    slots = device.allocate(BufferKind.INPUT, SLOT_BYTES)
    outputs = device.allocate(BufferKind.OUTPUT, OUTPUT_BYTES)
    between = device.allocate(BufferKind.ARENA, 4096)
    places = [slots, *[between] * (packets - 1), outputs]
    kernel = device.loaded(touching())
    dispatches = [Dispatch(kernel, (whole(x), whole(y)), (1, 1, 1), 1) for x, y in pairwise(places)]
    recording = device.record(dispatches, BufferSlice(outputs, 0, OUTPUT_BYTES))
    given, out = np.arange(SLOT_BYTES, dtype=np.uint8), np.empty(OUTPUT_BYTES, np.uint8)
    times = np.empty((steps, 4))
    for step in range(steps):
        done = fake.count("dispatches") + packets
        marks = [time.perf_counter()]
        device.write(slots, given)
        marks.append(time.perf_counter())
        device.replay(recording)
        marks.append(time.perf_counter())
        while fake.count("dispatches") < done:
            time.sleep(0)
        begin = time.perf_counter()
        device.synchronize()
        device.device_time()
        middle = time.perf_counter()
        device.read(outputs, out)
        end = time.perf_counter()
        times[step] = (marks[1] - marks[0], marks[2] - marks[1], middle - begin, end - middle)
    device.release(recording)
    micro = 1e6 * times[steps // 10 :]
    names = ("write the slots", "publish the packets", "take the step and its time", "read the outputs")
    return {**dict(zip(names, micro.T, strict=True)), "all of it": micro.sum(axis=1)}


def main() -> None:
    """Print the medians and 99th percentiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packets", type=int, default=320, help="dispatches of a step")
    parser.add_argument("--steps", type=int, default=5000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fake = build_runtime(Path(folder))
        fake.behave(guard=False)
        fake.execute_nothing()
        runtime = Runtime(str(fake.path))
        (gpu,) = gpus(runtime.hsa)
        with open_gpu(runtime, gpu, Empty(), DeviceSettings()) as device:
            print(f"{arguments.packets} packets a step, {arguments.steps} steps, microseconds")
            for name, times in measure(fake, device, arguments.packets, arguments.steps).items():
                print(f"{name:28} median {np.median(times):6.1f}   99 % below {np.percentile(times, 99):7.1f}")


if __name__ == "__main__":
    main()

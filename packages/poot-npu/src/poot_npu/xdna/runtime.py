"""XRT through its own Python module, pyxrt: the one place that names it, and where its errors become poot's.

pyxrt comes with XRT and is on no package index. ctypes is no way around it: contexts and run lists have no C interface.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from poot_executor.errors import DeviceLost, DeviceNotFound, DeviceTimeout, OutOfMemory
from poot_npu.xdna.kernels import Contraction, KernelSet

START = 3
"""The opcode that makes an NPU's controller run an instruction stream."""
FIXED = 3
"""Arguments before the buffers: the opcode, the instructions, their count."""
NEEDED = ("device", "xclbin", "hw_context", "kernel", "bo", "run", "runlist", "xclBOSyncDirection", "ert_cmd_state")


def load() -> Any:
    """The module pyxrt. Raises DeviceNotFound where it is absent, does not load, or is too old for NPUs."""
    try:
        module = importlib.import_module("pyxrt")
    except Exception as error:
        raise DeviceNotFound(
            f"pyxrt does not load ({type(error).__name__}: {error}): it comes with XRT and its plug-in for amdxdna, "
            "built for one version of Python"
        ) from error
    lacking = [name for name in NEEDED if not hasattr(module, name)]
    if lacking:
        raise DeviceNotFound(f"pyxrt is too old: it has no {', no '.join(lacking)}; XRT 2.19 has")
    return module


@dataclass(frozen=True, slots=True)
class Loaded:
    """A contraction ready to run: its kernel and its instructions on the device."""

    contraction: Contraction
    kernel: Any
    instructions: Any


class Runtime:
    """An opened NPU with a kernel set. Memory is not coherent: whatever either side writes is synchronized."""

    def __init__(self, xrt: Any, kernels: KernelSet) -> None:
        """Open the first NPU, register the xclbin, make a context. Raises DeviceNotFound."""
        self._xrt = xrt
        try:
            self._device = xrt.device(0)
            image = xrt.xclbin(str(kernels.xclbin))
            self._device.register_xclbin(image)
            self._context = xrt.hw_context(self._device, image.get_uuid())
        except RuntimeError as error:
            raise DeviceNotFound(f"the NPU did not open with {kernels.xclbin}: {error}") from error
        names = [kernel.get_name() for kernel in image.get_kernels()]
        self._loaded: dict[tuple[int, int, int], Loaded] = {}
        for contraction in kernels.contractions.values():
            # An xclbin may give a kernel's name an instance behind a colon.
            full = [name for name in names if name.partition(":")[0] == contraction.kernel]
            if not full:
                raise DeviceNotFound(
                    f"{kernels.xclbin} has no kernel {contraction.kernel!r}: it has {', '.join(names) or 'none'}"
                )
            self._loaded[contraction.shape] = self._load(contraction, full[0])

    def _load(self, contraction: Contraction, name: str) -> Loaded:
        try:
            kernel = self._xrt.kernel(self._context, name)
            nbytes = len(contraction.instructions)
            instructions = self._xrt.bo(self._device, nbytes, self._xrt.bo.cacheable, kernel.group_id(1))
            instructions.write(contraction.instructions, 0)
            instructions.sync(self._xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)
        except RuntimeError as error:
            raise DeviceNotFound(f"kernel {name!r} does not load: {error}") from error
        return Loaded(contraction, kernel, instructions)

    def covers(self, shape: tuple[int, int, int]) -> Loaded | None:
        """What computes a contraction of this shape; None where the set has nothing for it."""
        return self._loaded.get(shape)

    def buffer(self, loaded: Loaded, operand: str, nbytes: int) -> Any:
        """Memory for an operand of a contraction. Raises OutOfMemory."""
        place = FIXED + loaded.contraction.order.index(operand)
        try:
            return self._xrt.bo(self._device, nbytes, self._xrt.bo.host_only, loaded.kernel.group_id(place))
        except (RuntimeError, MemoryError):
            raise OutOfMemory(nbytes, None, None, operand) from None

    def put(self, buffer: Any, data: bytes) -> None:
        """Write a whole buffer, as the NPU sees it. Raises DeviceLost."""
        with _lost("a write to the NPU"):
            buffer.write(data, 0)
            buffer.sync(self._xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)

    def take(self, buffer: Any, nbytes: int) -> bytes:
        """A whole buffer, as the NPU has written it. Raises DeviceLost."""
        with _lost("a read from the NPU"):
            buffer.sync(self._xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE)
            return bytes(buffer.read(nbytes, 0))

    def record(self, calls: Sequence[tuple[Loaded, dict[str, Any]]]) -> tuple[Any, list[Any]]:
        """A run list over contractions and their buffers by operand, to be executed again and again; and its runs."""
        with _lost("recording a run list"):
            runlist, runs = self._xrt.runlist(self._context), []
            for loaded, buffers in calls:
                run = self._xrt.run(loaded.kernel)
                run.set_arg(0, START)
                run.set_arg(1, loaded.instructions)
                run.set_arg(2, loaded.contraction.count)
                for place, operand in enumerate(loaded.contraction.order):
                    run.set_arg(FIXED + place, buffers[operand])
                runlist.add(run)
                runs.append(run)
        return runlist, runs

    def execute(self, runlist: Any, runs: Sequence[Any], seconds: float) -> None:
        """Run all and wait. Raises DeviceTimeout or DeviceLost; the device is of no use afterwards."""
        with _lost("a run list"):
            runlist.execute()
            self._wait(runlist, seconds)
            states = [run.state() for run in runs]
        known = self._xrt.ert_cmd_state
        if all(state == known.ERT_CMD_STATE_COMPLETED for state in states):
            return
        waiting = {known.ERT_CMD_STATE_NEW, known.ERT_CMD_STATE_QUEUED, known.ERT_CMD_STATE_SUBMITTED}
        waiting.add(getattr(known, "ERT_CMD_STATE_RUNNING", known.ERT_CMD_STATE_SUBMITTED))
        bad = [state for state in states if state != known.ERT_CMD_STATE_COMPLETED]
        if bad[0] in waiting or bad[0] == known.ERT_CMD_STATE_TIMEOUT:
            raise DeviceTimeout("a run list of the NPU", seconds)
        raise DeviceLost(f"a run of the NPU ended as {getattr(bad[0], 'name', bad[0])}: open it again in a new process")

    @staticmethod
    def _wait(runlist: Any, seconds: float) -> None:
        """A bounded wait. What the bindings return differs and is not asked: the runs' states are.

        XRT's bindings take a duration and have no Python type for the result, which shows as a TypeError after the
        wait; its type stubs say milliseconds instead.
        """
        try:
            runlist.wait(timedelta(seconds=seconds))
        except TypeError as error:
            if "incompatible function arguments" in str(error):
                runlist.wait(max(1, round(seconds * 1000)))


@contextmanager
def _lost(what: str) -> Iterator[None]:
    """What XRT raises is a device that is lost: it says in words alone what happened."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceLost(f"{what} failed ({error}): open the NPU again in a new process") from error

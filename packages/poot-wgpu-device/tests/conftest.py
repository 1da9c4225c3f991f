"""A device for every test, skipped where there is no adapter and failed where POOT_REQUIRE_DEVICE asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Dispatch
from poot_executor.errors import DeviceNotFound
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.settings import DeviceSettings, read_settings
from poot_wgpu_device.device import WgpuDevice
from poot_wgpu_device.driver import WgpuDriver

Run = Callable[..., list[NDArray[Any]]]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` writes the emitter's golden files instead of comparing with them."""
    parser.addoption("--update-golden", action="store_true", help="write the WGSL golden files")


@pytest.fixture(scope="session")
def open_device() -> Callable[..., WgpuDevice]:
    """Opens further devices: `open_device(timeout=…)`."""

    def opened(**settings: Any) -> WgpuDevice:
        try:
            return WgpuDriver().open("", DeviceSettings(**{"timeout": 60.0, **settings}))
        except DeviceNotFound as error:
            if "wgpu" in read_settings().require_devices:
                raise
            pytest.skip(str(error))

    return opened


@pytest.fixture(scope="module")
def device(open_device: Callable[..., WgpuDevice]) -> Iterator[WgpuDevice]:
    with open_device() as opened:
        yield opened


def bind(buffer: Buffer, offset: int = 0, nbytes: int | None = None) -> BoundArg:
    """A whole buffer, or a slice of it, as an argument."""
    size = buffer.nbytes - offset if nbytes is None else nbytes
    return BoundArg(BufferSlice(buffer, offset, size), size // 4)


@pytest.fixture(name="bind")
def bind_fixture() -> Callable[..., BoundArg]:
    return bind


@pytest.fixture(scope="module")
def run(device: WgpuDevice) -> Run:
    """`run(kernel, arrays, groups)` dispatches a kernel once and gives the arrays that it leaves in its READ_WRITE
    buffers."""

    def ran(kernel: Kernel, arrays: Sequence[NDArray[Any]], groups: int | tuple[int, int, int]) -> list[NDArray[Any]]:
        grid = (groups, 1, 1) if isinstance(groups, int) else groups
        buffers = [device.allocate(BufferKind.ARENA, array.nbytes) for array in arrays]
        recording = None
        try:
            for buffer, array in zip(buffers, arrays, strict=True):
                device.write(buffer, array)
            recording = device.record([Dispatch(device.loaded(kernel), tuple(map(bind, buffers)), grid, 1)], None)
            device.replay(recording)
            device.synchronize()
            left = []
            for param, buffer, array in zip(kernel.params, buffers, arrays, strict=True):
                if param.access is Access.READ_WRITE:
                    out = np.empty_like(array)
                    device.read(buffer, out)
                    left.append(out)
            return left
        finally:
            if recording is not None:
                device.release(recording)
            for buffer in buffers:
                device.free(buffer)

    return ran

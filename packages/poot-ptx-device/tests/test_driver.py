"""Finding and choosing GPUs, over the simulated driver and over none."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from poot_executor.device import Found, Missing
from poot_executor.discover import installed
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_ptx_device import driver as driver_module
from poot_ptx_device.driver import PtxDriver, choose
from poot_ptx_device.native import Gpu, Native

GPUS = (Gpu(0, "NVIDIA H200", (9, 0), 1 << 37), Gpu(1, "NVIDIA A100-SXM4-80GB", (8, 0), 1 << 36))


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`over(driver)` lets the entry point find a simulated driver."""
    return lambda driver: monkeypatch.setattr(driver_module, "_native", lambda: Native(driver))


def test_the_entry_point_is_this_driver() -> None:
    assert installed()["ptx"].load() is PtxDriver


def test_importing_it_loads_no_driver() -> None:
    """Nor the bindings: `poot devices` imports every driver there is."""
    code = "import sys, poot_ptx_device.driver; sys.exit(any(name.startswith('cuda') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_on_macos_the_reason_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no cuda-bindings for it either, which its requirement's marker leaves out."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setitem(sys.modules, "cuda", None)
    (missing,) = PtxDriver().probe()
    assert isinstance(missing, Missing) and "macOS has no NVIDIA driver" in missing.reason
    with pytest.raises(DeviceNotFound, match="macOS has no NVIDIA driver"):
        PtxDriver().open("", DeviceSettings())


def test_without_a_driver_the_reason_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(_flags: int) -> None:
        raise RuntimeError("libcuda.so.1 was not found\nand more")

    from cuda.bindings import driver

    monkeypatch.setattr(driver, "cuInit", no_library)
    (missing,) = PtxDriver().probe()
    assert isinstance(missing, Missing)
    assert "libcuda.so.1 was not found" in missing.reason and "nvidia-smi" in missing.reason
    with pytest.raises(DeviceNotFound, match="libcuda"):
        PtxDriver().open("", DeviceSettings())


def test_without_the_bindings_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    (missing,) = PtxDriver().probe()
    assert isinstance(missing, Missing) and "cuda-bindings" in missing.reason


def test_a_gpu_is_described_and_opened(driver: Any, over: Any) -> None:
    over(driver)
    (found,) = PtxDriver().probe()
    assert found == Found("0", "Simulated GPU (compute 9.0, 0 GiB, CUDA 13.0)")
    with PtxDriver().open("simulated", DeviceSettings()) as device:
        caps = device.target.caps
        assert device.target.kind == "ptx" and "sm_90" in caps.features and caps.traps
    assert not driver.leaks


def test_a_gpu_that_is_too_old_is_missing(simulated: ModuleType, over: Any) -> None:
    over(simulated.SimulatedDriver((7, 5)))
    (missing,) = PtxDriver().probe()
    assert isinstance(missing, Missing) and "compute capability 7.5, the kernels need 8.0" in missing.reason
    with pytest.raises(DeviceNotFound, match=r"need 8\.0"):
        PtxDriver().open("", DeviceSettings())


def test_a_driver_that_does_not_answer(driver: Any, simulated: ModuleType, over: Any) -> None:
    over(driver)
    driver.fail("cuDeviceGetCount", simulated.ILLEGAL_ADDRESS)
    (missing,) = PtxDriver().probe()
    assert isinstance(missing, Missing) and "does not answer" in missing.reason


@pytest.mark.parametrize(("selector", "place"), [("", 0), ("0", 0), ("1", 1), ("h200", 0), ("A100", 1)])
def test_a_selector_is_a_number_or_a_part_of_the_name(selector: str, place: int) -> None:
    assert choose(GPUS, selector) == place


@pytest.mark.parametrize("selector", ["2", "B200", "-1"])
def test_a_selector_of_no_gpu_lists_what_there_is(selector: str) -> None:
    with pytest.raises(DeviceNotFound, match="it has 0: NVIDIA H200, 1: NVIDIA A100"):
        choose(GPUS, selector)
    with pytest.raises(DeviceNotFound, match="sees no GPU"):
        choose((), selector)


def test_results_name_the_call_and_keep_the_codes_apart(simulated: ModuleType) -> None:
    """A number that no table has is a lost device: it is not known to be harmless."""
    from poot_executor.errors import DeviceLost
    from poot_ptx_device.errors import CudaError
    from poot_ptx_device.results import OutOfDeviceMemory, error_of

    assert isinstance(error_of("cuMemAlloc", 2, "OUT", "no memory"), OutOfDeviceMemory)
    harmless = error_of("cuGraphInstantiate", 1, "CUDA_ERROR_INVALID_VALUE", "invalid")
    assert isinstance(harmless, CudaError) and (harmless.call, harmless.result) == (
        "cuGraphInstantiate",
        "CUDA_ERROR_INVALID_VALUE",
    )
    for code in (700, 715, 716, 719, 214, 999, 12345):
        assert isinstance(error_of("cuEventQuery", code, "CUDA_ERROR_X", "lost"), DeviceLost)
    api = SimpleNamespace(
        cuGetErrorName=lambda code: (1, b""), cuGetErrorString=lambda code: (0, b"words"), cuInit=lambda flags: (7777,)
    )
    with pytest.raises(DeviceLost, match=r"cuInit reported result 7777 \(words\)"):
        Native(api).initialize()

"""What is found, what is missing and why, and what a selector opens."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from poot_executor.device import Found, Missing
from poot_executor.discover import open_device
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_npu.vpu import driver as driver_module
from poot_npu.vpu.driver import VpuDriver, choose
from poot_npu.vpu.modes import Mode, modes
from poot_npu.vpu.runtime import NotUsable, load


def absent(_: str) -> str:
    raise PackageNotFoundError("openvino")


def test_importing_the_driver_loads_no_native_library():
    code = "import sys, poot_npu.vpu.driver; print('openvino' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_openvino_the_reason_says_how_to_get_it():
    with pytest.raises(NotUsable, match=r'not installed: pip install "poot-npu\[vpu\]"'):
        load(absent)


@pytest.mark.parametrize("version", ["2024.6.0", "2026.3.9", "1.0", "unknown"])
def test_an_openvino_too_old_is_named(version):
    with pytest.raises(NotUsable, match=rf"OpenVINO {version} is too old, 2026\.4"):
        load(lambda _: version)


@pytest.mark.parametrize("installed", [absent, lambda _: "2025.1.0"], ids=["absent", "old"])
def test_what_cannot_be_used_is_missing_and_does_not_open(monkeypatch, installed):
    monkeypatch.setattr(driver_module, "core", lambda: load(installed).Core())
    (entry,) = VpuDriver().probe()
    assert isinstance(entry, Missing) and "OpenVINO" in entry.reason
    with pytest.raises(DeviceNotFound, match="OpenVINO"):
        VpuDriver().open("cpu", DeviceSettings())


def test_the_cpu_is_found_in_both_modes_the_exact_one_first():
    found = [entry for entry in VpuDriver().probe() if isinstance(entry, Found)]
    cpu = [entry for entry in found if entry.selector.startswith("cpu")]
    assert [entry.selector for entry in cpu] == ["cpu", "cpu-fast"]
    assert "exact: float32" in cpu[0].description and "fast: activations in 8 or 16 bits" in cpu[1].description
    assert not any(entry.software for entry in cpu)


def test_modes_of_every_plug_in():
    offered = [mode.selector for mode in modes(["CPU", "GPU.0", "GPU.1", "GNA", "NPU"])]
    assert offered == ["npu", "gpu.0", "gpu.0-fast", "gpu.1", "gpu.1-fast", "cpu", "cpu-fast"]


def test_an_npu_that_is_not_there_is_an_error_that_lists_what_is():
    with pytest.raises(DeviceNotFound, match=r"no vpu:npu .*Core Ultra.*; there is vpu:cpu, vpu:cpu-fast"):
        choose(modes(["CPU"]), "npu")
    assert choose(modes(["CPU", "NPU"]), "").selector == "npu"
    assert choose(modes(["CPU"]), "CPU-Fast") == Mode("CPU", exact=False)


def test_a_device_asked_for_by_name_is_never_replaced():
    with pytest.raises(DeviceNotFound, match=r"vpu:gpu\.7.*there is .*vpu:cpu"):
        open_device("vpu:gpu.7", DeviceSettings())


def test_exact_and_fast_say_so_in_their_properties():
    exact, fast = Mode("CPU", exact=True), Mode("CPU", exact=False)
    for rows in (1, 128):
        properties = exact.properties(rows)
        assert (
            not properties["ENABLE_CPU_PINNING"]
            and properties["INFERENCE_PRECISION_HINT"] == "f32"
            and properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == 0
        )
        assert not exact.apart(rows)
    assert fast.properties(1)["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == 32 and fast.apart(1)
    assert "INFERENCE_PRECISION_HINT" not in fast.properties(128) and not fast.apart(128)
    # An NPU takes static shapes.
    assert exact.dynamic and not Mode("NPU", exact=False).dynamic

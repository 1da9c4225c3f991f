"""Finding and opening adapters."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_wgpu_device.caps import Adapter, caps_of
from poot_wgpu_device.driver import WgpuDriver, choose


def adapter(name: str, **changed: Any) -> Adapter:
    limits = {
        "bindings": 32,
        "binding_bytes": 1 << 27,
        "buffer_bytes": (1 << 31) - 1,
        "offset_alignment": 32,
        "shared_bytes": 32768,
        "group_size": 1024,
        "group_size_x": 512,
        "groups": 65535,
    }
    facts = {
        "name": name,
        "driver": "",
        "backend": "Vulkan",
        "software": False,
        "processors": 4,
        "subgroup_sizes": (32, 32),
        "features": frozenset(),
        "limits": limits,
    }
    return Adapter(**{**facts, **changed})


TWO = [adapter("NVIDIA H200"), adapter("llvmpipe (LLVM 15.0.6, 256 bits)")]


@pytest.mark.parametrize(("selector", "place"), [("", 0), ("0", 0), ("1", 1), ("LLVMpipe", 1), ("h200", 0)])
def test_selectors(selector: str, place: int) -> None:
    assert choose(TWO, selector) == place


@pytest.mark.parametrize("selector", ["2", "radeon"])
def test_an_unknown_selector_is_told_what_there_is(selector: str) -> None:
    with pytest.raises(DeviceNotFound, match=f"'{selector}'; it has 0: NVIDIA H200, 1: llvmpipe"):
        choose(TWO, selector)


def test_no_adapter_says_what_to_install() -> None:
    with pytest.raises(DeviceNotFound, match="apt-get install mesa-vulkan-drivers libvulkan1"):
        choose([], "")


def test_caps_follow_the_limits() -> None:
    caps = caps_of(TWO[0], {"subgroup", "dot4"}, 32)
    assert caps.max_bindings == 31
    assert caps.max_group_size == 512
    assert caps.max_buffer_bytes == (1 << 31) - 256
    assert caps.offset_alignment == 256
    assert caps.parallel_groups > caps_of(adapter("cpu", software=True), set(), None).parallel_groups == 4
    assert (caps.subgroup_width, caps.features) == (32, {"subgroup", "dot4"})
    assert caps_of(TWO[0], {"dot4"}, 32).subgroup_width is None
    assert caps.errors["div"] > caps_of(TWO[1], set(), None).errors["div"]


def test_the_entry_point_names_the_driver() -> None:
    (point,) = entry_points(group="poot.devices", name="wgpu")
    assert point.load() is WgpuDriver


PROBE = """
from poot_executor.device import Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_wgpu_device.driver import WgpuDriver
(missing,) = WgpuDriver().probe()
assert isinstance(missing, Missing), missing
print(missing.reason)
try:
    WgpuDriver().open("", DeviceSettings())
except DeviceNotFound as error:
    print(error)
"""


def run_without(tmp_path: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="the Vulkan loader's variables")
def test_a_machine_without_a_driver(tmp_path: Path) -> None:
    """The Vulkan loader is told of a driver that is not there: what a machine without Mesa has."""
    nowhere = str(tmp_path / "none.json")
    reason, error = run_without(tmp_path, VK_ICD_FILENAMES=nowhere, VK_DRIVER_FILES=nowhere)
    assert reason == error
    assert "apt-get install mesa-vulkan-drivers libvulkan1" in reason


def test_a_native_library_that_does_not_load(tmp_path: Path) -> None:
    broken = tmp_path / "libwgpu_native.so"
    broken.write_bytes(b"not a library")
    reason, error = run_without(tmp_path, WGPU_LIB_PATH=str(broken))
    assert reason == error
    assert "did not load" in reason


@pytest.mark.device("wgpu")
def test_probe_finds_what_open_opens(device: Any) -> None:
    found = WgpuDriver().probe()
    assert found
    assert not any(isinstance(each, Missing) for each in found)
    assert all(isinstance(each, Found) and "OpenGL" not in each.description for each in found)
    first = found[0]
    assert isinstance(first, Found)
    assert first.selector == "0"
    assert first.software == ("llvmpipe" in first.description)
    assert device.target.kind == "wgpu"

"""Finding and opening adapters."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from poot_executor.compile import compile
from poot_executor.compile.schedule import shares_rows
from poot_executor.compile.target import Target
from poot_executor.device import Found, Missing
from poot_executor.dtype import DType
from poot_executor.errors import DeviceNotFound
from poot_executor.formats import FORMATS
from poot_executor.graph.builder import Builder
from poot_executor.graph.functional import linear, stored_weight
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.weights import WeightKey
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


@pytest.mark.parametrize(
    ("facts", "features", "width", "rows"),
    [
        # The lanes of a GPU's subgroups share a row.
        ({"name": "NVIDIA H200"}, {"subgroup"}, 32, 1),
        ({"name": "AMD Radeon"}, {"subgroup"}, 64, 1),
        # Without subgroups of one width every lane has a row.
        ({"name": "Intel Arc", "subgroup_sizes": (8, 32)}, {"subgroup"}, None, 32),
        ({"name": "Apple M2", "backend": "Metal"}, set(), 32, 32),
        # A CPU reads ahead.
        ({"name": "llvmpipe (LLVM 15.0.6, 256 bits)", "software": True}, {"subgroup"}, 8, 32),
        ({"name": "WARP", "software": True}, set(), None, 32),
    ],
)
def test_layouts_and_schedules_follow_what_the_adapter_is(
    facts: dict[str, Any], features: set[str], width: int | None, rows: int
) -> None:
    caps = caps_of(adapter(**facts), features, width)
    assert caps.tile_rows == rows
    assert shares_rows(caps) == (rows == 1)
    assert caps.flushes_denormals == (not facts["name"].startswith("llvmpipe"))
    assert caps_of(adapter(**facts), features, width, flushes_denormals=True).flushes_denormals
    assert caps.group_threads == (32 if facts["name"].startswith("llvmpipe") else 256)


def test_a_1b_model_compiles_for_a_gpu_s_limits() -> None:
    """A head of 525 MB in bindings of 128 MiB: cut by rows, each part within what the adapter binds."""
    caps = caps_of(TWO[0], {"subgroup"}, 32)
    vocabulary, width, format = 128256, 2048, FORMATS["bf16"]
    b = Builder("head")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((1, width), DType.F32))
    b.output("y", linear(x, stored_weight(b, WeightKey(None, "head"), format, (vocabulary, width)), format))
    program = compile(b.build(), Target("wgpu", caps))
    parts = [command for command in program.dispatches if command.region == "contraction"]
    assert len(parts) >= 4
    for command in program.dispatches:
        assert all(arg.place.nbytes <= 1 << 27 for arg in command.args)
    (use,) = program.weights
    assert use.layout.nbytes == 2 * vocabulary * width


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

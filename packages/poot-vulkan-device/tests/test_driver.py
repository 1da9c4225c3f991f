"""Finding and opening devices, what they say of themselves, the driver's cache on disk."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from poot_executor.device import Found, Missing
from poot_executor.errors import DeviceNotFound
from poot_vulkan_device.adapter import Adapter, Kind, Limits, MemoryType
from poot_vulkan_device.caps import Arithmetic, caps_of, work_budget
from poot_vulkan_device.driver import VulkanDriver, choose
from poot_vulkan_device.pipeline_cache import MAGIC, PipelineCache

GPU = Adapter(
    name="NVIDIA H200",
    driver="580",
    kind=Kind.DISCRETE,
    version=(1, 3),
    features=frozenset({"robust", "subgroup"}),
    subgroup=(32, 32, 32),
    limits=Limits(1 << 20, (1 << 32) - 1, 1 << 32, 16, 49152, 1024, (2**31 - 1, 65535, 65535)),
    memory=(MemoryType(0, True, False, False),),
    heaps=(140 << 30,),
    queue=0,
    stamp_bits=64,
    stamp_period=1.0,
    identity="10de-2335-00",
)
CPU = dataclasses.replace(GPU, name="llvmpipe (LLVM 15.0.6, 256 bits)", kind=Kind.CPU)
FRAGILE = dataclasses.replace(GPU, name="llvmpipe of old", features=frozenset())
ALL = [GPU, FRAGILE, CPU]


@pytest.mark.parametrize(
    ("selector", "place"), [("", 0), ("0", 0), ("1", 1), ("LLVMpipe (", 2), ("h200", 0), ("llvmpipe", 2), ("old", 1)]
)
def test_selectors(selector: str, place: int) -> None:
    """A name finds the first device that can be used; one that cannot is opened, and refused, where it is the only
    one.
    """
    assert choose(ALL, selector) == place


@pytest.mark.parametrize("selector", ["3", "radeon"])
def test_an_unknown_selector_is_told_what_there_is(selector: str) -> None:
    with pytest.raises(DeviceNotFound, match=f"'{selector}'; it has 0: NVIDIA H200, 1: llvmpipe of old, 2: llvmpipe"):
        choose(ALL, selector)


def test_no_device_says_what_to_install() -> None:
    with pytest.raises(DeviceNotFound, match="apt-get install libvulkan1 mesa-vulkan-drivers"):
        choose([], "")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"features": frozenset()}, "no robust buffer access"),
        ({"version": (1, 0)}, r"has Vulkan 1\.0, poot needs 1\.1"),
        ({"queue": -1}, "no queue that computes"),
    ],
)
def test_devices_that_cannot_be_used(changed: dict[str, Any], reason: str) -> None:
    assert GPU.refusal is None
    refusal = dataclasses.replace(GPU, **changed).refusal
    assert refusal is not None
    with pytest.raises(DeviceNotFound, match=reason):
        raise DeviceNotFound(refusal)


def test_caps_follow_the_limits() -> None:
    caps = caps_of(GPU, {"subgroup", "dot4"}, 32)
    assert caps.max_bindings == (1 << 20) - 1
    assert caps.max_group_size == 1024
    assert caps.max_binding_bytes == (1 << 32) - 256
    assert caps.offset_alignment == 256
    assert caps.parallel_groups > caps_of(CPU, set(), None).parallel_groups
    assert (caps.subgroup_width, caps.features) == (32, {"subgroup", "dot4"})
    assert caps_of(GPU, {"dot4"}, 32).subgroup_width is None
    assert (caps.tile_rows, caps_of(GPU, {"dot4"}, 32).tile_rows, caps_of(CPU, {"subgroup"}, 8).tile_rows) == (
        1,
        32,
        32,
    )
    assert caps.errors["div"] > caps_of(CPU, set(), None).errors["div"]
    assert (caps.contracts, caps.flushes_denormals) == (False, False)
    assert caps_of(GPU, set(), None, Arithmetic(contracts=True, flushes_denormals=True)).contracts


def test_only_what_may_drive_a_display_has_a_budget() -> None:
    assert work_budget(GPU) is not None
    assert work_budget(dataclasses.replace(GPU, kind=Kind.INTEGRATED)) is not None
    assert work_budget(CPU) is None


def test_the_memory_of_a_cpu_is_the_machine_s() -> None:
    from poot_vulkan_device.instance import machine_heaps

    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine_heaps((1 << 20,)) == (machine,)
    assert machine_heaps((1 << 50,)) == (1 << 50,)


def test_the_entry_point_names_the_driver() -> None:
    (point,) = entry_points(group="poot.devices", name="vulkan")
    assert point.load() is VulkanDriver


PROBE = """
import importlib.abc, sys
from poot_executor.device import Missing
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_vulkan_device.driver import VulkanDriver
(missing,) = VulkanDriver().probe()
assert isinstance(missing, Missing), missing
print(missing.reason)
try:
    VulkanDriver().open("", DeviceSettings())
except DeviceNotFound as error:
    print(error)
"""


def run_without(tmp_path: Path, before: str = "", **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", before + PROBE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_machine_without_a_driver(tmp_path: Path) -> None:
    """The Vulkan loader is told of a driver that is not there: what a machine without Mesa has."""
    nowhere = str(tmp_path / "none.json")
    reason, error = run_without(tmp_path, VK_ICD_FILENAMES=nowhere, VK_DRIVER_FILES=nowhere)
    assert reason == error
    assert "apt-get install libvulkan1 mesa-vulkan-drivers" in reason


WITHOUT_LOADER = """
import cffi
real = cffi.FFI.dlopen
def dlopen(self, name, *flags):
    return real(self, "libvulkan-that-is-not-there.so" if name and "vulkan" in name else name, *flags)
cffi.FFI.dlopen = dlopen
import _cffi_backend
"""


def test_a_machine_without_the_loader(tmp_path: Path) -> None:
    """The bindings look for the loader by three names: none of them is found."""
    before = (
        "import ctypes, sys\n"
        "from vulkan._vulkancache import ffi\n"
        "class NoLoader:\n"
        "    def __getattr__(self, name): return getattr(ffi, name)\n"
        "    def dlopen(self, name): return ffi.dlopen(name + '.missing')\n"
        "import vulkan._vulkancache as cache\n"
        "cache.ffi = NoLoader()\n"
    )
    # The parent package loads the loader while it is imported, so its submodule is put there by itself.
    before = (
        "import importlib.util, sys, types\n"
        "spec = importlib.util.find_spec('vulkan')\n"
        "package = types.ModuleType('vulkan')\n"
        "package.__path__ = list(spec.submodule_search_locations)\n"
        "sys.modules['vulkan'] = package\n" + before + "del sys.modules['vulkan']\n"
    )
    reason, error = run_without(tmp_path, before)
    assert reason == error
    assert "the Vulkan loader did not load" in reason
    assert "apt-get install libvulkan1" in reason


@pytest.mark.device("vulkan")
def test_probe_finds_what_open_opens(device: Any) -> None:
    found = VulkanDriver().probe()
    assert found
    assert not any(isinstance(each, Missing) for each in found)
    first = found[0]
    assert isinstance(first, Found)
    assert first.selector == "0"
    assert first.software == ("llvmpipe" in first.description)
    assert device.target.kind == "vulkan"


# The driver's cache


def test_a_cache_is_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    cache = PipelineCache(folder, "id")
    assert cache.read() == b""
    cache.write(b"compiled")
    assert PipelineCache(folder, "id").read() == b"compiled"
    assert PipelineCache(folder, "other").read() == b""
    assert [path.name for path in folder.iterdir()] == ["vulkan-id.pipelines"]
    assert cache.warning is None


@pytest.mark.parametrize("damage", ["truncated", "altered", "foreign", "empty"])
def test_a_damaged_cache_is_none_and_is_written_over(tmp_path: Path, damage: str) -> None:
    PipelineCache(tmp_path, "id").write(b"compiled" * 100)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    damaged = {"truncated": data[:-1], "altered": data[:-1] + b"?", "foreign": b"PNG" + data, "empty": b""}[damage]
    path.write_bytes(damaged)
    cache = PipelineCache(tmp_path, "id")
    assert cache.read() == b""
    cache.write(b"compiled")
    assert PipelineCache(tmp_path, "id").read() == b"compiled"
    assert path.read_bytes().startswith(MAGIC)


def test_a_folder_that_is_none_costs_the_cache_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = PipelineCache(tmp_path / "file", "id")
    assert cache.read() == b""
    cache.write(b"compiled")
    assert cache.warning is not None
    assert "pipeline cache" in cache.warning
    nothing = PipelineCache(None, "id")
    nothing.write(b"compiled")
    assert nothing.read() == b""


@pytest.mark.device("vulkan")
def test_a_device_leaves_its_cache_and_opens_with_it(open_device: Any, tmp_path: Path) -> None:
    with open_device(cache=tmp_path) as device:
        first = device.target
    (path,) = tmp_path.glob("vulkan-*.pipelines")
    assert path.read_bytes().startswith(MAGIC)
    assert list(tmp_path.glob("*.kernel"))
    with open_device(cache=tmp_path) as device:
        assert device.target == first

"""Finding and choosing GPUs: over the simulated runtime, over AMD's own without hardware, and over none."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poot_eval.hsa import FakeRuntime, Launch
from poot_executor.compile.target import Target
from poot_executor.device import Compiled, Found, Missing
from poot_executor.discover import installed
from poot_executor.errors import DeviceNotFound
from poot_executor.kernel.fragments import FEATURE as FRAGMENTS
from poot_executor.kernel.ir import Kernel
from poot_executor.settings import DeviceSettings
from poot_rocm_device import driver as driver_module
from poot_rocm_device.agents import Gpu
from poot_rocm_device.architecture import architecture_named
from poot_rocm_device.caps import caps_of
from poot_rocm_device.compilers import CompilerRefused
from poot_rocm_device.driver import RocmDriver, choose, not_started
from poot_rocm_device.hsa import LIBRARY
from poot_rocm_device.hsa_types import Status
from poot_rocm_device.libraries import runtime_library
from poot_rocm_device.runtime import Runtime

GPUS = (
    Gpu(0, 1, "gfx1100", "AMD Radeon RX 7900 XTX", 96, 24 << 30, 131072),
    Gpu(1, 2, "gfx942", "AMD Instinct MI300X", 304, 192 << 30, 131072),
)


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRuntime], None]:
    """`over(fake)` lets the entry point find a simulated runtime."""

    def find(fake: FakeRuntime) -> None:
        monkeypatch.setattr("poot_rocm_device.libraries.runtime_library", lambda: str(fake.path))

    return find


def test_the_entry_point_is_this_driver() -> None:
    assert installed()["rocm"].load() is RocmDriver


def test_importing_it_loads_no_library() -> None:
    """`poot devices` imports every driver there is."""
    code = "import sys, poot_rocm_device.driver; sys.exit(bool({'poot_rocm_device.hsa', 'hip'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_another_system_has_no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    (missing,) = RocmDriver().probe()
    assert isinstance(missing, Missing) and "for Linux on x86-64" in missing.reason


def test_without_the_library_the_reason_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poot_rocm_device.libraries.runtime_library", lambda: "libhsa-runtime64-of-nobody.so.1")
    (missing,) = RocmDriver().probe()
    assert isinstance(missing, Missing)
    assert "libhsa-runtime64-of-nobody.so.1" in missing.reason and "ROCM_PATH" in missing.reason
    with pytest.raises(DeviceNotFound, match="did not load"):
        RocmDriver().open("", DeviceSettings())


def test_a_library_that_lacks_functions_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poot_rocm_device.libraries.runtime_library", lambda: "libc.so.6")
    (missing,) = RocmDriver().probe()
    assert isinstance(missing, Missing) and "too old" in missing.reason and "hsa_init" in missing.reason


def test_amds_own_library_without_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads, it has every function, and it does not begin; again and again."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        pytest.skip(f"there is no {LIBRARY}: apt-get install libhsa-runtime64-1")
    if Path("/dev/kfd").exists():
        pytest.skip("this machine has the kernel driver")
    monkeypatch.setattr("poot_rocm_device.libraries.runtime_library", lambda: LIBRARY)
    for _ in range(2):
        (missing,) = RocmDriver().probe()
        assert isinstance(missing, Missing)
        assert missing.reason.startswith("there is no /dev/kfd") and "status 0x1008" in missing.reason


def test_why_the_runtime_did_not_begin(tmp_path: Path) -> None:
    """No kernel driver, one that is not this user's, one that does not open, and one that does."""
    assert "--device=/dev/kfd" in not_started(tmp_path / "kfd")
    file = tmp_path / "there"
    file.touch()
    assert "rocminfo" in not_started(file)
    assert "does not open" in not_started(tmp_path)
    file.chmod(0)
    if not os.access(file, os.W_OK):
        assert "add the user to its group" in not_started(file)


def test_a_file_of_somebody_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a user that is not root sees it."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    assert "is not this user's to open: add the user to its group" in not_started(tmp_path)


def test_a_runtime_without_a_driver(fake: FakeRuntime, over: Callable[[FakeRuntime], None]) -> None:
    fake.absent(driver=True)
    over(fake)
    (missing,) = RocmDriver().probe()
    assert isinstance(missing, Missing) and "status 0x1008" in missing.reason


def test_a_runtime_without_a_gpu(fake: FakeRuntime, over: Callable[[FakeRuntime], None]) -> None:
    fake.absent(gpu=True)
    over(fake)
    assert RocmDriver().probe() == [Missing(driver_module.NO_GPU)]
    with pytest.raises(DeviceNotFound, match="ROCR_VISIBLE_DEVICES"):
        RocmDriver().open("", DeviceSettings())


def test_a_gpu_that_no_kernels_are_emitted_for(fake: FakeRuntime, over: Callable[[FakeRuntime], None]) -> None:
    fake.gpu("gfx906", 0x2F)
    over(fake)
    (missing,) = RocmDriver().probe()
    assert isinstance(missing, Missing)
    assert "Simulated Radeon cannot be used" in missing.reason and "gfx906 is none of gfx90a" in missing.reason
    with pytest.raises(DeviceNotFound, match="gfx906"):
        RocmDriver().open("", DeviceSettings())


def test_a_machine_without_a_compiler(
    fake: FakeRuntime, over: Callable[[FakeRuntime], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_architecture: object) -> None:
        raise CompilerRefused("not here")

    monkeypatch.setattr("poot_rocm_device.compilers.finders", lambda: (("clang", nothing),))
    over(fake)
    (missing,) = RocmDriver().probe()
    assert isinstance(missing, Missing)
    assert missing.reason.startswith("nothing compiles kernels for gfx1100 (clang: not here)")


@pytest.fixture(scope="module")
def kernels(hosting: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A compiler for this processor."""
    return hosting.Hosting(tmp_path_factory.mktemp("libraries"))


@pytest.mark.slow
def test_a_gpu_is_described_and_opened(
    fake: FakeRuntime, over: Callable[[FakeRuntime], None], monkeypatch: pytest.MonkeyPatch, kernels: Any
) -> None:
    """It has given the known answers of all that it states."""
    monkeypatch.setattr("poot_rocm_device.compilers.find_compiler", lambda _: kernels)
    fake.execute(kernels.execute)
    over(fake)
    assert RocmDriver().probe() == [Found("0", "Simulated Radeon (gfx1100, 48 compute units, 4 GiB)")]
    with RocmDriver().open("radeon", DeviceSettings()) as device:
        caps = device.target.caps
        assert device.target.kind == "rocm" and "gfx1100" in caps.features and caps.traps
        assert caps.fragments and FRAGMENTS in caps.features
        assert device.gpu.units == 48 and fake.count("dispatches") >= 7
    assert not any(fake.count(what) for what in ("allocations", "live signals", "queues"))


@pytest.mark.slow
@pytest.mark.parametrize("feature", ["subgroup", "dot4", "fused", "denormals", "contraction"])
def test_a_gpu_that_gives_a_wrong_answer_is_refused(
    fake: FakeRuntime,
    over: Callable[[FakeRuntime], None],
    monkeypatch: pytest.MonkeyPatch,
    kernels: Any,
    feature: str,
) -> None:
    """One bit of one answer is enough."""

    def execute(launch: Launch) -> int:
        status = kernels.execute(launch)
        if feature in launch.entry:
            (answer,) = struct.unpack_from("<8xQ", ctypes.string_at(launch.kernarg, 16))
            word = ctypes.c_uint32.from_address(answer + 4 * 40)
            word.value ^= 1
        return status

    monkeypatch.setattr("poot_rocm_device.compilers.find_compiler", lambda _: kernels)
    fake.execute(execute)
    over(fake)
    with pytest.raises(DeviceNotFound, match=rf"Simulated Radeon gave a wrong answer .*\({feature}: "):
        RocmDriver().open("", DeviceSettings())
    assert not any(fake.count(what) for what in ("allocations", "live signals", "queues"))


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "lost"), [("x16", False), ("x16", True), ("i8_to", False), ("i8_to", True)])
def test_matrix_fragments_that_are_wrong_are_switched_off(
    fake: FakeRuntime,
    over: Callable[[FakeRuntime], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kernels: Any,
    wrong: str,
    lost: bool,
) -> None:
    """By one bit of one product, or because the GPU has no such instruction: the device opens without that one."""

    def execute(launch: Launch) -> int:
        if wrong in launch.entry:
            if lost:
                return Status.ILLEGAL_INSTRUCTION
            status = kernels.execute(launch)
            (answer,) = struct.unpack_from("<8xQ", ctypes.string_at(launch.kernarg, 16))
            ctypes.c_uint32.from_address(answer).value ^= 1
            return status
        return kernels.execute(launch)

    monkeypatch.setattr("poot_rocm_device.compilers.find_compiler", lambda _: kernels)
    fake.execute(execute)
    over(fake)
    with RocmDriver().open("", DeviceSettings()) as device:
        caps = device.target.caps
        left = [] if wrong == "x16" else ["16x16x16 f16 to f32", "16x16x16 bf16 to f32"]
        assert [str(shape) for shape in caps.fragments] == left
        assert (FRAGMENTS in caps.features) is bool(left)
    assert len(caplog.records) == 3 - len(left)
    for record in caplog.records:
        assert re.match(r"rocm: matrix fragments 16x16x16 \w+ to \w+ are switched off", record.getMessage())
        assert ("illegal instruction" if lost else "are wrong") in record.getMessage()


@pytest.mark.slow
def test_a_gpu_whose_waves_are_of_another_width_is_refused(
    fake: FakeRuntime, over: Callable[[FakeRuntime], None], monkeypatch: pytest.MonkeyPatch, kernels: Any
) -> None:
    """Code of gfx1100's caps runs 32 lanes a wave; gfx942's caps state 64."""

    class Narrow:
        identity = "narrow"

        def __call__(self, kernel: Kernel, target: Target) -> Compiled:
            compiled = kernels(kernel, Target("rocm", caps_of(architecture_named("gfx1100"))))
            code = bytearray(compiled.code)
            code[48] = architecture_named("gfx942").mach
            kernels.alias(bytes(code), compiled.code)
            return Compiled(compiled.name, bytes(code), compiled.entry)

    monkeypatch.setattr("poot_rocm_device.compilers.find_compiler", lambda _: Narrow())
    fake.gpu("gfx942", 0x4C)
    fake.execute(kernels.execute)
    over(fake)
    with pytest.raises(DeviceNotFound, match="waves of 32 lanes, where 64 are documented"):
        RocmDriver().open("", DeviceSettings())


@pytest.mark.parametrize(
    ("selector", "place"), [("", 0), ("0", 0), ("1", 1), ("rx 7900", 0), ("mi300", 1), ("gfx942", 1)]
)
def test_a_selector_is_a_number_or_a_part_of_a_name(selector: str, place: int) -> None:
    assert choose(GPUS, selector) is GPUS[place]


@pytest.mark.parametrize("selector", ["2", "9070", "-1"])
def test_a_selector_of_no_gpu_lists_what_there_is(selector: str) -> None:
    with pytest.raises(DeviceNotFound, match=r"it has 0: AMD Radeon RX 7900 XTX \(gfx1100\), 1: AMD Instinct"):
        choose(GPUS, selector)


def test_where_the_library_is_looked_for(tmp_path: Path) -> None:
    """In the folder that the environment names, then in ROCm's own, then where the loader looks."""
    named, usual = tmp_path / "named", tmp_path / "usual"
    for root in (named, usual):
        (root / "lib").mkdir(parents=True)
    assert runtime_library({}, str(usual)) == LIBRARY
    (usual / "lib" / LIBRARY).touch()
    assert runtime_library({}, str(usual)) == str(usual / "lib" / LIBRARY)
    assert runtime_library({"ROCM_PATH": str(named)}, str(usual)) == str(usual / "lib" / LIBRARY)
    (named / "lib" / LIBRARY).touch()
    assert runtime_library({"ROCM_PATH": str(named)}, str(usual)) == str(named / "lib" / LIBRARY)


def test_another_handler_of_events_is_refused(fake: FakeRuntime) -> None:
    """Memory faults would be told to it alone, or end the process."""
    Runtime(str(fake.path))
    with pytest.raises(DeviceNotFound, match="a process of its own"):
        Runtime(str(fake.path))

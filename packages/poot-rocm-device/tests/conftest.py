"""Devices over a simulated HSA runtime, and child processes for what may end one."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poot_eval.hip_host.library import host_clang
from poot_eval.hsa import FakeRuntime, build_or_skip
from poot_eval.hsa.runtime import REQUIRED
from poot_executor.errors import Unsupported
from poot_executor.settings import read_settings
from poot_rocm_device.device import RocmDevice
from poot_rocm_device.runtime import Runtime

HERE = Path(__file__).parent


def _beside(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-hip` writes the emitter's golden files instead of comparing with them."""
    parser.addoption("--update-hip", action="store_true", help="write the HIP golden files")


@pytest.fixture(scope="session")
def library_kernels() -> ModuleType:
    """The module `library_kernels`: what the compiler makes of graphs."""
    return _beside("library_kernels")


@pytest.fixture(scope="session")
def interpreting() -> ModuleType:
    """The module `interpreting`: kernels under the simulated runtime without machine code."""
    return _beside("interpreting")


@pytest.fixture(scope="session")
def hosting() -> ModuleType:
    """The module `hosting`: kernels under the simulated runtime as their text, compiled for this processor."""
    try:
        host_clang()
    except Unsupported as error:
        if REQUIRED in read_settings().require_devices:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    return _beside("hosting")


@pytest.fixture(scope="session")
def machine() -> ModuleType:
    """The module `machine`: kernels under the simulated runtime as machine code."""
    return _beside("machine")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated runtime, compiled."""
    return build_or_skip(tmp_path_factory.mktemp("hsa")).path


@pytest.fixture
def library(built: Path, tmp_path: Path) -> Path:
    """A copy of it, which is another library to the loader: its state is this test's."""
    return Path(shutil.copy(built, tmp_path / built.name))


@pytest.fixture(scope="module")
def module_library(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy for the tests of a file: of one library, a process takes the events once."""
    return Path(shutil.copy(built, tmp_path_factory.mktemp("hsa_of_file") / built.name))


@pytest.fixture
def fake(library: Path) -> FakeRuntime:
    """A simulated runtime of its own."""
    return FakeRuntime(library)


@pytest.fixture
def runtime(fake: FakeRuntime) -> Runtime:
    """It, begun."""
    return Runtime(str(fake.path))


@pytest.fixture
def open_device(fake: FakeRuntime, runtime: Runtime, interpreting: ModuleType) -> Callable[..., RocmDevice]:
    """`open_device(packets=64, timeout=60.0)`: a device whose kernels are interpreted."""
    kernels = interpreting.Interpreting()
    return lambda **settings: interpreting.open_interpreting(fake, runtime, kernels, **settings)


@pytest.fixture
def device(fake: FakeRuntime, open_device: Callable[..., RocmDevice]) -> Iterator[RocmDevice]:
    """A device over the simulated runtime, closed at the end; nothing of it may be left unless it was lost."""
    opened = open_device()
    yield opened
    opened.close()
    assert not fake.raised
    lost = "closed" not in opened.poisoned
    assert lost or not any(fake.count(what) for what in ("allocations", "live signals", "queues"))


@pytest.fixture
def child(library: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`child(scenario)` runs a function of `scenarios.py` in a process of its own."""

    def run(scenario: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(HERE / "scenarios.py"), scenario, str(library), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run

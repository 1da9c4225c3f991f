"""Devices for the tests: a GPU where there is one, and the package over a simulated driver anywhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.launching import kernel_device
from poot_executor.device import Compiled
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel_device import KernelDevice
from poot_executor.settings import DeviceSettings
from poot_ptx_device.caps import OPTIONS
from poot_ptx_device.device import PtxDevice
from poot_ptx_device.native import Native
from poot_ptx_device.opening import open_gpu

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-ptx` writes the emitter's golden files instead of comparing with them."""
    parser.addoption("--update-ptx", action="store_true", help="write the PTX golden files")


def _simulated() -> ModuleType:
    spec = importlib.util.spec_from_file_location("poot_simulated_driver", HERE / "simulated_driver.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def simulated() -> ModuleType:
    """The module of the simulated driver: its class and the results that it may report."""
    return _simulated()


@pytest.fixture(scope="session")
def open_simulated(simulated: ModuleType) -> Callable[..., PtxDevice]:
    """`open_simulated(driver, options=…, timeout=…, cache=…)`: a device whose kernels the driver can interpret, which
    those that it proves itself by when it is opened are not."""

    def opened(driver: Any, *, options: frozenset[str] | None = OPTIONS, **settings: Any) -> PtxDevice:
        native = Native(driver)
        device = open_gpu(native, native.gpus()[0], DeviceSettings(**{"timeout": 60.0, **settings}), options=options)
        compile = device.compile

        def told(kernel: Kernel) -> Compiled:
            compiled = compile(kernel)
            driver.kernels[compiled.code] = kernel
            return compiled

        device.compile = told
        return device

    return opened


@pytest.fixture(scope="session")
def gpu() -> Iterator[KernelDevice]:
    """A GPU, or the reason why there is none."""
    with open_or_skip("ptx") as opened:
        yield kernel_device(opened)


@pytest.fixture
def driver(simulated: ModuleType) -> Any:
    """A simulated driver of its own."""
    return simulated.SimulatedDriver()


@pytest.fixture
def device(driver: Any, open_simulated: Callable[..., PtxDevice]) -> Iterator[PtxDevice]:
    """A device over the simulated driver, closed at the end; nothing of it may be left unless it was lost."""
    opened = open_simulated(driver)
    yield opened
    opened.close()
    assert driver.lost is not None or driver.held or not driver.leaks


def _ptxas() -> str | None:
    """The assembler: of the package nvidia-cuda-nvcc, or of an installed toolkit."""
    packaged = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/**/bin/ptxas"))
    return os.fspath(packaged[0]) if packaged else shutil.which("ptxas")


@pytest.fixture(scope="session")
def assemble(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """`assemble(text, architecture)` gives the assembler's report and fails with its messages."""
    ptxas = _ptxas()
    if ptxas is None:
        pytest.skip("there is no ptxas: install nvidia-cuda-nvcc")
    folder = tmp_path_factory.mktemp("ptx")

    def assembled(text: str, architecture: str) -> str:
        source = folder / "kernel.ptx"
        source.write_text(text)
        command = [ptxas, "--verbose", f"--gpu-name={architecture}", "--output-file", os.devnull, os.fspath(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stderr}\n{text}"
        return done.stderr

    return assembled

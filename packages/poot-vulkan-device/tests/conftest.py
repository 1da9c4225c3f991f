"""A device for every test, skipped where there is none and failed where POOT_REQUIRE_DEVICE asks for one."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from poot_eval.conformance.vulkan_layer import FaultLayer, build_or_skip
from poot_executor.compile.target import Caps
from poot_executor.errors import DeviceNotFound
from poot_executor.kernel.ir import Kernel
from poot_executor.settings import DeviceSettings, read_settings
from poot_vulkan_device import device as device_module
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.driver import VulkanDriver
from poot_vulkan_device.emit import emit


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-spirv` writes the emitter's golden files instead of comparing with them."""
    parser.addoption("--update-spirv", action="store_true", help="write the SPIR-V golden files")


class Table:
    """The loader's functions, some of which answer something else. Counts the calls of each and notes their order."""

    def __init__(self) -> None:
        from poot_vulkan_device.api import LOADER

        self._functions = LOADER
        self.calls: Counter[str] = Counter()
        self.log: list[str] = []
        self.answers: dict[str, list[int | None]] = {}
        self.after: dict[str, Callable[..., None]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._functions, name)

        def called(*args: Any) -> Any:
            self.calls[name] += 1
            self.log.append(name)
            answers = self.answers.get(name)
            answer = answers.pop(0) if answers else None
            if answer is not None:
                return answer
            result = function(*args)
            if name in self.after:
                self.after[name](*args)
            return result

        return called


@pytest.fixture(scope="session")
def new_table() -> type[Table]:
    """Makes tables to open devices with."""
    return Table


@pytest.fixture(scope="session")
def open_device() -> Callable[..., VulkanDevice]:
    """Opens further devices: `open_device(timeout=…)`; `functions` stands in the place of the loader's."""

    def opened(*, functions: Any = None, staged: bool = False, **settings: Any) -> VulkanDevice:
        chosen = DeviceSettings(**{"timeout": 60.0, **settings})
        try:
            if functions is None and not staged:
                return VulkanDriver().open("", chosen)
            from poot_vulkan_device.api import LOADER
            from poot_vulkan_device.instance import Instance
            from poot_vulkan_device.opening import open_adapter

            return open_adapter(Instance(functions or LOADER), 0, chosen, staged=staged)
        except (DeviceNotFound, OSError, IndexError) as error:
            if "vulkan" in read_settings().require_devices:
                raise
            pytest.skip(str(error))

    return opened


@pytest.fixture(scope="module")
def device(open_device: Callable[..., VulkanDevice]) -> Iterator[VulkanDevice]:
    with open_device() as opened:
        yield opened


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """The path of a program of Debian's package spirv-tools; a skip, or a failure where the device is required."""

    def found(name: str) -> str:
        path = shutil.which(name)
        if path is not None:
            return path
        reason = f"{name} is not installed: apt-get install spirv-tools"
        assert "vulkan" not in read_settings().require_devices, reason
        pytest.skip(reason)

    return found


VALIDATION = "VK_LAYER_KHRONOS_validation"


def validation_environment(folder: Path) -> dict[str, str] | None:
    """What puts the Khronos validation layer into an instance, with a log in that folder; None where it is not
    installed.
    """
    places = [Path(place) / "vulkan/explicit_layer.d" for place in ("/usr/share", "/usr/local/share", "/etc")]
    manifests = [json.loads(path.read_text()) for place in places for path in place.glob("*.json")]
    if not any(manifest.get("layer", {}).get("name") == VALIDATION for manifest in manifests):
        return None
    (folder / "vk_layer_settings.txt").write_text(
        "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n"
        f"khronos_validation.log_filename = {folder / 'log.txt'}\n"
        "khronos_validation.report_flags = error,warn\n"
    )
    return {"VK_INSTANCE_LAYERS": VALIDATION, "VK_LAYER_SETTINGS_PATH": str(folder)}


@pytest.fixture(scope="session")
def watched() -> Callable[[Path], dict[str, str] | None]:
    """`validation_environment`, for a process of its own."""
    return validation_environment


@pytest.fixture(scope="module", autouse=True)
def validated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The Khronos validation layer watches every device that a file of tests opens, and has nothing to say."""
    folder = tmp_path_factory.mktemp("validation")
    environment = validation_environment(folder)
    if environment is None:
        reason = f"{VALIDATION} is not installed: apt-get install vulkan-validationlayers"
        assert "vulkan" not in read_settings().require_devices, reason
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield
    log = folder / "log.txt"
    assert not log.exists() or not log.read_text(), log.read_text()[:4000]


MODULES = 250
"""Modules of a file of tests that spirv-val looks at where a run takes parts of sweeps."""


@pytest.fixture(scope="module", autouse=True)
def valid_modules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """spirv-val accepts every module that devices compile in a file of tests; with --sweep, a part of them."""
    modules: set[bytes] = set()

    def kept(kernel: Kernel, caps: Caps) -> bytes:
        code = emit(kernel, caps)
        modules.add(code)
        return code

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_module, "emit", kept)
        yield
    validator = shutil.which("spirv-val")
    if validator is None or not modules:
        return
    chosen = sorted(modules)
    if request.config.getoption("--sweep", None) is not None and len(chosen) > MODULES:
        chosen = random.sample(chosen, MODULES)
    path = tmp_path_factory.mktemp("modules") / "module.spv"
    for code in chosen:
        path.write_bytes(code)
        command = [validator, "--target-env", "vulkan1.1", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.fixture(scope="session")
def layer(tmp_path_factory: pytest.TempPathFactory) -> FaultLayer:
    """The layer that answers in the driver's place, compiled once."""
    return build_or_skip(tmp_path_factory.mktemp("layer"), "vulkan")


@pytest.fixture
def faults(layer: FaultLayer) -> Iterator[FaultLayer]:
    """The layer, which answers nothing before and after."""
    layer.clear()
    yield layer
    layer.clear()


@pytest.fixture
def open_faulty(faults: FaultLayer, open_device: Callable[..., VulkanDevice]) -> Callable[..., VulkanDevice]:
    """Opens devices with the layer between the loader and the driver."""

    def opened(**settings: Any) -> VulkanDevice:
        with faults.enabled():
            return open_device(**settings)

    return opened

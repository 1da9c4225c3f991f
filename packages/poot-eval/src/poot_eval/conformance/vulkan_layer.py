"""Faults below everything: a Vulkan layer, compiled when tests need it, that answers in the driver's place.

The layer is C (`vulkan_layer.c`), since a layer is what the Vulkan loader loads; what it is told goes through ctypes in
the process that uses it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from poot_executor.settings import read_settings

NAME = "VK_LAYER_POOT_faults"
SOURCE = Path(__file__).with_name("vulkan_layer.c")

DEVICE_LOST = -4
OUT_OF_HOST_MEMORY = -1
OUT_OF_DEVICE_MEMORY = -2
INITIALIZATION_FAILED = -3


class FaultLayer:
    """The compiled layer. What it is told holds for every device that was opened while it was `enabled`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._library = ctypes.CDLL(str(folder / "libfaults.so"))
        for name in ("fault_calls", "fault_all_calls"):
            getattr(self._library, name).restype = ctypes.c_long

    @property
    def environment(self) -> dict[str, str]:
        """What lets the loader put the layer into an instance."""
        return {"VK_LAYER_PATH": str(self.folder), "VK_INSTANCE_LAYERS": NAME}

    @contextmanager
    def enabled(self) -> Iterator[None]:
        """Instances that are made in here have the layer."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def arm(self, call: str, place: int, result: int, times: int = 1) -> None:
        """Let the call number `place` from now on (0: the next one) of a function, and so many in all, give a result. A
        device that is lost by it stays lost.
        """
        assert self._library.fault_arm(call.encode(), ctypes.c_long(place), ctypes.c_long(times), result), call

    def hang(self, place: int) -> None:
        """Let submissions from number `place` on never run."""
        self._library.fault_hang(ctypes.c_long(place))

    def refuse_robust_access(self) -> None:
        """Let physical devices have no robust buffer access."""
        self._library.fault_fragile(1)

    def clear(self) -> None:
        """Answer nothing any more."""
        self._library.fault_clear()

    def calls(self, call: str) -> int:
        """How often a function was called."""
        return int(self._library.fault_calls(call.encode()))

    @property
    def all_calls(self) -> int:
        """Calls of every function that the layer can answer."""
        return int(self._library.fault_all_calls())


def build_or_skip(folder: Path, device: str) -> FaultLayer:
    """Compile the layer into a folder. Where there is no C compiler the test is skipped and says so, or fails if
    POOT_REQUIRE_DEVICE names the device.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        reason = "there is no C compiler (cc) to build the layer with: apt-get install gcc libc6-dev"
        if device in read_settings().require_devices:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    library = folder / "libfaults.so"
    command = [compiler, "-std=c11", "-O1", "-Wall", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    done = subprocess.run([*command, str(SOURCE), "-o", str(library)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifest = {
        "file_format_version": "1.2.0",
        "layer": {
            "name": NAME,
            "type": "GLOBAL",
            "library_path": str(library),
            "api_version": "1.3.239",
            "implementation_version": "1",
            "description": "answers in the driver's place",
        },
    }
    (folder / "faults.json").write_text(json.dumps(manifest))
    return FaultLayer(folder)

"""The validation layer watches every test of this folder (`conftest`): here, that it sees what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from poot_executor.settings import read_settings

WRONG = """
from poot_executor.device import BufferKind
from poot_executor.settings import DeviceSettings
from poot_vulkan_device.driver import VulkanDriver
device = VulkanDriver().open("", DeviceSettings(timeout=60.0))
buffer = device.allocate(BufferKind.ARENA, 64)
encoder = device._encoder
commands = encoder.begin()
encoder.copy(commands, (buffer.handle.buffer, 0), (buffer.handle.buffer, 32), 4096)
print("done")
"""


@pytest.mark.device("vulkan")
def test_the_validation_layer_sees_a_copy_beyond_a_buffer(device: Any, tmp_path: Path, watched: Any) -> None:
    environment = watched(tmp_path)
    if environment is None:
        assert "vulkan" not in read_settings().require_devices
        pytest.skip("the validation layer is not installed")
    done = subprocess.run(
        [sys.executable, "-c", WRONG],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    assert "VUID-vkCmdCopyBuffer" in (tmp_path / "log.txt").read_text()

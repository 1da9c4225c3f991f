"""The Khronos validation layer watches a device at work and has nothing to say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from poot_executor.settings import read_settings

LAYER = "VK_LAYER_KHRONOS_validation"

WORK = """
import numpy as np
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Copy, Dispatch
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access
from poot_executor.settings import DeviceSettings
from poot_vulkan_device.instance import Instance
from poot_vulkan_device.opening import open_adapter

b = KernelBuilder("work", 32)
x, y = b.buffer("x", DType.F32, Access.READ), b.buffer("y", DType.F32, Access.READ_WRITE)
tile = b.shared("tile", DType.F32, 32)
i = b.group_id() * 32 + b.thread_id()
tile[b.thread_id()] = x[i]
b.barrier()
b.check(i < y.length(), 1)
y.store(i * 4, b.vector(*[tile[31 - b.thread_id()]] * 4) + y.load(i * 4, 4))
kernel = b.finish()
for staged in (False, True):
    device = open_adapter(Instance(), 0, DeviceSettings(timeout=60.0), staged=staged)
    device.set_budget(100)
    buffers = [device.allocate(kind, 4096) for kind in BufferKind]
    device.write(buffers[0], np.ones(1024, np.float32))
    whole = [BufferSlice(buffer, 0, 4096) for buffer in buffers]
    args = (BoundArg(BufferSlice(buffers[0], 256, 1024), 256), BoundArg(whole[1], 1024))
    step = Dispatch(device.loaded(kernel), args, (8, 1, 1), 40)
    copy = Copy(BufferSlice(buffers[1], 0, 1024), BufferSlice(buffers[1], 2048, 1024))
    recording = device.record([step, step, copy, step, Copy(whole[1], whole[5])], whole[5])
    for _ in range(2):
        device.replay(recording)
    out = np.empty(1024, np.float32)
    device.read(buffers[5], out)
    device.synchronize()
    device.synchronize()
    device.release(recording)
    device.free(buffers[2])
    device.close()
print("done")
"""


def manifest() -> Path | None:
    """Where the layer is installed."""
    folders = [Path(folder) / "vulkan/explicit_layer.d" for folder in ("/usr/share", "/usr/local/share", "/etc")]
    for path in (path for folder in folders for path in folder.glob("*.json")):
        if json.loads(path.read_text()).get("layer", {}).get("name") == LAYER:
            return path
    return None


@pytest.mark.device("vulkan")
def test_the_validation_layer_is_silent(device: object, tmp_path: Path) -> None:
    if manifest() is None:
        reason = f"{LAYER} is not installed: apt-get install vulkan-validationlayers"
        assert "vulkan" not in read_settings().require_devices, reason
        pytest.skip(reason)
    log = tmp_path / "layer.txt"
    (tmp_path / "vk_layer_settings.txt").write_text(
        f"khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\nkhronos_validation.log_filename = {log}\n"
        "khronos_validation.report_flags = error,warn\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        env={**os.environ, "VK_INSTANCE_LAYERS": LAYER, "VK_LAYER_SETTINGS_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
    assert log.exists(), "the layer was not loaded"
    assert log.read_text() == ""

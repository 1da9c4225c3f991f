"""What the Vulkan driver under wgpu answers, replaced by a layer below the loader. Each case is its own process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from poot_eval.conformance.vulkan_layer import FaultLayer, build_or_skip

pytestmark = [
    pytest.mark.device("wgpu"),
    pytest.mark.skipif(sys.platform != "linux", reason="the layer is for the Vulkan loader of Linux"),
]

CHILD = """
import sys
from pathlib import Path
import numpy as np
from poot_eval.conformance.device_faults import assert_poisoned, busy
from poot_eval.conformance.vulkan_layer import DEVICE_LOST, FaultLayer
from poot_executor.device import BufferKind
from poot_executor.errors import DeviceLost, DeviceTimeout
from poot_executor.settings import DeviceSettings
from poot_wgpu_device.driver import WgpuDriver

layer = FaultLayer(Path(sys.argv[1]))
with layer.enabled():
    device = WgpuDriver().open("", DeviceSettings(timeout=3.0))
recording, buffer = busy(device, 1)
device.replay(recording)
device.synchronize()
if sys.argv[2] == "hang":
    layer.hang(0)
else:
    layer.arm(sys.argv[2], 0, DEVICE_LOST)
try:
    device.replay(recording)
    device.synchronize()
    device.allocate(BufferKind.STATE, 1 << 20)
except (DeviceLost, DeviceTimeout) as error:
    print(type(error).__name__)
assert_poisoned(device, recording, buffer)
print("poisoned")
"""


STARVED = """
import sys
from pathlib import Path
import numpy as np
from poot_eval.conformance.vulkan_layer import OUT_OF_DEVICE_MEMORY, FaultLayer
from poot_executor.device import BufferKind
from poot_executor.errors import OutOfMemory
from poot_executor.settings import DeviceSettings
from poot_wgpu_device.driver import WgpuDriver

layer = FaultLayer(Path(sys.argv[1]))
with layer.enabled():
    device = WgpuDriver().open("", DeviceSettings(timeout=60.0))
used = device.memory().used
layer.arm("vkAllocateMemory", 0, OUT_OF_DEVICE_MEMORY, times=1000)
try:
    device.allocate(BufferKind.STATE, 1 << 29)
except OutOfMemory as error:
    print(error)
layer.clear()
assert device.memory().used == used
small = device.allocate(BufferKind.STATE, 1 << 20)
device.write(small, np.arange(1 << 18, dtype=np.int32))
out = np.zeros(1 << 18, np.int32)
device.read(small, out)
assert (out == np.arange(1 << 18)).all()
device.close()
print("usable")
"""


@pytest.fixture(scope="module")
def layer(tmp_path_factory: pytest.TempPathFactory) -> FaultLayer:
    return build_or_skip(tmp_path_factory.mktemp("layer"), "wgpu")


def run_child(layer: FaultLayer, what: str, code: str = CHILD) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, str(layer.folder), what],
        env={**os.environ, "RUST_BACKTRACE": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("hang", "DeviceTimeout"),
        ("vkBeginCommandBuffer", "DeviceLost"),
        ("vkEndCommandBuffer", "DeviceLost"),
        ("vkCreateBuffer", "DeviceLost"),
    ],
)
def test_a_driver_that_hangs_or_loses_the_device_is_a_typed_error(
    device: object, layer: FaultLayer, what: str, error: str
) -> None:
    done = run_child(layer, what)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [error, "poisoned"]


@pytest.mark.xfail(strict=True, reason="wgpu-native aborts the process where submit or poll finds the device lost")
@pytest.mark.parametrize("what", ["vkQueueSubmit", "vkWaitSemaphores", "vkGetSemaphoreCounterValue"])
def test_a_device_lost_inside_the_library_s_submit_or_poll(device: object, layer: FaultLayer, what: str) -> None:
    done = run_child(layer, what)
    assert done.returncode == 0
    assert done.stdout.splitlines() == ["DeviceLost", "poisoned"]


def test_an_allocation_that_the_driver_refuses_leaves_the_device_usable(device: object, layer: FaultLayer) -> None:
    done = run_child(layer, "memory", STARVED)
    assert done.returncode == 0, done.stderr
    refused, usable = done.stdout.splitlines()
    assert refused.startswith("out of device memory: asked for 536,870,912 bytes of state")
    assert usable == "usable"

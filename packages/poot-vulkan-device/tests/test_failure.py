"""Devices that are refused, and what is given back: as the library is told, seen in the place of its functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from poot_eval.conformance.device_faults import assert_poisoned, busy
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import DeviceSettings
from poot_vulkan_device.device import VulkanDevice

pytestmark = pytest.mark.device("vulkan")


def test_an_old_device_is_refused(open_device: Callable[..., VulkanDevice], new_table: Any) -> None:
    from poot_vulkan_device.instance import Instance
    from poot_vulkan_device.opening import open_adapter

    table = new_table()

    def age(_physical: Any, properties: Any) -> None:
        properties.apiVersion = 1 << 22

    table.after["vkGetPhysicalDeviceProperties"] = age
    with pytest.raises(DeviceNotFound, match=r"has Vulkan 1\.0, poot needs 1\.1"):
        open_adapter(Instance(table), 0, DeviceSettings())
    assert table.calls["vkDestroyInstance"] == 1
    assert not table.calls["vkCreateDevice"]


def test_a_closed_device_has_given_everything_back(open_device: Callable[..., VulkanDevice], new_table: Any) -> None:
    table = new_table()
    device = open_device(functions=table)
    recording, buffer = busy(device, 1)
    device.replay(recording)
    device.close()
    made = (
        "Buffer PipelineLayout DescriptorSetLayout DescriptorPool CommandPool Fence QueryPool PipelineCache "
        "ShaderModule Device Instance"
    ).split()
    for name in made:
        assert table.calls[f"vkCreate{name}"] == table.calls[f"vkDestroy{name}"] > 0, name
    assert table.calls["vkCreateComputePipelines"] == table.calls["vkDestroyPipeline"]
    assert table.calls["vkAllocateMemory"] == table.calls["vkFreeMemory"]
    assert_poisoned(device, recording, buffer)


def test_a_poisoned_device_leaks(open_device: Callable[..., VulkanDevice], new_table: Any) -> None:
    """What pending work may use is not given back, also not when it is closed."""
    table = new_table()
    device = open_device(functions=table, timeout=0.1)
    recording, buffer = busy(device, 80)
    device.replay(recording)
    before = {name: count for name, count in table.calls.items() if name.startswith(("vkDestroy", "vkFree"))}
    device.close()
    assert_poisoned(device, recording, buffer)
    assert {name: n for name, n in table.calls.items() if name.startswith(("vkDestroy", "vkFree"))} == before

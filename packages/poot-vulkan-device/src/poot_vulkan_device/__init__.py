"""poot_vulkan_device."""

"""poot_wgpu_device."""

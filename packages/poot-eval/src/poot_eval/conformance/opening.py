"""Opening the device that a test file is about, or skipping with the reason why it is missing."""

from __future__ import annotations

import pytest

from poot_executor.device import Device
from poot_executor.discover import open_device
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import Settings, read_settings


def open_or_skip(name: str, settings: Settings | None = None) -> Device:
    """The device "NAME" or "NAME:SELECTOR", opened; the caller closes it.

    Where it is missing the test is skipped and says why, or fails if POOT_REQUIRE_DEVICE names it
    (alone or with that selector). No compile cache is used unless `settings` has one.
    """
    settings = read_settings() if settings is None else settings
    required = settings.require_devices & {name, name.partition(":")[0]}
    try:
        device, _ = open_device(name, settings.device)
    except DeviceNotFound as error:
        if required:
            pytest.fail(f"{', '.join(required)} is required and missing: {error}", pytrace=False)
        pytest.skip(str(error))
    return device

"""Settings from the environment: defaults, every variable, and refusals by name."""

from pathlib import Path

import pytest

from poot_executor.errors import SettingsError
from poot_executor.settings import read_settings


def test_defaults():
    settings = read_settings({})
    assert settings.home == Path.home() / ".cache" / "poot"
    assert (settings.timeout, settings.compile_cache, settings.dump) == (600.0, True, None)
    assert settings.require_devices == frozenset()
    assert settings.device.timeout == 600.0
    assert settings.device.cache == settings.home / "kernels"


def test_every_variable():
    settings = read_settings(
        {
            "POOT_HOME": "/somewhere",
            "POOT_TIMEOUT": "2.5",
            "POOT_COMPILE_CACHE": "0",
            "POOT_DUMP": "/dump",
            "POOT_REQUIRE_DEVICE": "wgpu,vulkan",
            "HOME": "/not/a/setting",
        }
    )
    assert settings.home == Path("/somewhere")
    assert settings.timeout == settings.device.timeout == 2.5
    assert settings.dump == Path("/dump")
    assert settings.device.cache is None
    assert settings.require_devices == {"wgpu", "vulkan"}


def test_the_users_cache_folder_is_honoured():
    assert read_settings({"XDG_CACHE_HOME": "/c"}).home == Path("/c/poot")
    assert read_settings({"XDG_CACHE_HOME": "/c", "POOT_HOME": "/h"}).home == Path("/h")
    assert read_settings({"POOT_HOME": ""}).home == read_settings({}).home


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("POOT_TIMEOUT", "soon"),
        ("POOT_TIMEOUT", "0"),
        ("POOT_TIMEOUT", "-1"),
        ("POOT_TIMEOUT", "inf"),
        ("POOT_TIMEOUT", "nan"),
        ("POOT_TIMEOUT", ""),
        ("POOT_COMPILE_CACHE", "yes"),
        ("POOT_COMPILE_CACHE", ""),
        ("POOT_TIMEOUTS", "1"),
    ],
)
def test_a_bad_value_or_an_unknown_variable_is_named(name, value):
    with pytest.raises(SettingsError, match=name):
        read_settings({name: value})


def test_the_process_environment_is_the_default(monkeypatch):
    monkeypatch.setenv("POOT_TIMEOUT", "7")
    assert read_settings().timeout == 7

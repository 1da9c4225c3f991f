from poot_executor.device import Device, Driver
from poot_executor.discover import Choice, Status, commands, installed, open_device, survey
from poot_executor.engine import Engine
from poot_executor.errors import PootError
from poot_executor.executor import EntryId, ExecutableId, Executor, StepId, StepInputs, StepOutputs
from poot_executor.settings import DeviceSettings, Settings, read_settings
from poot_executor.stats import EngineStats

__all__ = [
    "Choice",
    "Device",
    "DeviceSettings",
    "Driver",
    "Engine",
    "EngineStats",
    "EntryId",
    "ExecutableId",
    "Executor",
    "PootError",
    "Settings",
    "Status",
    "StepId",
    "StepInputs",
    "StepOutputs",
    "commands",
    "installed",
    "open_device",
    "read_settings",
    "survey",
]

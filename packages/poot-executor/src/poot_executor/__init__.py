"""The backend-neutral contract of poot: graph, compiler, kernel language, device, engine.

What most callers need is here; `poot_executor.graph`, `.compile` and `.kernel` hold the rest. A name is imported when
it is asked for: who needs `poot_executor.errors` alone pays for no compiler, nor for numpy.
"""

from poot_executor.exports import __dir__ as __dir__
from poot_executor.exports import __getattr__ as __getattr__

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

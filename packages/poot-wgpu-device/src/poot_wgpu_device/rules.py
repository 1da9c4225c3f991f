"""The emitter's table: one rule for each kernel operation. Those that a pass lowers before emission have none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from poot_wgpu_device.emit_arith import ARITHMETIC, Rule
from poot_wgpu_device.emit_control import CONTROL
from poot_wgpu_device.emit_memory import MEMORY

RULES: Mapping[str, Rule] = MappingProxyType({**ARITHMETIC, **MEMORY, **CONTROL})

"""The emitter's table: one rule for each kernel operation. Those that a pass replaces before emission have one as well,
or none.
"""

from __future__ import annotations

from poot_executor.kernel.rules import Rules
from poot_vulkan_device.emit import Rule
from poot_vulkan_device.emit_arith import add_arithmetic
from poot_vulkan_device.emit_control import add_control
from poot_vulkan_device.emit_fragments import add_fragments
from poot_vulkan_device.emit_memory import add_memory


def _table() -> Rules[Rule]:
    rules: Rules[Rule] = Rules("vulkan")
    add_arithmetic(rules)
    add_control(rules)
    add_memory(rules)
    add_fragments(rules)
    return rules


RULES = _table()

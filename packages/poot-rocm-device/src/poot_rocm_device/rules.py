"""The emitter's table: one rule for each kernel operation. Those that a pass lowers before emission have none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from poot_executor.kernel.rules import Rules

if TYPE_CHECKING:
    from poot_rocm_device.emitter import Rule

RULES: Rules[Rule] = Rules("rocm")
"""Filled by the modules emit_arithmetic, emit_memory, emit_subgroup, emit_fragments and emit_control."""

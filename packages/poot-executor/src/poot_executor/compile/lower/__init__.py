"""Regions to kernels: one template a file. `lower_region` picks the template by the region's kind."""

from poot_executor.compile.lower.draft import Draft, Operand
from poot_executor.compile.lower.templates import lower_region

__all__ = ["Draft", "Operand", "lower_region"]

"""What a mode can do, as data."""

from __future__ import annotations

from types import MappingProxyType

from poot_executor.compile.target import Caps, Granularity
from poot_npu.vpu.modes import Mode
from poot_npu.vpu.table import OPERATIONS

ERRORS = MappingProxyType(
    {
        "div": 2.0, "sqrt": 1.0, "rsqrt": 2.0, "exp": 5.0, "log": 1.5, "sin": 1.0, "cos": 1.0, "tanh": 3.0, "erf": 6.0,
        "pow": 2.0,
    }
)  # fmt: skip
"""Units in the last place, as measured over the operands of the suite, with a margin: OpenVINO states none."""


def caps_of(mode: Mode) -> Caps:
    """Whole graphs."""
    return Caps(granularity=Granularity.GRAPH, operations=OPERATIONS, errors=ERRORS, contracts=True, few_programs=True)

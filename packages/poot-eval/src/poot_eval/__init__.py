"""The CPU oracle of poot: graph evaluation, an interpreter of kernel IR, and comparison with
derived tolerances.

Tests and device checks call it; generation never does.
"""

from poot_eval.faults import CheckFault, DivergenceError, OutOfRangeError, RaceError, RangeFault
from poot_eval.graph import EvalOptions, Evaluation, eval
from poot_eval.kernel_ir import run_kernel

__all__ = [
    "CheckFault",
    "DivergenceError",
    "EvalOptions",
    "Evaluation",
    "OutOfRangeError",
    "RaceError",
    "RangeFault",
    "eval",
    "run_kernel",
]

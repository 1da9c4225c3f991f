"""The CPU oracle of poot: graph evaluation, an interpreter of kernel IR, and comparison with
derived tolerances.

Tests and device checks call it; generation never does.
"""

from poot_eval.bounds import KAPPA, Bounds, bound_for, end_to_end_bound
from poot_eval.compare import assert_matches, assert_same
from poot_eval.faults import CheckFault, DivergenceError, OutOfRangeError, RaceError, RangeFault
from poot_eval.graph import EvalOptions, Evaluation, eval
from poot_eval.kernel_ir import run_kernel

__all__ = [
    "KAPPA",
    "Bounds",
    "CheckFault",
    "DivergenceError",
    "EvalOptions",
    "Evaluation",
    "OutOfRangeError",
    "RaceError",
    "RangeFault",
    "assert_matches",
    "assert_same",
    "bound_for",
    "end_to_end_bound",
    "eval",
    "run_kernel",
]

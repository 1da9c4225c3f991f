"""The passes over kernel IR. Each takes and gives a whole kernel; `PASSES` is the order in which they run."""

from poot_executor.kernel.passes.cse import share_subexpressions
from poot_executor.kernel.passes.dead import remove_dead
from poot_executor.kernel.passes.fold import fold_constants
from poot_executor.kernel.passes.group import lower_group_reductions
from poot_executor.kernel.passes.invariant import hoist_invariants
from poot_executor.kernel.passes.pipeline import PASSES, optimize
from poot_executor.kernel.passes.strength import reduce_strength
from poot_executor.kernel.passes.unroll import unroll_loops

__all__ = [
    "PASSES", "fold_constants", "hoist_invariants", "lower_group_reductions", "optimize", "reduce_strength",
    "remove_dead", "share_subexpressions", "unroll_loops",
]  # fmt: skip

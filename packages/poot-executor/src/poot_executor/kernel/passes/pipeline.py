"""The passes over kernel IR, in the order in which they run. Each takes and gives a whole kernel."""

from __future__ import annotations

from collections.abc import Callable

from poot_executor.errors import KernelError
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel.passes.cse import share_subexpressions
from poot_executor.kernel.passes.dead import remove_dead
from poot_executor.kernel.passes.fold import fold_constants
from poot_executor.kernel.passes.group import lower_group_reductions
from poot_executor.kernel.passes.invariant import hoist_invariants
from poot_executor.kernel.passes.strength import reduce_strength
from poot_executor.kernel.passes.unroll import unroll_loops
from poot_executor.kernel.verify import verify

PASSES: tuple[Callable[[Kernel], Kernel], ...] = (
    fold_constants,
    share_subexpressions,
    unroll_loops,
    fold_constants,
    reduce_strength,
    fold_constants,
    share_subexpressions,
    hoist_invariants,
    share_subexpressions,
    remove_dead,
)
"""What runs after group reductions are lowered. Every one keeps each result bit for bit."""


def optimize(kernel: Kernel, *, subgroup: bool, subgroup_width: int | None, check: bool = False) -> Kernel:
    """The kernel as an emitter gets it: group reductions lowered, then `PASSES`.

    `subgroup` says whether the target has subgroups, `subgroup_width` how wide they are where that is fixed. With
    `check` the verifier runs after each pass and a failure names the pass. Only the lowering of a float group_sum may
    change a result: its order is the target's.
    """
    kernel = lower_group_reductions(kernel, subgroup=subgroup, subgroup_width=subgroup_width)
    width = subgroup_width if subgroup else None
    if check:
        _verify(kernel, width, "lower_group_reductions")
    for run in PASSES:
        kernel = run(kernel)
        if check:
            _verify(kernel, width, run.__name__)
    return kernel


def _verify(kernel: Kernel, width: int | None, name: str) -> None:
    try:
        verify(kernel, width)
    except KernelError as error:
        raise KernelError(f"after {name}: {error}") from error

"""Which values are the same in every thread of a group, and where control flow is.

Uniform are constants, group_id, length, subgroup_size, group reductions, and what is computed from uniform values
alone. A load at a uniform index is uniform: of a READ buffer always, of other buffers and shared arrays because the
threads of a group read one word after a barrier (a kernel in which another thread writes that word meanwhile is racy
whatever we say here). thread_id, lane_id, subgroup_id, atomics and shuffles are not. A reduction over a subgroup is
uniform only where the group is one subgroup. A value carried by a loop or given by an if is uniform where every
incoming value and what steers it are.
"""

from __future__ import annotations

from poot_executor.kernel.ir import Block, Kernel, Op, Val

_VARYING = frozenset(
    {
        "thread_id", "lane_id", "subgroup_id", "atomic", "subgroup_shuffle", "subgroup_shuffle_xor", "mma",
        "fragment_load", "warpgroup_mma",
    }
)  # fmt: skip
_SUBGROUP_REDUCTIONS = frozenset({"subgroup_sum", "subgroup_max", "subgroup_min"})
_GROUP_REDUCTIONS = frozenset({"group_sum", "group_max", "group_min"})


class Uniformity:
    """The analysis of one kernel. `subgroup_width` is the target's where it is fixed."""

    def __init__(self, kernel: Kernel, subgroup_width: int | None = None) -> None:
        self._varying: set[Val] = set()
        self._diverging: set[Op] = set()
        self._one_subgroup = subgroup_width == kernel.group_size
        self._block(kernel.body, diverged=False)

    def value(self, value: Val) -> bool:
        """Whether every thread of the group has this value."""
        return value not in self._varying

    def control(self, op: Op) -> bool:
        """Whether all threads of the group reach this operation together."""
        return op not in self._diverging

    def _block(self, block: Block, diverged: bool) -> None:
        for op in block.ops:
            if diverged:
                self._diverging.add(op)
            match op.kind:
                case "for":
                    self._for(op, diverged)
                case "while":
                    self._while(op, diverged)
                case "if":
                    self._if(op, diverged)
                case _:
                    if self._gives_varying(op):
                        self._varying.update(op.results)

    def _gives_varying(self, op: Op) -> bool:
        if op.kind in _VARYING:
            return True
        if op.kind in _GROUP_REDUCTIONS:
            return False
        if op.kind in _SUBGROUP_REDUCTIONS:
            return not self._one_subgroup
        return any(value in self._varying for value in op.operands)

    def _mark(self, targets: tuple[Val, ...], sources: tuple[Val, ...], always: bool) -> bool:
        """Mark targets whose source varies, or all of them; whether anything was new."""
        new = {
            target
            for target, source in zip(targets, sources, strict=True)
            if (always or source in self._varying) and target not in self._varying
        }
        self._varying |= new
        return bool(new)

    def _for(self, op: Op, diverged: bool) -> None:
        (body,) = op.blocks
        bounds, initial = op.operands[:3], op.operands[3:]
        index, carried = body.args[0], body.args[1:]
        steered = any(bound in self._varying for bound in bounds)
        if bounds[0] in self._varying or bounds[2] in self._varying:
            self._varying.add(index)
        self._mark(carried, initial, steered)
        # Marks only grow, so this ends; each round sees what the last one carried back.
        while True:
            self._block(body, diverged or steered)
            if not self._mark(carried, body.ops[-1].operands, steered):
                break
        self._mark(op.results, carried, steered)

    def _while(self, op: Op, diverged: bool) -> None:
        head, body = op.blocks
        self._mark(head.args, op.operands, False)
        while True:
            self._block(head, diverged)
            steered = head.ops[-1].operands[0] in self._varying
            if steered:
                self._varying.update(head.args)
                self._block(head, True)
            self._mark(body.args, head.args, steered)
            self._block(body, diverged or steered)
            if not self._mark(head.args, body.ops[-1].operands, steered):
                break
        self._mark(op.results, head.args, steered)

    def _if(self, op: Op, diverged: bool) -> None:
        steered = op.operands[0] in self._varying
        for block in op.blocks:
            self._block(block, diverged or steered)
            self._mark(op.results, block.ops[-1].operands, steered)

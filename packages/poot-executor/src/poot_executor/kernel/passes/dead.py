"""Dead code: operations whose results nothing needs, and values that loops and ifs carry for nobody."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.kernel.ir import Block, Kernel, Op, Val
from poot_executor.kernel.passes.fold import keep_carried

_EFFECTS = frozenset(
    {
        "store", "shared_store", "atomic", "barrier", "check", "fragment_store",
        "shared_copy", "copy_commit", "copy_wait",
    }
)  # fmt: skip
_CONTROL = frozenset({"for", "while", "if"})


def remove_dead(kernel: Kernel) -> Kernel:
    """Remove what no store, atomic, barrier or check needs. A loop without effects and without a needed result ends,
    and goes.
    """
    live = _Liveness()
    live.collect(kernel.body, None)
    live.mark()
    return replace(kernel, body=live.sweep(kernel.body))


class _Liveness:
    """Marks from the effects backwards. `_parents` is the operation whose block an operation is in."""

    def __init__(self) -> None:
        self._values: set[Val] = set()
        self._ops: set[Op] = set()
        self._definitions: dict[Val, tuple[Op, int]] = {}
        self._parents: dict[Op, Op | None] = {}
        self._work: list[Val] = []

    def collect(self, block: Block, parent: Op | None) -> None:
        """Learn who defines what in a block and in those nested in it."""
        for op in block.ops:
            self._parents[op] = parent
            for place, result in enumerate(op.results):
                self._definitions[result] = (op, place)
            for inner in op.blocks:
                fixed = 1 if op.kind == "for" else 0
                for place, arg in enumerate(inner.args):
                    self._definitions[arg] = (op, place - fixed)
                self.collect(inner, op)

    def mark(self) -> None:
        """Mark every operation and value that an effect needs."""
        for op in self._parents:
            if op.kind in _EFFECTS:
                self._need_op(op)
        while self._work:
            op, place = self._definitions[self._work.pop()]
            self._need_op(op)
            if op.kind in _CONTROL and place >= 0:
                self._need_carried(op, place)

    def _need(self, value: Val) -> None:
        if value not in self._values:
            self._values.add(value)
            self._work.append(value)

    def _need_op(self, op: Op) -> None:
        """An operation, what it reads, what steers it, and the operations that it is nested in."""
        if op in self._ops:
            return
        self._ops.add(op)
        steering = {"for": 3, "if": 1, "while": 0}.get(op.kind, len(op.operands))
        for value in op.operands[:steering]:
            self._need(value)
        if op.kind == "while":
            self._need(op.blocks[0].ops[-1].operands[0])
        parent = self._parents[op]
        if parent is not None:
            self._need_op(parent)

    def _need_carried(self, op: Op, place: int) -> None:
        """A value that control flow carries: where it starts and what each round or branch gives."""
        if op.kind == "if":
            for block in op.blocks:
                self._need(block.ops[-1].operands[place])
            return
        self._need(op.operands[place + (3 if op.kind == "for" else 0)])
        self._need(op.blocks[-1].ops[-1].operands[place])

    def sweep(self, block: Block) -> Block:
        """The block with only what was marked."""
        ops = []
        for op in block.ops:
            if op.kind == "yield":
                ops.append(op)
            elif op in self._ops:
                ops.append(self._trimmed(op) if op.kind in _CONTROL else op)
        return Block(block.args, tuple(ops))

    def _trimmed(self, op: Op) -> Op:
        keep = [place for place in range(len(op.results)) if self._carries(op, place)]
        return keep_carried(replace(op, blocks=tuple(self.sweep(b) for b in op.blocks)), keep)

    def _carries(self, op: Op, place: int) -> bool:
        fixed = 1 if op.kind == "for" else 0
        args = [] if op.kind == "if" else [block.args[fixed + place] for block in op.blocks]
        return any(value in self._values for value in (op.results[place], *args))

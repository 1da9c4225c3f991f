"""Constant folding, identities, and control flow whose course is known."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.kernel.fold import Constant, Number, Same, fold
from poot_executor.kernel.ir import KERNEL_OPS, Block, Kernel, Op, Val
from poot_executor.kernel.rewrite import Rewriter, resolve


def fold_constants(kernel: Kernel) -> Kernel:
    """Fold operations on constants; take the known branch of an if; drop loops that never run and checks that always
    hold.

    A value that a loop carries unchanged becomes the value before the loop. Results keep their bits.
    """
    return _Fold().kernel(kernel)


class _Fold(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self._constants: dict[Val, Number] = {}
        self._vectors: dict[Val, Op] = {}

    def before(self, op: Op) -> Op:
        if op.kind in {"for", "while"}:
            return self._drop_unchanged(op)
        return op

    def rewrite(self, op: Op) -> None:
        if op.kind == "if" and self._splice_known(op):
            return
        super().rewrite(op)

    def visit(self, op: Op) -> None:
        match op.kind:
            case "const":
                self._constants[op.result] = op.attrs["value"]
            case "check" if self._constants.get(op.operands[0]) is True:
                return
            case "vector":
                self._vectors[op.result] = op
            case "extract" if op.operands[0] in self._vectors:
                scalars = self._vectors[op.operands[0]].operands
                self.replaced[op.result] = scalars[op.attrs["lane"]]
                return
            case "for" if self._never_runs(op):
                self.replaced.update(zip(op.results, op.operands[3:], strict=True))
                return
            case "if":
                op = self._same_yields(op)
            case _ if KERNEL_OPS[op.kind].pure and op.operands:
                folded = self._folded(op)
                if folded is None:
                    return
                op = folded
        self.out.append(op)

    def _folded(self, op: Op) -> Op | None:
        constants = [self._constants.get(value) for value in op.operands]
        if constants.count(None) == len(constants) and op.kind not in {"cast", "bitcast"}:
            return op
        if any(value.type.width != 1 for value in (*op.operands, *op.results)):
            return op
        known = fold(op.kind, op.operands[-1].dtype, constants, op.result.dtype)
        match known:
            case Same(place):
                self.replaced[op.result] = op.operands[place]
                return None
            case Constant(value):
                self._constants[op.result] = value
                return Op("const", (), op.results, {"value": value}, (), op.line)
            case _:
                return op

    def _splice_known(self, op: Op) -> bool:
        """Put the branch that is taken in the place of an if whose condition is known."""
        condition = self._constants.get(resolve(op.operands[0], self.replaced))
        if condition is None:
            return False
        values = self.splice(op.blocks[0 if condition else 1], ())
        self.replaced.update(zip(op.results, values, strict=True))
        return True

    def _never_runs(self, op: Op) -> bool:
        low, high = (self._constants.get(value) for value in op.operands[:2])
        return low is not None and high is not None and low >= high

    def _same_yields(self, op: Op) -> Op:
        """An if without the results for which both branches give one value."""
        then, other = (block.ops[-1] for block in op.blocks)
        keep = []
        for place, result in enumerate(op.results):
            if then.operands[place] is other.operands[place]:
                self.replaced[result] = then.operands[place]
            else:
                keep.append(place)
        return op if len(keep) == len(op.results) else keep_carried(op, keep)

    def _drop_unchanged(self, op: Op) -> Op:
        """A loop without the carried values that its body gives back as they came."""
        body, bounds = op.blocks[-1], 3 if op.kind == "for" else 0
        args = body.args[1 if op.kind == "for" else 0 :]
        keep = []
        for place, (arg, back) in enumerate(zip(args, body.ops[-1].operands, strict=True)):
            initial = op.operands[bounds + place]
            if back is not arg and resolve(back, self.replaced) is not initial:
                keep.append(place)
                continue
            self.replaced[op.results[place]] = initial
            for block in op.blocks:
                self.replaced[block.args[place + len(block.args) - len(args)]] = initial
        return op if len(keep) == len(args) else keep_carried(op, keep)


def keep_carried(op: Op, keep: list[int]) -> Op:
    """A loop or if with only the carried values at these places. Nothing may use the others any more."""
    bounds = 3 if op.kind == "for" else 1 if op.kind == "if" else 0
    operands = op.operands[:bounds]
    if op.kind != "if":
        operands += tuple(op.operands[bounds + place] for place in keep)
    blocks = []
    for place, block in enumerate(op.blocks):
        fixed = 1 if op.kind == "for" else 0
        args = block.args
        if op.kind != "if":
            args = args[:fixed] + tuple(args[fixed + k] for k in keep)
        last = block.ops[-1]
        if op.kind != "while" or place == 1:
            last = replace(last, operands=tuple(last.operands[k] for k in keep))
        blocks.append(Block(args, (*block.ops[:-1], last)))
    return replace(op, operands=operands, results=tuple(op.results[k] for k in keep), blocks=tuple(blocks))

"""Rebuilding blocks: what the builder and the passes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from poot_executor.kernel.ir import Block, Kernel, Op, Val


def resolve(value: Val, replaced: Mapping[Val, Val]) -> Val:
    """Follow replacements to the value that stays."""
    while value in replaced:
        value = replaced[value]
    return value


def substitute(block: Block, replaced: Mapping[Val, Val]) -> Block:
    """The block with every use of a replaced value, also in nested blocks, turned to what replaces it."""
    if not replaced:
        return block
    ops = tuple(_substituted(op, replaced) for op in block.ops)
    return block if ops == block.ops else Block(block.args, ops)  # equal is identical


def _substituted(op: Op, replaced: Mapping[Val, Val]) -> Op:
    if not op.blocks and replaced.keys().isdisjoint(op.operands):
        return op
    operands = tuple([resolve(value, replaced) for value in op.operands])
    return op.having(operands, tuple([substitute(inner, replaced) for inner in op.blocks]))


class Rewriter:
    """Rebuilds a block operation by operation. A pass overrides `visit`, and `enter` and `leave` where scopes matter.

    `replaced` holds values that gave way to others: their uses are turned as they are met.
    """

    def __init__(self) -> None:
        self.replaced: dict[Val, Val] = {}
        self.out: list[Op] = []
        self.depth = 0

    def visit(self, op: Op) -> None:
        """Append to `out` what stands in the place of an operation whose operands and blocks are already rewritten."""
        self.out.append(op)

    def before(self, op: Op) -> Op:
        """An operation with its operands turned, before its blocks are rewritten."""
        return op

    def enter(self, block: Block) -> None:
        """A block begins."""

    def leave(self, block: Block) -> None:
        """A block ends."""

    def block(self, block: Block) -> Block:
        """The rewritten block."""
        outer, self.out = self.out, []
        self.depth += 1
        self.enter(block)
        for op in block.ops:
            self.rewrite(op)
        self.leave(block)
        self.depth -= 1
        ops, self.out = self.out, outer
        return Block(block.args, tuple(ops))

    def rewrite(self, op: Op) -> None:
        """Rewrite one operation into `out`."""
        replaced = self.replaced
        if not replaced.keys().isdisjoint(op.operands):
            op = op.having(tuple([resolve(value, replaced) for value in op.operands]), op.blocks)
        op = self.before(op)
        if op.blocks:
            op = op.having(op.operands, tuple([self.block(block) for block in op.blocks]))
        self.visit(op)

    def kernel(self, kernel: Kernel) -> Kernel:
        """The kernel with its body rewritten."""
        body = self.block(kernel.body)
        # A replacement made in a loop may concern a value that was used before it was made: the loop's own results.
        return replace(kernel, body=substitute(body, self.replaced))

    def splice(self, block: Block, values: Sequence[Val]) -> tuple[Val, ...]:
        """Put a nested block's operations here, its arguments standing for `values`; gives what it yields."""
        self.replaced.update(zip(block.args, values, strict=True))
        for op in block.ops[:-1]:
            self.rewrite(op)
        return tuple(resolve(value, self.replaced) for value in block.ops[-1].operands)


def clone(ops: Sequence[Op], mapping: dict[Val, Val]) -> list[Op]:
    """Operations with fresh results and block arguments. `mapping` gives replacements, and gets those of what is
    defined.
    """
    copies = []
    for op in ops:
        operands = tuple(mapping.get(value, value) for value in op.operands)
        blocks = []
        for block in op.blocks:
            args = tuple(_fresh(value, mapping) for value in block.args)
            blocks.append(Block(args, tuple(clone(block.ops, mapping))))
        results = tuple(_fresh(value, mapping) for value in op.results)
        copies.append(Op(op.kind, operands, results, op.attrs, tuple(blocks), op.line))
    return copies


def _fresh(value: Val, mapping: dict[Val, Val]) -> Val:
    mapping[value] = Val(value.type, value.hint)
    return mapping[value]

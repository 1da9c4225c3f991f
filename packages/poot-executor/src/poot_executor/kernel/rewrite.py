"""Rebuilding blocks: what the builder and the passes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from poot_executor.kernel.ir import Block, Val


def resolve(value: Val, replaced: Mapping[Val, Val]) -> Val:
    """Follow replacements to the value that stays."""
    while value in replaced:
        value = replaced[value]
    return value


def substitute(block: Block, replaced: Mapping[Val, Val]) -> Block:
    """The block with every use of a replaced value, also in nested blocks, turned to what replaces it."""
    if not replaced:
        return block
    ops = [
        replace(
            op,
            operands=tuple(resolve(value, replaced) for value in op.operands),
            blocks=tuple(substitute(inner, replaced) for inner in op.blocks),
        )
        for op in block.ops
    ]
    return Block(block.args, tuple(ops))

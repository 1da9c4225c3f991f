"""The text of a kernel: stable, readable, and complete but for hints and lines, so that it can be hashed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poot_executor.kernel.ir import Block, Kernel, Op, Val


def show(kernel: Kernel, *, hints: bool = False, lines: bool = False) -> str:
    """The kernel as text. Values are numbered in the order they are defined in, starting at %0.

    With `hints` a value is `%3.sum`, with `lines` an operation ends in `; file.py:12`: neither is part of the
    kernel's digest.
    """
    text = _Text(hints, lines)
    grid = "" if kernel.groups is None else " groups=" + "x".join(map(str, kernel.groups))
    resident = " resident" if kernel.resident else ""
    text.add(0, f"kernel {kernel.name} group_size={kernel.group_size}{grid}{resident}")
    for place, param in enumerate(kernel.params):
        count = "" if param.count is None else f"[{param.count}]"
        text.add(1, f"param {place} {param.name}: {param.dtype}{count} {param.access.value}")
    for place, array in enumerate(kernel.shared):
        text.add(1, f"shared {place} {array.name}: {array.dtype}[{array.count}]")
    text.block(kernel.body, 1)
    return "\n".join(text.lines) + "\n"


class _Text:
    def __init__(self, hints: bool, show_lines: bool) -> None:
        self.lines: list[str] = []
        self._hints = hints
        self._show_lines = show_lines
        self._numbers: dict[Val, int] = {}

    def add(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)

    def define(self, value: Val) -> str:
        self._numbers.setdefault(value, len(self._numbers))
        return self.name(value)

    def name(self, value: Val) -> str:
        number = self._numbers.get(value)
        if number is None:
            return "%undefined"
        return f"%{number}.{value.hint}" if self._hints and value.hint else f"%{number}"

    def block(self, block: Block, depth: int) -> None:
        for op in block.ops:
            self.op(op, depth)

    def op(self, op: Op, depth: int) -> None:
        operands = ", ".join(self.name(value) for value in op.operands)
        # Blocks come before results in the numbering: what a block defines is defined before the operation is done.
        head = " ".join(part for part in (op.kind, operands, _attrs(op.attrs)) if part)
        note = f"  ; {op.line}" if self._show_lines and op.line else ""
        if not op.blocks:
            results = ", ".join(self.define(value) for value in op.results)
            types = ", ".join(str(value.type) for value in op.results)
            self.add(depth, (f"{results} = " if results else "") + head + (f": {types}" if types else "") + note)
            return
        self.add(depth, head + note)
        for block in op.blocks:
            args = ", ".join(f"{self.define(value)}: {value.type}" for value in block.args)
            self.add(depth, f"({args}) {{" if args else "{")
            self.block(block, depth + 1)
            self.add(depth, "}")
        if op.results:
            self.add(depth, "-> " + ", ".join(f"{self.define(value)}: {value.type}" for value in op.results))


def _attrs(attrs: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={attrs[key]!s}" for key in sorted(attrs))

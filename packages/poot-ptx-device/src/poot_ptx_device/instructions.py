"""A kernel's instructions under construction: lines, labels, and the registers of values.

A value is a register for each of its lanes; PTX registers can be written any number of times, so what a loop carries
keeps its registers. A constant is written where it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.dtype import DType
from poot_executor.kernel.ir import Op, Val
from poot_ptx_device.operands import CLASSES, Lanes, is_literal, register_class


class Instructions:
    """What rules write into: `line` an instruction, `result` one with a new register."""

    def __init__(self) -> None:
        self._values: dict[Val, Lanes] = {}
        self._counts = dict.fromkeys(CLASSES, 0)
        self._labels = 0
        self._lines: list[str] = []

    def declarations(self) -> list[str]:
        """The registers that were taken, by type."""
        return [f".reg .{name} {CLASSES[name]}<{count}>;" for name, count in self._counts.items() if count]

    def taken(self) -> list[str]:
        """The lines so far, which are then the caller's."""
        lines, self._lines = self._lines, []
        return lines

    # Text

    def line(self, text: str) -> None:
        """An instruction."""
        self._lines.append(text + ";")

    def label(self) -> str:
        """A new label, not placed yet."""
        self._labels += 1
        return f"$L{self._labels}"

    def place(self, label: str) -> None:
        """The next instruction is where a label is."""
        self._lines.append(label + ":")

    def branch(self, label: str, condition: str = "", *, uniform: bool = False) -> None:
        """Go to a label, where the condition ("%p1", "!%p1") holds."""
        self.line((f"@{condition} " if condition else "") + ("bra.uni " if uniform else "bra ") + label)

    # Registers

    def fresh(self, name: str) -> str:
        """A new register of a type."""
        self._counts[name] += 1
        return f"{CLASSES[name]}{self._counts[name] - 1}"

    def result(self, name: str, instruction: str) -> str:
        """A new register with what an instruction gives: its text holds `{}` in the place of the register."""
        register = self.fresh(name)
        self.line(instruction.format(register))
        return register

    def registers(self, value: Val) -> Lanes:
        """New registers for a value, which from now on are its lanes."""
        lanes = tuple(self.fresh(register_class(value.dtype)) for _ in range(value.type.width))
        self._values[value] = lanes
        return lanes

    def alias(self, value: Val, lanes: Lanes) -> None:
        """Let a value be what is in existing registers or literals."""
        self._values[value] = lanes

    def lanes(self, value: Val) -> Lanes:
        """A value's registers or literals."""
        return self._values[value]

    def operands(self, op: Op) -> list[Lanes]:
        """The lanes of every operand, widened to the widest: a scalar is the same in each lane."""
        found = [self.lanes(value) for value in op.operands]
        width = max((len(lanes) for lanes in found), default=1)
        return [lanes * (width // len(lanes)) for lanes in found]

    def held(self, dtype: DType, operand: str) -> str:
        """The operand in a register, where an instruction takes no literal."""
        if not is_literal(operand):
            return operand
        name = register_class(dtype)
        if name == "pred":
            return self.result(name, f"setp.ne.u32 {{}}, {operand}, 0")
        return self.result(name, f"mov.b32 {{}}, {operand}")

    def move(self, dtype: DType, target: str, source: str) -> None:
        """Copy into an existing register."""
        name = register_class(dtype)
        if name == "pred" and is_literal(source):
            self.line(f"setp.ne.u32 {target}, {source}, 0")
        elif target != source:
            self.line(f"mov.{name} {target}, {source}")

    def scalar(self, value: Val) -> str:
        """The operand of a value of one lane."""
        (only,) = self.lanes(value)
        return only


def moves(e: Instructions, dtypes: Sequence[DType], targets: Sequence[str], sources: Sequence[str]) -> None:
    """Assign all at once: a source may be another's target."""
    overlaps = any(source in targets and source != target for target, source in zip(targets, sources, strict=True))
    if overlaps:
        held = []
        for dtype, source in zip(dtypes, sources, strict=True):
            copy = e.fresh(register_class(dtype))
            e.move(dtype, copy, source)
            held.append(copy)
        sources = held
    for dtype, target, source in zip(dtypes, targets, sources, strict=True):
        e.move(dtype, target, source)

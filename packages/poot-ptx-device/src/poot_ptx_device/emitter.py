"""Kernel IR to PTX text. Pure: equal kernels and caps give equal text; no library, no hardware.

A value is a register for each of its lanes; PTX registers can be written any number of times, so what a loop carries
keeps its registers. A constant is written where it is used. A kernel's parameters are, for each buffer in order, its
address and its element count (p0, n0, p1, n1, …), and where it has checks the address of the fault word.

A buffer access is guarded by that count, since nothing else in PTX does: a load reads the nearest element there is, a
store or an atomic operation outside does nothing. One whose index is known to lie inside what every launch binds needs
no guard. `Guards.NONE` leaves all of them out, for measuring what they cost.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum

from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, Op, Val
from poot_executor.kernel.passes.ranges import Range, Ranges
from poot_executor.kernel.rules import Rules
from poot_executor.kernel.uniform import Uniformity
from poot_ptx_device.architecture import architecture_of
from poot_ptx_device.caps import DEPENDENT_LAUNCH, EARLY_BYTES, EARLY_LOADS, WARP
from poot_ptx_device.early import EarlyLoads

ENTRY = "poot_kernel"
"""The entry point's name in every module."""

CLASSES = {"pred": "%p", "f32": "%f", "b32": "%r", "b64": "%rd", "b16": "%h"}
"""Register types and the names of their registers."""

Lanes = tuple[str, ...]
"""A value's operands: a register or a literal for each lane."""


class Guards(Enum):
    """Which buffer accesses are guarded."""

    ALL = "all"
    NONE = "none"


def register_class(dtype: DType) -> str:
    """The type of the registers that hold a dtype."""
    return {DType.F32: "f32", DType.BOOL: "pred"}.get(dtype, "b32")


def suffix(dtype: DType) -> str:
    """The instruction suffix of a number: f32, s32 or u32."""
    return {DType.F32: "f32", DType.I32: "s32"}.get(dtype, "u32")


def literal(dtype: DType, value: float) -> str:
    """A constant as an operand. A bool is 0 or 1."""
    if dtype is DType.F32:
        # Packing a Python float as f32 raises for one that is too large; a constant is exact, so it is not.
        return f"0f{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"
    return str(int(value))


def is_literal(operand: str) -> bool:
    """Whether an operand is a constant and no register."""
    return not operand.startswith("%")


class Emitter:
    """The text of one kernel under construction. Rules call `define`, `line`, `lanes` and `block`."""

    def __init__(self, kernel: Kernel, caps: Caps, rules: Rules[Rule], guards: Guards = Guards.ALL) -> None:
        self.kernel = kernel
        self.caps = caps
        self.guarded = guards is Guards.ALL
        self.ranges = Ranges(kernel)
        self.uniformity = Uniformity(kernel, WARP)
        self.uses = Counter(value for op in kernel.body.walk() for value in op.operands)
        self._rules = rules
        self._architecture = architecture_of(caps.features)
        self._values: dict[Val, Lanes] = {}
        self._counts = dict.fromkeys(CLASSES, 0)
        self._labels = 0
        self._early: set[Op] = set()
        self._head: list[str] = []
        self._lines: list[str] = []
        self._known: dict[tuple[str, int, int], str] = {}
        self._makers = {value: op for op in kernel.body.walk() for value in op.results}
        self._addresses: list[dict[tuple[int, str], str]] = [{}]

    def text(self) -> str:
        """The whole module. Raises Unsupported for an operation without a rule or capability."""
        waits = DEPENDENT_LAUNCH in self.caps.features
        if waits and self.guarded and EARLY_LOADS in self.caps.features and self._is_small():
            self._emit_early()
        early, self._lines = self._lines, []
        self.block(self.kernel.body)
        registers = [f".reg .{name} {CLASSES[name]}<{count}>;" for name, count in self._counts.items() if count]
        arrays = [
            f".shared .align 16 .b8 s{place}[{array.count * 4}];" for place, array in enumerate(self.kernel.shared)
        ]
        # Nothing that the grid ahead writes may be read, and nothing that it reads written, until it has ended. The
        # grid behind is launched as this one's groups end: earlier, its groups would take room that this one needs.
        ready = ["griddepcontrol.wait;"] * waits
        body = [*registers, *arrays, *self._head, *early, *ready, *self._lines, "ret;"]
        return "\n".join(
            [
                f"// {self.kernel.name}",
                f".version {self._architecture.version}",
                f".target {self._architecture.name}",
                ".address_size 64",
                "",
                f".visible .entry {ENTRY}(" + ", ".join(self._parameters()) + ")",
                f".reqntid {self.kernel.group_size}, 1, 1",
                "{",
                *(line if line.endswith(":") else "    " + line for line in body),
                "}",
                "",
            ]
        )

    def _is_small(self) -> bool:
        """Whether what no dispatch writes is known to be little: a large kernel's groups would take registers and
        bandwidth from the one ahead for longer than they save."""
        reads = [param.count for param in self.kernel.params if param.access is Access.READ]
        known = [count for count in reads if count is not None]
        return len(known) == len(reads) and sum(4 * count for count in known) <= EARLY_BYTES

    def _emit_early(self) -> None:
        """The loads before the wait for the kernel ahead. Their operands are computed again where they belong."""
        found = EarlyLoads(self.kernel)
        done: set[Op] = set()
        for load in found.loads:
            for step in found.steps(load.operands[0]):
                if step not in done:
                    self._rules[step](self, step)
                    done.add(step)
            self._rules[load](self, load)
            self._early.add(load)

    def _parameters(self) -> list[str]:
        found = [f".param .u64 p{place}, .param .u32 n{place}" for place in range(len(self.kernel.params))]
        return [*found, ".param .u64 fault"] if self.kernel.checks else found

    def block(self, block: Block) -> tuple[Val, ...]:
        """Emit a block's operations. Returns the operands of its yield; a kernel's body has none."""
        self._addresses.append({})
        try:
            return self._operations(block)
        finally:
            self._addresses.pop()

    def _operations(self, block: Block) -> tuple[Val, ...]:
        for op in block.ops:
            if op.kind == "yield":
                return op.operands
            if op in self._early:
                continue
            rule = self._rules[op]
            needs = KERNEL_OPS[op.kind].needs
            if needs is not None and needs not in self.caps.features:
                raise Unsupported(f"ptx: {op.kind} in kernel {self.kernel.name}", f"this device lacks {needs}")
            rule(self, op)
        return ()

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

    def range_of(self, value: Val) -> Range:
        """What an integer is known to lie in."""
        return self.ranges.of(value)

    # What is computed once, before anything else

    def once(self, key: tuple[str, int, int], name: str, *instructions: str) -> str:
        """A register that the kernel's first instructions set: each text holds `{}` in the place of the register."""
        if key not in self._known:
            self._known[key] = self.fresh(name)
            self._head += [text.format(self._known[key]) + ";" for text in instructions]
        return self._known[key]

    def address(self, place: int) -> str:
        """A buffer's address in global memory."""
        return self.once(("p", place, 0), "b64", f"ld.param.u64 {{0}}, [p{place}]", "cvta.to.global.u64 {0}, {0}")

    def count(self, place: int) -> str:
        """A buffer's element count."""
        return self.once(("n", place, 0), "b32", f"ld.param.u32 {{}}, [n{place}]")

    def end(self, place: int, width: int) -> str:
        """The count, cut to whole vectors."""
        count = self.count(place)
        return count if width == 1 else self.once(("end", place, width), "b32", f"and.b32 {{}}, {count}, {-width}")

    def last(self, place: int, width: int) -> str:
        """The index of the last whole vector. An allocation is never shorter than a vector."""
        end = self.end(place, width)
        atleast = end if width == 1 else self.once(("least", place, width), "b32", f"max.u32 {{}}, {end}, {width}")
        return self.once(("last", place, width), "b32", f"sub.u32 {{}}, {atleast}, {width}")

    def fault(self) -> str:
        """The address of the fault word."""
        return self.once(("fault", 0, 0), "b64", "ld.param.u64 {0}, [fault]", "cvta.to.global.u64 {0}, {0}")

    def inside(self, place: int, index: Val, width: int) -> bool:
        """Whether an access of `width` elements is known to lie in what every launch binds."""
        count, known = self.kernel.params[place].count, self.range_of(index)
        return count is not None and known.low >= 0 and known.high + width <= count

    def element(self, place: int, index: Val) -> str:
        """The address of an element that needs no guard, in brackets: what is near a known address is an offset from
        it."""
        base, offset = index, 0
        while (made := self._makers.get(base)) is not None and made.kind == "add":
            left, right = made.operands
            constant = self.constant(right)
            if constant is None or self.range_of(left).low < 0:
                break
            base, offset = left, offset + constant
        if (constant := self.constant(base)) is not None:
            return f"[{self.address(place)}+{4 * (offset + constant)}]"
        register = self.scalar(base)
        if is_literal(register) or not -(1 << 20) < offset < 1 << 20:
            return element(self, place, self.scalar(index))
        address = next((found[place, register] for found in self._addresses if (place, register) in found), None)
        if address is None:
            address = self.result("b64", f"mad.wide.u32 {{}}, {register}, 4, {self.address(place)}")
            self._addresses[-1][place, register] = address
        return f"[{address}+{4 * offset}]" if offset else f"[{address}]"

    def maker(self, value: Val, kind: str) -> Op | None:
        """The operation that makes a value, where it is of a kind."""
        made = self._makers.get(value)
        return made if made is not None and made.kind == kind else None

    def constant(self, value: Val) -> int | None:
        """The number that an integer is, where it is a constant."""
        made = self.maker(value, "const")
        return None if made is None else made.attrs["value"]

    def reads_only(self, place: int) -> bool:
        """Whether no dispatch ever writes the buffer, so that loads may go past coherence."""
        return self.kernel.params[place].access is Access.READ


Rule = Callable[[Emitter, Op], None]
"""Emits one operation."""


def element(e: Emitter, place: int, index: str) -> str:
    """The address of an element, in brackets: indices are widened here."""
    if is_literal(index):
        return f"[{e.address(place)}+{4 * int(index)}]"
    return f"[{e.result('b64', f'mad.wide.u32 {{}}, {index}, 4, {e.address(place)}')}]"


def moves(e: Emitter, dtypes: Sequence[DType], targets: Sequence[str], sources: Sequence[str]) -> None:
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

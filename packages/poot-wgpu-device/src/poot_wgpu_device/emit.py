"""Kernel IR to WGSL text. Pure: equal kernels and caps give equal text; no library, no hardware.

Values are `let`, what a loop carries is `var`. A constant is written where it is used, unless every operand is one:
WGSL would then evaluate the expression itself and reject overflow. Parameters are the bindings of group 0 in order; a
kernel that may fault has the fault word as one more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import numpy as np

from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, KType, Op, Val
from poot_executor.kernel.passes.expand import expand_routines
from poot_executor.kernel.routines import ROUTINES
from poot_executor.kernel_limits import check_limits
from poot_executor.known_answers import PACK_HALF, UNPACK_HALF
from poot_executor.loop_watch import CUT_SHORT, watches_loops
from poot_wgpu_device.routines import routine_text

ENTRY = "main"
"""The entry point's name in every module."""

BUILTINS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "group": ("workgroup_id", "vec3<u32>"),
        "thread": ("local_invocation_index", "u32"),
        "lane": ("subgroup_invocation_id", "u32"),
        "subgroup": ("subgroup_id", "u32"),
        "subgroup_width": ("subgroup_size", "u32"),
    }
)
"""Arguments that the entry point may take: WGSL builtin and type."""

_CONVERSIONS = MappingProxyType({"half_to_float": UNPACK_HALF, "float_to_half": PACK_HALF})
"""Operations with a builtin and a routine: the builtin where its known answers were right on this device."""


def type_name(type: KType) -> str:
    """`f32`, `vec4<u32>`."""
    return str(type.dtype) if type.width == 1 else f"vec{type.width}<{type.dtype}>"


class Emitter:
    """The text of one kernel under construction. Rules call `define`, `line` and `block`. `kernel` is what is emitted,
    `identity` what a fault word names."""

    def __init__(self, kernel: Kernel, caps: Caps, rules: Mapping[str, Callable[[Emitter, Op], None]]) -> None:
        self.identity = kernel.identity
        replaced = {
            name: routine
            for name, routine in ROUTINES.items()
            if name not in _CONVERSIONS or _CONVERSIONS[name] not in caps.features
        }
        self.kernel = expand_routines(kernel, replaced)
        self.caps = caps
        self.accesses = Accesses(kernel)
        self.watched = watches_loops(kernel, caps)
        self._rules = rules
        self._names: dict[Val, str] = {}
        self._constants: dict[Val, str] = {}
        self._values: dict[Val, int | float | bool] = {}
        self._routines: set[str] = set()
        self._builtins: set[str] = set()
        self._lines: list[str] = []
        self._depth = 1
        self._temporaries = 0

    def text(self) -> str:
        """The whole module. Raises Unsupported for an operation without a rule or capability."""
        if self.watched:
            self.line("var cut_short: bool = false;")
        self.block(self.kernel.body)
        if self.watched:
            self.fault("cut_short", CUT_SHORT)
        arguments = ", ".join(
            f"@builtin({BUILTINS[b][0]}) {b}: {BUILTINS[b][1]}" for b in BUILTINS if b in self._builtins
        )
        head = [f"// {self.kernel.name}", *self._declarations()]
        routines = routine_text(self._routines)
        body = [
            "",
            f"@compute @workgroup_size({self.kernel.group_size})",
            f"fn {ENTRY}({arguments}) {{",
            *self._lines,
            "}",
            "",
        ]
        return "\n".join(head + (["", routines] if routines else []) + body)

    def _declarations(self) -> Iterator[str]:
        for place, param in enumerate(self.kernel.params):
            access = "read" if param.access is Access.READ else "read_write"
            element = self._element(
                param.dtype, place in self.accesses.atomic_buffers, place in self.accesses.vector_buffers
            )
            yield f"@group(0) @binding({place}) var<storage, {access}> {self.buffer(place)}: array<{element}>;"
        if self.kernel.checks or self.watched:
            yield f"@group(0) @binding({len(self.kernel.params)}) var<storage, read_write> fault: array<atomic<u32>>;"
        for place, array in enumerate(self.kernel.shared):
            element = self._element(array.dtype, place in self.accesses.atomic_arrays, False)
            yield f"var<workgroup> {self.array(place)}: array<{element}, {array.count}>;"

    @staticmethod
    def _element(dtype: DType, atomic: bool, vector: bool) -> str:
        return f"atomic<{dtype}>" if atomic else f"vec4<{dtype}>" if vector else str(dtype)

    def buffer(self, place: int) -> str:
        """The name of a parameter: its place keeps names apart."""
        return f"b{place}_{re.sub(r'[^A-Za-z0-9_]', '_', self.kernel.params[place].name)}"

    def array(self, place: int) -> str:
        """The name of a shared array."""
        return f"s{place}_{re.sub(r'[^A-Za-z0-9_]', '_', self.kernel.shared[place].name)}"

    def block(self, block: Block) -> tuple[Val, ...]:
        """Emit a block's operations. Returns the operands of its yield; a kernel's body has none."""
        for op in block.ops:
            if op.kind == "yield":
                return op.operands
            rule = self._rules.get(op.kind)
            row = KERNEL_OPS.get(op.kind)
            if rule is None or row is None:
                raise Unsupported(self.where(op), "the WGSL emitter has no rule for it")
            if row.needs is not None and row.needs not in self.caps.features:
                raise Unsupported(self.where(op), f"this device lacks {row.needs}")
            rule(self, op)
        return ()

    def where(self, op: Op) -> str:
        """`wgpu: dot4(u32, u32, i32) in kernel name, file:line`, for errors."""
        types = ", ".join(str(value.type) for value in op.operands)
        return f"wgpu: {op.kind}({types}) in kernel {self.kernel.name}" + (f", {op.line}" if op.line else "")

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """`head {`, what is emitted inside, `}`."""
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def fault(self, condition: str, code: int) -> None:
        """Set the fault word where the condition holds: the kernel's identity and the code. Of several the greatest
        stays."""
        with self.braces(f"if ({condition})"):
            self.line(f"atomicMax(&fault[0], {self.identity << 8 | code}u);")

    def use(self, *names: str) -> None:
        """Take routines along."""
        self._routines.update(names)

    def builtin(self, name: str) -> str:
        """The name of an argument of the entry point, which then takes it."""
        self._builtins.add(name)
        return name

    def fresh(self, value: Val) -> str:
        """A new name for a value: v and its number."""
        name = f"v{len(self._names)}"
        self._names[value] = name
        return name

    def alias(self, value: Val, name: str) -> None:
        """Let a value be known by an existing name."""
        self._names[value] = name

    def define(self, op: Op, expression: str) -> None:
        """`let` for the operation's one result."""
        self.line(f"let {self.fresh(op.result)} = {expression};")

    def constant(self, op: Op) -> None:
        """Remember a constant; it is written where it is used."""
        value = op.attrs["value"]
        self._values[op.result] = value
        self._constants[op.result] = self._literal(op.result.dtype, value)

    def constant_value(self, value: Val) -> int | float | bool | None:
        """The number that a value is known to be."""
        return self._values.get(value)

    def operand(self, value: Val) -> str:
        """How to write a value: its name, or its literal."""
        return self._names[value] if value in self._names else self._constants[value]

    def operands(self, op: Op) -> list[str]:
        """All operands. Where all are constants the first is named, so that WGSL does not evaluate the operation."""
        written = [self.operand(value) for value in op.operands]
        if written and all(value in self._constants for value in op.operands):
            written[0] = self.named(written[0])
        return written

    def named(self, expression: str) -> str:
        """The name of a new `let` for an expression."""
        name = f"c{self._temporaries}"
        self._temporaries += 1
        self.line(f"let {name} = {expression};")
        return name

    def named_var(self, type: str, value: str) -> str:
        """The name of a new `var`."""
        name = f"c{self._temporaries}"
        self._temporaries += 1
        self.line(f"var {name}: {type} = {value};")
        return name

    def _literal(self, dtype: DType, value: float | bool) -> str:
        if dtype is DType.BOOL:
            return "true" if value else "false"
        if dtype is DType.U32:
            return f"{value}u"
        if dtype is DType.I32:
            # −2³¹ has no i32 literal: its digits alone do not fit.
            return "i32(-2147483648)" if value == -(1 << 31) else f"{value}i" if value >= 0 else f"({value}i)"
        number = np.float32(value)
        if not np.isfinite(number) or 0 < abs(number) < np.finfo(np.float32).tiny:
            # WGSL has no infinite or NaN literal and may flush a denormal one.
            self.use("poot_bits")
            return f"poot_bits({number.view(np.uint32):#010x}u)"
        plain = number == 0 or 1e-3 <= abs(number) < 1e7
        digits = str(number) if plain else np.format_float_scientific(number, unique=True, trim="0")
        return f"({digits}f)" if np.signbit(number) else f"{digits}f"


class Accesses:
    """How a kernel's memory is used: what must be atomic, and which buffers are only ever accessed four elements at a
    time."""

    def __init__(self, kernel: Kernel) -> None:
        self.atomic_buffers: set[int] = set()
        self.atomic_arrays: set[int] = set()
        loaded: set[int] = set()
        stored: set[int] = set()
        widths: dict[int, set[int]] = {}
        for op in kernel.body.walk():
            if op.kind == "atomic":
                if "buffer" in op.attrs:
                    self.atomic_buffers.add(op.attrs["buffer"])
                else:
                    self.atomic_arrays.add(op.attrs["array"])
            elif op.kind == "load":
                loaded.add(op.attrs["buffer"])
                widths.setdefault(op.attrs["buffer"], set()).add(op.result.type.width)
            elif op.kind == "store":
                stored.add(op.attrs["buffer"])
                widths.setdefault(op.attrs["buffer"], set()).add(op.operands[1].type.width)
            elif op.kind == "length":
                # The length of an array of vectors is cut to whole vectors.
                widths.setdefault(op.attrs["buffer"], set()).add(1)
        self.vector_buffers = {place for place, seen in widths.items() if seen == {4}} - self.atomic_buffers
        self.exchanges = bool(loaded & stored or self.atomic_buffers)
        """Whether threads may pass values through a buffer, which a barrier then has to cover."""


def emit(kernel: Kernel, caps: Caps) -> str:
    """The WGSL of a kernel. Raises Unsupported naming the operation and its types."""
    from poot_wgpu_device.rules import RULES

    check_limits("wgpu", kernel, caps)
    return Emitter(kernel, caps, RULES).text()

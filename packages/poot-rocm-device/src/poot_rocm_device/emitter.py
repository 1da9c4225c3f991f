"""Kernel IR to HIP text. Pure: equal kernels and caps give equal text; no compiler, no hardware.

A value is an expression for each of its lanes: a name, or a literal where it is a constant. What a loop carries, and
what an if gives, are variables. A kernel's parameters are as `kernarg` lays them out: p0, p1, … the buffers, `fault`
where it has checks, n0, n1, … their element counts.

A buffer access is guarded by its count, since nothing else is on this machine: a load reads the nearest element there
is, a store or an atomic operation outside does nothing. One whose index is known to lie inside what every launch binds
needs no guard.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from poot_executor.compile.target import Caps
from poot_executor.errors import Unsupported
from poot_executor.kernel.fragments import FragmentType
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, KType, Op, Val
from poot_executor.kernel.known_indices import KnownIndices
from poot_executor.kernel.rules import Rules
from poot_executor.kernel.uniform import Uniformity
from poot_rocm_device.architecture import architecture_of
from poot_rocm_device.fragment_text import fragment_name

Lanes = tuple[str, ...]
"""A value's operands: an expression for each lane."""


ALIGNMENT = 16
"""Bytes between which shared arrays begin."""

TOGETHER = frozenset(
    {
        "barrier", "subgroup_sum", "subgroup_max", "subgroup_min", "subgroup_shuffle", "subgroup_shuffle_xor",
    }
)  # fmt: skip
"""Operations at which threads wait for others."""


def lane_types(type: KType) -> tuple[str, ...]:
    """The C types of a value's expressions: one for each lane, or one for a fragment, which no lane has alone."""
    if isinstance(type, FragmentType):
        return (fragment_name(type),)
    return (str(type.dtype),) * type.width


def entry_name(kernel: Kernel) -> str:
    """The symbol of a kernel: unlike that of every other kernel, and readable in a profile."""
    return f"{re.sub('[^A-Za-z0-9_]', '_', kernel.name)}_{kernel.digest().hex()[:16]}"


def type_name(type: KType) -> str:
    """`f32`, `i32x4`."""
    return str(type)


class Emitter(KnownIndices):
    """The text of one kernel under construction. Rules call `define`, `line`, `lanes` and `block`; `routines` are the
    elementary functions that it calls.
    """

    def __init__(self, kernel: Kernel, caps: Caps, rules: Rules[Rule]) -> None:
        super().__init__(kernel)
        self.caps = caps
        self.architecture = architecture_of(caps.features)
        self.wave = self.architecture.wave
        self.uniformity = Uniformity(kernel, self.wave)
        self.uses = Counter(value for op in kernel.body.walk() for value in op.operands)
        self._rules = rules
        self._values: dict[Val, Lanes] = {}
        self.routines: set[str] = set()
        self.uses_fragments = False
        self._names = 0
        self._depth = 1
        self._lines: list[str] = []
        self._heads: dict[str, str] = {}

    def text(self) -> str:
        """The kernel without what comes before it. Raises Unsupported for an operation without a rule or capability."""
        self.block(self.kernel.body)
        arrays, shared = self._arrays()
        together = "POOT_TOGETHER" if any(op.kind in TOGETHER for op in self.kernel.body.walk()) else "POOT_APART"
        lines = [
            f"POOT_KERNEL({self.kernel.group_size}, {together}, {shared})",
            f"{entry_name(self.kernel)}({', '.join(self._parameters())})",
            "{",
            *arrays,
            *(f"    {line}" for line in self._heads.values()),
            *self._lines,
            "}",
        ]
        return "\n".join([*lines, ""])

    def _parameters(self) -> Iterator[str]:
        for place, param in enumerate(self.kernel.params):
            # What no dispatch writes lies in nothing that this kernel writes.
            plain = f"{param.dtype} *p{place}"
            yield f"const {param.dtype} *__restrict__ p{place}" if param.access is Access.READ else plain
        if self.kernel.checks:
            yield "u32 *fault"
        for place in range(len(self.kernel.params)):
            yield f"const u32 n{place}"

    def _arrays(self) -> tuple[list[str], int]:
        """Declarations of shared memory, and its bytes. Each array begins where a vector may."""
        lines, offset = [], 0
        for place, array in enumerate(self.kernel.shared):
            lines.append(f"    POOT_SHARED({array.dtype}, s{place}, {array.count}, {offset});")
            offset += -(-4 * array.count // ALIGNMENT) * ALIGNMENT
        return lines, offset

    def block(self, block: Block) -> tuple[Val, ...]:
        """Emit a block's operations. Returns the operands of its yield; a kernel's body has none."""
        for op in block.ops:
            if op.kind == "yield":
                return op.operands
            rule = self._rules[op]
            needs = KERNEL_OPS[op.kind].needs
            if needs is not None and needs not in self.caps.features:
                raise Unsupported(f"rocm: {op.kind} in kernel {self.kernel.name}", f"this device lacks {needs}")
            rule(self, op)
        return ()

    # Text

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def braces(self, head: str) -> Generator[None]:
        """`head {`, what is emitted inside, `}`."""
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def use(self, routine: str) -> None:
        """Take an elementary function along."""
        self.routines.add(routine)

    def once(self, name: str, definition: str) -> str:
        """A name that the kernel's first lines define."""
        self._heads.setdefault(name, definition)
        return name

    # Values

    def fresh(self) -> str:
        """A new name."""
        self._names += 1
        return f"v{self._names - 1}"

    def result(self, type: str, expression: str) -> str:
        """A new name for an expression."""
        name = self.fresh()
        self.line(f"const {type} {name} = {expression};")
        return name

    def define(self, op: Op, expressions: Sequence[str]) -> None:
        """Names for the lanes of the operation's one result."""
        types = lane_types(op.result.type)
        self.alias(op.result, tuple(self.result(type, text) for type, text in zip(types, expressions, strict=True)))

    def variables(self, value: Val) -> Lanes:
        """New variables, not set yet, which from now on are a value's lanes."""
        types = lane_types(value.type)
        lanes = tuple(self.fresh() for _ in types)
        for type, lane in zip(types, lanes, strict=True):
            self.line(f"{type} {lane};")
        self._values[value] = lanes
        return lanes

    def alias(self, value: Val, lanes: Lanes) -> None:
        """Let a value be what existing expressions give."""
        self._values[value] = lanes

    def lanes(self, value: Val) -> Lanes:
        """A value's expressions."""
        return self._values[value]

    def operands(self, op: Op) -> list[Lanes]:
        """The lanes of every operand, widened to the widest: a scalar is the same in each lane."""
        found = [self.lanes(value) for value in op.operands]
        width = max((len(lanes) for lanes in found), default=1)
        return [lanes * (width // len(lanes)) for lanes in found]

    def scalar(self, value: Val) -> str:
        """The expression of a value of one lane."""
        (only,) = self.lanes(value)
        return only

    def vector(self, value: Val) -> str:
        """All lanes as one C vector or scalar."""
        lanes = self.lanes(value)
        return lanes[0] if len(lanes) == 1 else f"({type_name(value.type)}){{{', '.join(lanes)}}}"

    # Memory

    def element(self, place: int, index: Val) -> str:
        """The address of an element that needs no guard: what is near another one is an offset from it."""
        base, offset = self.near(index)
        known = self.constant(base)
        start = f"p{place}" if known is not None else f"poot_at(p{place}, (u32){self.scalar(base)})"
        offset += known or 0
        return f"{start} + {offset}" if offset else start

    def last(self, place: int, width: int) -> str:
        """The index of the last whole vector of a buffer."""
        return self.once(f"last{place}_{width}", f"const u32 last{place}_{width} = poot_last(n{place}, {width}u);")

    def end(self, place: int, width: int) -> str:
        """A buffer's count, cut to whole vectors."""
        if width == 1:
            return f"n{place}"
        return self.once(f"end{place}_{width}", f"const u32 end{place}_{width} = n{place} & {-width & 0xFFFFFFFF}u;")


Rule = Callable[[Emitter, Op], None]
"""Emits one operation."""


def assign(e: Emitter, types: Sequence[str], targets: Sequence[str], sources: Sequence[str]) -> None:
    """Set variables of those C types all at once: a source may be another's target."""
    if any(source in targets and source != target for target, source in zip(targets, sources, strict=True)):
        sources = [e.result(type, source) for type, source in zip(types, sources, strict=True)]
    for target, source in zip(targets, sources, strict=True):
        if target != source:
            e.line(f"{target} = {source};")

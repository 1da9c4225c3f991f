"""Kernel IR to PTX text. Pure: equal kernels and caps give equal text; no library, no hardware.

A value is a register for each of its lanes; PTX registers can be written any number of times, so what a loop carries
keeps its registers. A constant is written where it is used. A kernel's parameters are, for each buffer in order, its
address and its element count (p0, n0, p1, n1, …), and where it has checks the address of the fault word.

A buffer access is guarded by that count, since nothing else in PTX does: a load reads the nearest element there is, a
store or an atomic operation outside does nothing. One whose index is known to lie inside what every launch binds needs
no guard. `Guards.NONE` leaves all of them out, for measuring what they cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import groupby

from poot_executor.compile.target import Caps
from poot_executor.errors import Unsupported
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, Op, Val
from poot_executor.kernel.rules import Rules
from poot_executor.kernel.uniform import Uniformity
from poot_ptx_device.addresses import SHARED_MEMORY, Addresses
from poot_ptx_device.architecture import architecture_of
from poot_ptx_device.caps import DEPENDENT_LAUNCH, EARLY_BYTES, EARLY_LAUNCH, EARLY_LOADS, WARP
from poot_ptx_device.early import EarlyLoads
from poot_ptx_device.flights import PRODUCT, Flights
from poot_ptx_device.residency import bounds

ENTRY = "poot_kernel"
"""The entry point's name in every module."""


def _homes(block: Block) -> Iterator[tuple[Val, Block]]:
    """Values with registers of their own, and the block of each: what control flow carries, and sums of products."""
    yield from ((value, block) for value in block.args)
    for op in block.ops:
        if op.blocks or op.kind == PRODUCT:
            yield from ((value, block) for value in op.results)
        for inner in op.blocks:
            yield from _homes(inner)


class Guards(Enum):
    """Which buffer accesses are guarded."""

    ALL = "all"
    NONE = "none"


class Emitter(Addresses):
    """The text of one kernel under construction. Rules call `define`, `line`, `lanes` and `block`."""

    def __init__(self, kernel: Kernel, caps: Caps, rules: Rules[Rule], guards: Guards = Guards.ALL) -> None:
        super().__init__(kernel)
        self.caps = caps
        self.guarded = guards is Guards.ALL
        self.uniformity = Uniformity(kernel, WARP)
        self.uses = Counter(value for op in kernel.body.walk() for value in op.operands)
        self._rules = rules
        self._architecture = architecture_of(caps.features)
        self.flights = Flights()
        self._early: set[Op] = set()
        self._homes = dict(_homes(kernel.body)) if self.multiplies else {}

    def text(self) -> str:
        """The whole module. Raises Unsupported for an operation without a rule or capability."""
        waits = DEPENDENT_LAUNCH in self.caps.features
        if waits and self.guarded and EARLY_LOADS in self.caps.features and self._is_small():
            self._emit_early()
        early = self.taken()
        self.block(self.kernel.body)
        # Nothing that the grid ahead writes may be read, and nothing that it reads written, until it has ended. The
        # grid behind is launched as this one's groups end, or where that is asked for once all have started: what it
        # does before its own wait then takes room and bandwidth that a large grid needs.
        launch = waits and EARLY_LAUNCH in self.caps.features and self._is_small()
        ready = ["griddepcontrol.launch_dependents;"] * launch + ["griddepcontrol.wait;"] * waits
        body = [*self.declarations(), *self.shared_declarations(), *self._head, *early, *ready, *self.taken(), "ret;"]
        return "\n".join(
            [
                f"// {self.kernel.name}",
                f".version {self._architecture.version}",
                f".target {self._architecture.name}",
                ".address_size 64",
                "",
                *([] if not self.dynamic else [SHARED_MEMORY]),
                f".visible .entry {ENTRY}(" + ", ".join(self._parameters()) + ")",
                f".reqntid {self.kernel.group_size}, 1, 1",
                *bounds(self.kernel),
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
        found = EarlyLoads(self.kernel, guarded=EARLY_LAUNCH in self.caps.features)
        done: set[Op] = set()
        for guard, loads in groupby(found.loads, key=lambda load: load.guard):
            together = [load.op for load in loads]
            for value in (*(condition for condition, _ in guard), *(op.operands[0] for op in together)):
                for step in found.steps(value):
                    if step not in done:
                        self._rules[step](self, step)
                        done.add(step)
            past = self.label() if guard else ""
            for condition, wanted in guard:
                flag = self.held(condition.dtype, self.scalar(condition))
                self.branch(past, f"!{flag}" if wanted else flag, uniform=self.uniformity.value(condition))
            # Addresses that are computed here are not known behind it.
            self._addresses.append({})
            for op in together:
                self._rules[op](self, op)
            self._addresses.pop()
            self._early.update(together)
            if guard:
                self.place(past)

    def _parameters(self) -> list[str]:
        found = [f".param .u64 p{place}, .param .u32 n{place}" for place in range(len(self.kernel.params))]
        return [*found, ".param .u64 fault"] if self.kernel.checks else found

    def block(self, block: Block, loop: Op | None = None) -> tuple[Val, ...]:
        """Emit a block's operations, the body's of a `loop` where there is one. Returns the operands of its yield; a
        kernel's body has none."""
        self._addresses.append({})
        # What is in flight already has no more products here: they would have been waited for.
        outside = bool(self.flights)
        try:
            for op in block.ops:
                if op.kind == "yield":
                    if not outside:
                        self._end(block, loop)
                    return op.operands
                if op not in self._early:
                    self._operation(op)
            self._land()
            return ()
        finally:
            self._addresses.pop()

    def _operation(self, op: Op) -> None:
        rule = self._rules[op]
        needs = KERNEL_OPS[op.kind].needs
        if needs is not None and needs not in self.caps.features:
            raise Unsupported(f"ptx: {op.kind} in kernel {self.kernel.name}", f"this device lacks {needs}")
        if self.flights.must_land(op):
            self._land()
        rule(self, op)

    def _land(self) -> None:
        """Wait for every product in flight."""
        if self.flights:
            self.line("wgmma.wait_group.sync.aligned 0")
            self.flights.land()

    def _end(self, block: Block, loop: Op | None) -> None:
        """A block's end: products stay in flight where they are a loop's, in the registers that it carries."""
        if not self.flights:
            return
        yields = block.ops[-1].operands
        results = () if loop is None else loop.results
        pairs = zip(yields, results, strict=False)
        same = all(self.lanes(a) == self.lanes(b) for a, b in pairs if self.flights.has(a))
        if loop is not None and same and self.flights.carries(block):
            self.flights.leave(results, yields)
        else:
            self._land()

    def ends_in(self, value: Val, op: Op) -> bool:
        """Whether an operation is the one use of a value whose registers are its own, made in the same block: as often
        as the operation runs, they are made again."""
        home = self._homes.get(value)
        return home is not None and self.uses[value] == 1 and any(inner is op for inner in home.ops)


Rule = Callable[[Emitter, Op], None]
"""Emits one operation."""

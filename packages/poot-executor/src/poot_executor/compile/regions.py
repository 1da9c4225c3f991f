"""Regions: which values get a kernel of their own, and what each kernel computes.

A region is an anchor with the pointwise work around it. Forming regions is deciding which values are *stored*, that is,
written to a buffer; everything else is an expression that the region reading it computes at the index it needs.

One walk from the last equation to the first decides, for whether a value is stored depends on its readers alone:

- an output, a next state, a check, what a scatter updates and what would make an expression too long are stored;
- a contraction, selection or scatter is stored, unless it is absorbed: the stored elementwise value over it is then its
epilogue;
- a reduction is stored, unless one region reads it and reads it row by row: that region is then a row reduction; one of
a few elements that lie apart is part of an expression;
- any other value is stored when several regions read it, or one region reads each element many times, and it is dear to
compute.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from enum import Enum

from poot_executor.compile.classify import (
    ANCHORS,
    ELEMENTWISE,
    INDEX_MOVES,
    REDUCTIONS,
    SCATTERS,
    SWEEPS,
    is_short,
    operations,
    weight_of,
    weight_view,
)  # fmt: skip
from poot_executor.compile.extent import long_expressions
from poot_executor.compile.program import Decline
from poot_executor.compile.region import Region, Regions
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Graph, Value


class Role(Enum):
    """How a region reads a value: FULL has an element for each of the region's, SCALAR one for each of its rows, FREE
    anything else."""

    FULL = "full"
    SCALAR = "scalar"
    FREE = "free"


KINDS = {
    "indexed_matmul": "indexed_contraction", "argmax": "argmax", "arg_top_k": "top_k", "scatter_update": "scatter",
    "dynamic_update_slice": "update_slice", "random_bits": "random_bits", "sample_token": "sample",
}  # fmt: skip


ROUNDS = 4


def form_regions(graph: Graph, needed: Set[Value] = frozenset()) -> Regions:
    """Decide what is stored and group the rest around it. `needed` are values to store in any case.

    What a value costs to recompute depends on which values under it are stored, and those are decided after it: so the
    walk is repeated with what the last one stored, until nothing changes. Every round is valid by itself.

    Where expressions are too long depends on it too: a first walk cuts them as if only inputs were stored, and those
    that what it stored besides makes short enough stay whole.
    """
    inputs = frozenset(i.value for i in graph.inputs)
    cuts = long_expressions(graph, inputs)
    if not cuts:
        return _settled(graph, inputs, needed, cuts).result()
    fewer = long_expressions(graph, _walk(graph, inputs, needed, cuts).anyway)
    former = _settled(graph, inputs, needed, fewer)
    if long_expressions(graph, former.stored):
        former = _settled(graph, inputs, needed, cuts)
    return former.result()


def _settled(graph: Graph, assumed: frozenset[Value], needed: Set[Value], cuts: frozenset[Value]) -> _Former:
    former = _walk(graph, assumed, needed, cuts)
    for _ in range(1, ROUNDS):
        if former.stored == assumed:
            break
        assumed = frozenset(former.stored)
        former = _walk(graph, assumed, needed, cuts)
    return former


def _walk(graph: Graph, assumed: frozenset[Value], needed: Set[Value], cuts: frozenset[Value]) -> _Former:
    former = _Former(graph, assumed, cuts)
    former.needed |= needed
    for equation in reversed(graph.equations):
        former.visit(equation)
    return former


@dataclass(slots=True)
class _Former:
    """One walk. `anyway` are the values that are stored also where no expression is cut at them."""

    graph: Graph
    assumed: frozenset[Value]
    cuts: frozenset[Value]
    anyway: set[Value] = field(default_factory=set)
    readers: dict[Value, list[Equation]] = field(default_factory=dict)
    wanted: set[Value] = field(default_factory=set)
    needed: set[Value] = field(default_factory=set)
    stored: set[Value] = field(default_factory=set)
    homes: dict[Value, set[Value]] = field(default_factory=dict)
    roles: dict[Value, Role] = field(default_factory=dict)
    hot: set[Value] = field(default_factory=set)
    epilogue: dict[Value, Equation] = field(default_factory=dict)
    absorbed: set[Value] = field(default_factory=set)
    reductions: dict[Value, list[Equation]] = field(default_factory=dict)
    declines: list[Decline] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanted = set(self.graph.roots())
        self.stored = {i.value for i in self.graph.inputs}
        self.anyway = set(self.stored)
        for equation in self.graph.equations:
            for operand in dict.fromkeys(equation.inputs):
                self.readers.setdefault(operand, []).append(equation)
            if equation.op in SCATTERS:
                self.needed.add(equation.inputs[0])

    def visit(self, equation: Equation) -> None:
        value = equation.output
        if value not in self.wanted and not self.homes.get(value):
            return
        homes = self.homes.setdefault(value, set())
        anyway = self._store(equation, homes)
        if anyway:
            self.anyway.add(value)
        if anyway or value in self.cuts:
            self.stored.add(value)
            self.homes[value] = homes = {value}
            self.roles[value] = Role.FULL
            if equation.op in ELEMENTWISE or equation.op == "reshape":
                self._absorb(equation)
        elif equation.op in REDUCTIONS and not is_short(equation):
            self.reductions.setdefault(next(iter(homes)), []).append(equation)
        for place, operand in enumerate(equation.inputs):
            self.homes.setdefault(operand, set()).update(homes)
            role = self._operand_role(equation, operand)
            self.roles[operand] = role if self.roles.get(operand, role) is role else Role.FREE
            if self._reads_often(equation, operand, place):
                self.hot.add(operand)

    def _store(self, equation: Equation, homes: set[Value]) -> bool:
        value = equation.output
        if value in self.wanted or value in self.needed:
            return True
        if equation.op in ANCHORS:
            return value not in self.absorbed
        if equation.op in REDUCTIONS and not is_short(equation):
            return not self._inside_rows(equation, homes)
        if equation.op in INDEX_MOVES or weight_view(self.graph, value) is not None:
            return False  # What it moves is stored instead, where that pays.
        narrows = equation.op == "cast" and value.dtype.size < equation.inputs[0].dtype.size
        if narrows and (not self._whole_rows(value) or self._transposed(equation.inputs[0])):
            return False  # So is what it rounds, whose rows share no words, or which lies where it was made.
        if len(homes) < 2 and value not in self.hot:
            return False
        # A contraction under it has to be stored anyway, and costs no more with this as its epilogue.
        free = equation.op in ELEMENTWISE and value.dtype.size == 4 and self._anchor_below(equation) is not None
        return free or operations(self.graph, value, self.stored | (self.assumed - {value})) is None

    def _inside_rows(self, equation: Equation, homes: set[Value]) -> bool:
        """Can the region that reads this reduction compute it, a group of threads a row?"""
        if len(homes) != 1:
            return False
        (root,) = homes
        owner = self.graph.equation(root)
        assert owner is not None
        reduces = owner.op in REDUCTIONS and not is_short(owner)
        if not reduces and not self._whole_rows(root):
            return self._decline(equation, f"rows of {root.type} are not whole words")
        if owner.op in ANCHORS or root in self.epilogue:
            return self._decline(equation, f"its reader %{root.id} is a {owner.op} region")
        if self.roles[equation.output] is not Role.SCALAR:
            return self._decline(equation, f"%{root.id} does not read it as one value a row")
        source = equation.inputs[0]
        columns = owner.inputs[0].shape[owner.params["axis"]] if reduces else root.shape[-1]
        if equation.params["axis"] != len(source.shape) - 1 or source.shape[-1] != columns:
            return self._decline(equation, f"it does not reduce the rows of %{root.id}")
        return True

    def _whole_rows(self, value: Value) -> bool:
        """Do its rows fill 32-bit words?"""
        return value.dtype.size == 4 or (bool(value.shape) and value.shape[-1] * value.dtype.size % 4 == 0)

    def _transposed(self, value: Value) -> bool:
        """Is it a transpose, or one that is reshaped?"""
        equation = self.graph.equation(value)
        if equation is not None and equation.op == "reshape":
            return self._transposed(equation.inputs[0])
        return equation is not None and equation.op == "transpose"

    def _decline(self, equation: Equation, reason: str) -> bool:
        self.declines.append(Decline("row_reduction", self.graph.equations.index(equation), reason))
        return False

    def _operand_role(self, equation: Equation, operand: Value) -> Role:
        """How the region of this equation reads the operand, given how it reads the result."""
        role = self.roles[equation.output]
        if role is Role.FREE or equation.op in ANCHORS:
            return Role.FREE
        if equation.op in ELEMENTWISE:
            return role
        if equation.op in REDUCTIONS and equation.params["axis"] == len(operand.shape) - 1:
            inner = equation.output not in self.stored
            return Role.FULL if role is (Role.SCALAR if inner else Role.FULL) else Role.FREE
        if equation.op == "reshape":
            same_rows = operand.shape[-1:] == equation.output.shape[-1:]
            return role if role is Role.SCALAR or same_rows else Role.FREE
        if equation.op == "broadcast" and role is Role.FULL:
            shape = equation.output.shape
            if operand.shape == shape:
                return Role.FULL
            return Role.SCALAR if operand.shape == (*shape[:-1], 1) else Role.FREE
        return Role.FREE

    def _reads_often(self, equation: Equation, operand: Value, place: int) -> bool:
        """Does a kernel compute an element of the operand more than about once?"""
        if equation.op in SWEEPS:
            return True
        if equation.op in SCATTERS:
            return False
        if equation.op == "gather" and place == 0:
            return True
        expands = equation.op == "broadcast" and operand.type.count < equation.output.type.count
        if expands and self.roles[operand] is not Role.SCALAR:
            return True
        return equation.output not in self.stored and equation.output in self.hot

    def _absorb(self, equation: Equation) -> None:
        """Make a stored elementwise value the epilogue of the contraction under it, where elements correspond one to
        one."""
        if equation.output.dtype.size < 4:
            return  # A thread stores one element of a contraction; narrow ones share words.
        anchor = self._anchor_below(equation)
        if anchor is not None:
            self.epilogue[equation.output] = anchor
            self.absorbed.add(anchor.output)

    def _anchor_below(self, equation: Equation) -> Equation | None:
        for operand in dict.fromkeys(equation.inputs):
            below = self.graph.equation(operand)
            kept = operand in self.wanted or operand in self.needed or operand in self.cuts
            if below is None or kept or len(self.readers[operand]) > 1:
                continue
            if operand.type.count != equation.output.type.count:
                continue
            if below.op in ("matmul", "indexed_matmul"):
                return below
            if below.op in ELEMENTWISE or below.op == "reshape":
                found = self._anchor_below(below)
                if found is not None:
                    return found
        return None

    def result(self) -> Regions:
        regions = [self._region(e) for e in self.graph.equations if e.output in self.stored]
        return Regions(tuple(regions), frozenset(self.stored), tuple(self.declines), self.cuts)

    def _region(self, equation: Equation) -> Region:
        root = equation.output
        anchor = self.epilogue.get(root, equation if equation.op in ANCHORS else None)
        if anchor is not None:
            return Region(self._anchor_kind(anchor), root, anchor)
        inner = tuple(reversed(self.reductions.get(root, ())))
        reduces = equation.op in REDUCTIONS and not is_short(equation)
        if reduces or inner:
            own = (equation,) if reduces else ()
            return Region("row_reduction", root, equation if own else None, (*inner, *own))
        return Region("gather" if self._gathers(equation) else "pointwise", root, None)

    def _anchor_kind(self, anchor: Equation) -> str:
        if anchor.op != "matmul":
            return KINDS[anchor.op]
        weight = weight_of(self.graph, anchor)
        whole_words = weight is not None and weight.shape[-1] * weight.dtype.size % 4 == 0
        # Rows of half words straddle a word: read element by element.
        return (
            "contraction" if weight is not None and (whole_words or weight.dtype is DType.U8) else "batched_contraction"
        )

    def _gathers(self, equation: Equation) -> bool:
        stack, seen = [equation], set(self.stored)
        while stack:
            at = stack.pop()
            if at.op == "gather":
                return True
            below = [v for v in at.inputs if v not in seen]
            seen.update(below)
            stack.extend(e for v in below if (e := self.graph.equation(v)) is not None)
        return False


__all__ = ["Region", "Regions", "Role", "form_regions"]

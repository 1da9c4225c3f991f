"""What a region is: the data between forming regions and lowering them."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.compile.classify import SCATTERS
from poot_executor.compile.program import Decline
from poot_executor.dtype import DType
from poot_executor.graph.graph import Equation, Value


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """What the template needs: the three regions that become one.

    `scores` and `out` are matmuls with equal leading dimensions; `exponent` is x, read at `weights`' index space [...,
    n]; `rounded` is the dtype that the probabilities are rounded to before they meet v. `mask` tells which positions a
    row sees, None where it may see all. `filler` is the finite score of those that it does not: a row which sees none
    gives all of them the weight of that. `sink` has a score a row that no value belongs to, as many as there are rows.
    """

    scores: Equation
    scores_root: Value
    exponent: Value
    weights: Value
    rounded: DType
    out: Equation
    root: Value
    mask: Value | None
    filler: float | None
    sink: Value | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Weights of equal shape whose products a projection finishes together, and what becomes of them.

    `anchors` are the matmuls. `domain` is the value that the epilogue computes element for element, in the row-major
    order of the products: the root itself, or the updates of the scatter that is the root. `block` is how far an
    element's epilogue looks: at products of the same aligned run of `block` columns, or for 0 at its own place alone.
    Of the run it looks only at places equal modulo `stride` (1: all of them), as a rotation of halves does.
    `reductions`, in order, are over the products of a block each: a norm over each head.
    """

    anchors: tuple[Equation, ...]
    root: Value
    domain: Value
    scatter: Equation | None
    block: int
    stride: int = 1
    reductions: tuple[Equation, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """Contractions of one input by several weights in one dispatch, or by matrices that each row chooses. `prologue` is
    the row reduction that makes the input, or None."""

    left: Value
    segments: tuple[Segment, ...]
    prologue: Region | None


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """One kernel to be: `root` is the value that it stores and `kind` its template.

    `anchor` is the equation that the template computes; where it is not the root's own, the root is its epilogue.
    `reductions` are the row reductions inside, in order; the root has `rows` rows then (and, where it is itself a
    reduction, one element a row).
    """

    kind: str
    root: Value
    anchor: Equation | None
    reductions: tuple[Equation, ...] = ()
    attention: Attention | None = None
    projection: Projection | None = None

    @property
    def roots(self) -> tuple[Value, ...]:
        """Every value that the region stores; `root` is the first."""
        return (self.root,) if self.projection is None else tuple(s.root for s in self.projection.segments)

    @property
    def updates(self) -> dict[Value, Value]:
        """Of each root that is an update of another value, that value."""
        if self.projection is not None:
            return {s.root: s.scatter.inputs[0] for s in self.projection.segments if s.scatter is not None}
        if self.anchor is not None and self.anchor.op in SCATTERS:
            return {self.root: self.anchor.inputs[0]}
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """All regions in equation order, the stored values (inputs too), what declined to fuse, and which values are stored
    because an expression over them would be too long."""

    regions: tuple[Region, ...]
    stored: frozenset[Value]
    declines: tuple[Decline, ...]
    cuts: frozenset[Value]

"""What a region is: the data between forming regions and lowering them."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.compile.program import Decline
from poot_executor.graph.graph import Equation, Value


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """What the template needs: the three regions that become one.

    `scores` and `out` are matmuls with equal leading dimensions; `exponent` is x, read at `weights`' index space [..., n];
    `rounded` is the value whose dtype the probabilities are rounded to before they meet v.
    """

    scores: Equation
    scores_root: Value
    exponent: Value
    weights: Value
    rounded: Value
    out: Equation
    root: Value
    mask: Value | None


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """One kernel to be: `root` is the value that it stores and `kind` its template.

    `anchor` is the equation that the template computes; where it is not the root's own, the root is its epilogue. `reductions` are the
    row reductions inside, in order; the root has `rows` rows then (and, where it is itself a reduction, one element a row).
    """

    kind: str
    root: Value
    anchor: Equation | None
    reductions: tuple[Equation, ...] = ()
    attention: Attention | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """All regions in equation order, the stored values (inputs too), and what declined to fuse."""

    regions: tuple[Region, ...]
    stored: frozenset[Value]
    declines: tuple[Decline, ...]

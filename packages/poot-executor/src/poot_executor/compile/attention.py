"""Recognizing attention: a contraction over a softmax over a contraction, by structure.

    scores = q · k;  x = f(scores) (scale, cap, bias, mask: any elementwise expression);  p = softmax(x);  out = p · v

in any association: p may divide by the sum or multiply by its reciprocal, be reshaped or rounded before it meets v.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from poot_executor.compile.classify import ELEMENTWISE
from poot_executor.compile.program import Decline
from poot_executor.compile.region import Attention, Region, Regions
from poot_executor.graph.graph import Equation, Graph, Value

FAINT = -1e30
"""A score at or below this stands for a masked position."""


def match_attention(
    graph: Graph, region: Region, by_root: Mapping[Value, Region], readers: Mapping[Value, Sequence[Region]]
) -> Attention | str:
    """The attention that ends in a batched contraction, or why it is none."""
    out = region.anchor
    assert out is not None
    left = out.inputs[0]
    while left not in by_root and (equation := graph.equation(left)) is not None and equation.op in ("reshape", "cast"):
        if equation.op == "reshape" and equation.inputs[0].shape[-1] != left.shape[-1]:
            return "its left operand is reshaped across rows"
        left = equation.inputs[0]
    softmax = by_root.get(left)
    if softmax is None or softmax.kind != "row_reduction" or len(softmax.reductions) != 2:
        return "its left operand is no softmax"
    if len(readers.get(left, ())) != 1:
        return "the probabilities are read elsewhere"
    greatest, total = softmax.reductions
    exponent = _softmax_of(graph, left, greatest, total)
    if exponent is None:
        return "its left operand is no softmax"
    inner = _aligned_leaf(graph, exponent, by_root)
    scores = by_root.get(inner) if inner is not None else None
    if inner is None or scores is None or scores.anchor is None:
        return "the softmax is not over a contraction"
    if scores.kind != "batched_contraction" or len(readers.get(inner, ())) != 1:
        return "the scores are read elsewhere"
    if (
        scores.anchor.output.shape[:-2] != out.output.shape[:-2]
        or scores.anchor.output.shape[-2] != out.output.shape[-2]
    ):
        return "scores and output have different rows"
    mask = _mask_of(graph, exponent, inner)
    return Attention(scores.anchor, inner, exponent, left, out.inputs[0], out, region.root, mask)


def fuse_attention(graph: Graph, regions: Regions) -> Regions:
    """Every attention as one region; a contraction over a softmax that is none says why."""
    by_root = {r.root: r for r in regions.regions}
    readers: dict[Value, list[Region]] = {}
    for region in regions.regions:
        for value in leaves_of(graph, region, regions.stored):
            readers.setdefault(value, []).append(region)
    fused: dict[Value, Region] = {}
    gone: set[Value] = set()
    declined: dict[Value, Decline] = {}
    for region in regions.regions:
        if region.kind != "batched_contraction" or region.anchor is None or region.anchor.op != "matmul":
            continue
        found = match_attention(graph, region, by_root, readers)
        if isinstance(found, Attention):
            fused[region.root] = Region("attention", region.root, region.anchor, (), found)
            gone |= {found.weights, found.scores_root}
        else:
            declined[region.root] = Decline("attention", graph.equations.index(region.anchor), found)
    kept = tuple(fused.get(r.root, r) for r in regions.regions if r.root not in gone)
    reasons = [d for root, d in declined.items() if root not in gone]
    return Regions(kept, regions.stored - gone, (*regions.declines, *reasons))


def leaves_of(graph: Graph, region: Region, stored: Set[Value]) -> set[Value]:
    """The stored values that a region reads."""
    found: set[Value] = set()
    equation = graph.equation(region.root)
    stack = list(equation.inputs) if equation is not None else []
    seen: set[Value] = set()
    while stack:
        value = stack.pop()
        if value in stored:
            found.add(value)
        elif value not in seen:
            seen.add(value)
            below = graph.equation(value)
            stack.extend(below.inputs if below is not None else ())
    return found


def _softmax_of(graph: Graph, root: Value, greatest: Equation, total: Equation) -> Value | None:
    """x where root = exp(x − max x) / Σ exp(x − max x); a cast around it is looked through."""
    equation = graph.equation(root)
    while equation is not None and equation.op in ("cast", "reshape"):
        equation = graph.equation(equation.inputs[0])
    if equation is None or greatest.op != "reduce_max" or total.op != "sum":
        return None
    powers = total.inputs[0]
    if equation.op == "div":
        if equation.inputs[0] != powers or _spread(graph, equation.inputs[1]) != total.output:
            return None
    elif equation.op == "mul":
        other = [v for v in equation.inputs if v != powers]
        if len(other) != 1 or not _is_reciprocal(graph, other[0], total.output):
            return None
    else:
        return None
    power = graph.equation(powers)
    if power is None or power.op != "exp":
        return None
    shifted = graph.equation(power.inputs[0])
    if shifted is None or shifted.op not in ("sub", "add"):
        return None
    x = greatest.inputs[0]
    if shifted.op == "sub":
        fits = shifted.inputs[0] == x and _spread(graph, shifted.inputs[1]) == greatest.output
    else:
        negated = [_negated(graph, v) for v in shifted.inputs if v != x]
        fits = len(negated) == 1 and negated[0] is not None and _spread(graph, negated[0]) == greatest.output
    return x if fits else None


def _spread(graph: Graph, value: Value) -> Value:
    """The value under reshapes and broadcasts."""
    equation = graph.equation(value)
    return (
        _spread(graph, equation.inputs[0])
        if equation is not None and equation.op in ("reshape", "broadcast")
        else value
    )


def _is_reciprocal(graph: Graph, value: Value, of: Value) -> bool:
    inner = graph.equation(_spread(graph, value))
    return inner is not None and inner.op == "recip" and _spread(graph, inner.inputs[0]) == of


def _negated(graph: Graph, value: Value) -> Value | None:
    inner = graph.equation(_spread(graph, value))
    return inner.inputs[0] if inner is not None and inner.op == "neg" else None


def _aligned_leaf(graph: Graph, value: Value, by_root: Mapping[Value, Region]) -> Value | None:
    """The one contraction that an elementwise expression reads element for element."""
    if value in by_root:
        return value if by_root[value].kind == "batched_contraction" else None
    equation = graph.equation(value)
    if equation is None or not (equation.op in ELEMENTWISE or equation.op == "reshape"):
        return None
    found = {
        leaf
        for v in equation.inputs
        if v.type.count == value.type.count and (leaf := _aligned_leaf(graph, v, by_root)) is not None
    }
    return found.pop() if len(found) == 1 else None


def _mask_of(graph: Graph, exponent: Value, scores: Value) -> Value | None:
    """The condition where x = select(condition, …, one number) and the condition does not depend on the scores."""
    equation = graph.equation(exponent)
    if equation is None or equation.op != "select":
        return None
    condition, _, otherwise = equation.inputs
    filler = graph.input(_spread(graph, otherwise))
    # Such a score has no weight beside any other, so that a run of positions that nothing sees may be passed over.
    faint = filler is not None and filler.data is not None and bool((filler.data <= FAINT).all())
    return condition if faint and not _depends(graph, condition, scores) else None


def _depends(graph: Graph, value: Value, on: Value) -> bool:
    if value == on:
        return True
    equation = graph.equation(value)
    return equation is not None and any(_depends(graph, v, on) for v in equation.inputs)

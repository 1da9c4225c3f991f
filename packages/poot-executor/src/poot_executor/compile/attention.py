"""Recognizing attention: a contraction over a softmax over a contraction, by structure.

    scores = q · k;  x = f(scores) (scale, cap, bias, mask: any elementwise expression);  p = softmax(x);  out = p · v

in any association: p may divide by the sum or multiply by its reciprocal, be reshaped or rounded before it meets v. A
sink, a score more that has no value, is a column of x that p leaves out, or a term of the maximum and of the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, prod

import numpy as np

from poot_executor.compile.classify import ELEMENTWISE
from poot_executor.compile.expression import Scene
from poot_executor.compile.program import Decline
from poot_executor.compile.reading import leaves_of, reads
from poot_executor.compile.region import Attention, Region, Regions
from poot_executor.compile.schedule import attention_schedule
from poot_executor.compile.softmax import normalized, softmax_of, spread
from poot_executor.compile.target import Caps
from poot_executor.graph.graph import Graph, Value
from poot_executor.layout import WeightLayout

FAINT = -1e30
"""A score at or below this stands for a masked position."""


def match_attention(
    graph: Graph, region: Region, by_root: Mapping[Value, Region], readers: Mapping[Value, Sequence[Region]]
) -> Attention | str:
    """The attention that ends in a batched contraction, or why it is none."""
    out = region.anchor
    assert out is not None
    found = normalized(graph, out.inputs[0], by_root)
    if isinstance(found, str):
        return found
    softmax = by_root[found.root]
    if softmax.kind != "row_reduction" or len(softmax.reductions) != 2:
        return "its left operand is no softmax"
    left, roots = found.root, set(graph.roots())
    elsewhere = reads(graph, out.inputs[1], left) or reads(graph, region.root, left, {out.output})
    if len(readers.get(left, ())) != 1 or left in roots or elsewhere:
        return "the probabilities are read elsewhere"
    source = softmax_of(graph, found, *softmax.reductions)
    if source is None:
        return "its left operand is no softmax"
    exponent, sink = source
    inner = _aligned_leaf(graph, exponent, by_root)
    scores = by_root.get(inner) if inner is not None else None
    if inner is None or scores is None or scores.anchor is None:
        return "the softmax is not over a contraction"
    aligned = _only_aligned(graph, exponent, inner) and (sink is None or not reads(graph, sink, inner))
    if len(readers.get(inner, ())) != 1 or inner in roots or not aligned:
        return "the scores are read elsewhere"
    if scores.anchor.output.shape[:-1] != out.output.shape[:-1]:
        return "scores and output have different rows"
    mask, filler = _mask_of(graph, exponent, inner)
    filler = filler if filler is not None and isfinite(filler) else None
    return Attention(scores.anchor, inner, exponent, left, found.rounded, out, region.root, mask, filler, sink)


def fuse_attention(graph: Graph, regions: Regions, layouts: Mapping[Value, WeightLayout], caps: Caps) -> Regions:
    """Every attention that the target has room for as one region; a contraction over a softmax that is none says
    why."""
    by_root = {r.root: r for r in regions.regions}
    position = {e.output: i for i, e in enumerate(graph.equations)}
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
            found = _room(Scene(graph, regions.stored, layouts), found, caps) or found
        if isinstance(found, Attention):
            fused[region.root] = Region("attention", region.root, region.anchor, (), found)
            gone |= {found.weights, found.scores_root}
        else:
            declined[region.root] = Decline("attention", position[region.anchor.output], found)
    kept = tuple(fused.get(r.root, r) for r in regions.regions if r.root not in gone)
    reasons = [d for root, d in declined.items() if root not in gone]
    return Regions(kept, regions.stored - gone, (*regions.declines, *reasons), regions.cuts)


def bindings(scene: Scene, attention: Attention) -> int:
    """Buffers that the kernel of an attention binds where its groups share no row."""
    scores, out, root = attention.scores, attention.out, attention.root
    inner = Scene(scene.graph, scene.stored - {attention.scores_root, attention.weights, root}, scene.layouts)
    read = [(v, frozenset()) for v in (*scores.inputs, out.inputs[1])]
    read += [(attention.scores_root, {scores.output}), (attention.exponent, {attention.scores_root})]
    read += [(root, {out.output})]
    read += [(attention.sink, set())] if attention.sink is not None else []
    return 1 + len({leaf for value, supplied in read for leaf in inner.leaves(value, supplied)})


def _room(scene: Scene, attention: Attention, caps: Caps) -> str | None:
    """What the target lacks for an attention in one kernel."""
    *lead, rows, columns = attention.out.output.shape
    depth = attention.scores.inputs[0].shape[-1]
    span = attention.out.inputs[1].shape[-2]
    if attention_schedule(rows, prod(lead), span, depth, columns, caps) is None:
        return f"a row of {depth} columns needs more than {caps.max_shared_bytes:,} bytes of shared memory"
    count = bindings(scene, attention)
    return None if count <= caps.max_bindings else f"it reads and writes {count} buffers, the target binds fewer"


def _aligned_leaf(graph: Graph, value: Value, by_root: Mapping[Value, Region]) -> Value | None:
    """The one contraction that an elementwise expression reads element for element."""
    stack, seen, found = [value], set(), set()
    while stack:
        at = stack.pop()
        equation = graph.equation(at)
        if at in seen or equation is None:
            continue
        seen.add(at)
        if at in by_root:
            found |= {at} if by_root[at].kind == "batched_contraction" else set()
        elif equation.op in ELEMENTWISE or equation.op == "reshape":
            stack += [v for v in equation.inputs if v.type.count == value.type.count]
    return found.pop() if len(found) == 1 else None


def _only_aligned(graph: Graph, value: Value, leaf: Value) -> bool:
    """Does an expression read a leaf element for element wherever it reads it?"""
    stack, seen = [value], {leaf}
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        equation = graph.equation(at)
        if equation is not None and (equation.op in ELEMENTWISE or equation.op == "reshape"):
            stack.extend(equation.inputs)
        elif reads(graph, at, leaf):
            return False
    return True


def _mask_of(graph: Graph, exponent: Value, scores: Value) -> tuple[Value, float] | tuple[None, None]:
    """Condition and number where x = select(condition, …, the number) and the condition does not depend on the
    scores."""
    equation = graph.equation(exponent)
    if equation is None or equation.op != "select":
        return None, None
    condition, _, otherwise = equation.inputs
    constant = graph.input(spread(graph, otherwise))
    if constant is None or constant.data is None or reads(graph, condition, scores):
        return None, None
    numbers = constant.data.astype(np.float32).ravel()
    # Such a score has no weight beside any other, so that a run of positions that nothing sees may be passed over.
    faint = bool((numbers <= FAINT).all() and (numbers == numbers[0]).all())
    return (condition, float(numbers[0])) if faint else (None, None)

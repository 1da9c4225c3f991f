"""Expressions over more buffers than the target binds: an inner value is stored, so that each kernel reads fewer."""

from __future__ import annotations

from collections.abc import Mapping

from poot_executor.compile.classify import ELEMENTWISE
from poot_executor.compile.expression import Scene
from poot_executor.compile.region import Region, Regions
from poot_executor.compile.regions import form_regions
from poot_executor.compile.target import Caps
from poot_executor.graph.graph import Graph, Value
from poot_executor.layout import WeightLayout

SPLIT = frozenset(("pointwise", "gather", "row_reduction"))
"""Regions that are nothing but expressions. An epilogue that is too wide is apart already: see `projections`."""


def regions_within(graph: Graph, layouts: Mapping[Value, WeightLayout], caps: Caps) -> Regions:
    """Regions whose expressions the target has bindings for, as far as storing values makes them so."""
    needed: frozenset[Value] = frozenset()
    while True:
        regions = form_regions(graph, needed)
        scene = Scene(graph, regions.stored, layouts)
        found = {
            v for r in regions.regions if r.kind in SPLIT and (v := _inner(scene, r, caps.max_bindings)) is not None
        }
        if found <= needed:
            return regions
        needed |= found


def _inner(scene: Scene, region: Region, most: int) -> Value | None:
    """Of a region over too many buffers, the value that reads the most of them that one kernel may; None where the
    region is not, or where no value reads several."""
    equation = scene.graph.equation(region.root)
    assert equation is not None
    inner = Scene(scene.graph, scene.stored - {region.root}, scene.layouts)
    if 1 + _buffers(inner, region.root) <= most:
        return None
    best, count = None, 1
    stack, seen = list(equation.inputs), set()
    while stack:
        value = stack.pop()
        below = scene.graph.equation(value)
        if value in seen or value in inner.stored or below is None:
            continue
        seen.add(value)
        stack.extend(below.inputs)
        buffers = _buffers(inner, value)
        if below.op in ELEMENTWISE and count < buffers < most:
            best, count = value, buffers
    return best


def _buffers(scene: Scene, value: Value) -> int:
    """Buffers that an expression reads: a weight in parts is several."""
    leaves = scene.leaves(value, frozenset())
    return sum(len(scene.layouts[v].parts) if v in scene.layouts else 1 for v in leaves)

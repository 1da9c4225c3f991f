"""Dead code: equations that no output, next state or check needs, and constants that nothing reads.

Slots stay, since they are the step's schema, and states stay, since they are carried.
"""

from __future__ import annotations

from poot_executor.graph.graph import Graph, Value
from poot_executor.graph.keys import Storage
from poot_executor.graph.rewrite import Rewriter


def remove_dead(graph: Graph) -> Graph:
    """The graph without what nothing needs."""
    live = _live(graph)
    rewriter = Rewriter(graph)
    for item in graph.inputs:
        if item.value in live or item.storage in (Storage.SLOT, Storage.STATE):
            rewriter.keep_input(item)
        else:
            rewriter.drop()
    for equation in graph.equations:
        if equation.output in live:
            rewriter.keep(equation)
        else:
            rewriter.drop()
    return rewriter.result()


def _live(graph: Graph) -> set[Value]:
    live: set[Value] = set(graph.roots())
    for equation in reversed(graph.equations):
        if equation.output in live:
            live.update(equation.inputs)
    return live

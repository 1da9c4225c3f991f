"""The list of graph passes, run until none changes anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from poot_executor.compile.passes.canonicalize import canonicalize
from poot_executor.compile.passes.fold_constants import fold_constants
from poot_executor.compile.passes.merge_equal import merge_equal
from poot_executor.compile.passes.remove_dead import remove_dead
from poot_executor.graph.graph import Graph
from poot_executor.graph.verify import verify as verify_graph

Pass = Callable[[Graph], Graph]

PASSES: tuple[Pass, ...] = (canonicalize, fold_constants, merge_equal, remove_dead)
"""The list, in order. It runs again until no pass changes anything."""

MAX_ROUNDS = 16
"""A bound on the rounds. Every pass shrinks the graph or moves it towards one form, so it is not
reached; a graph that did would be correct all the same."""


def run_passes(graph: Graph, *, verify: bool = False, dump: Path | None = None) -> tuple[Graph, tuple[str, ...]]:
    """Run the list. Returns the graph and the names of the passes that changed something, in the
    order of the list.

    `verify` runs the verifier after every pass (GraphError names the pass). `dump` is a folder that
    gets the text of the graph before the first pass and after each that changed it, numbered.
    """
    changed: set[str] = set()
    step = 0
    _dump(graph, dump, step, "traced")
    for _ in range(MAX_ROUNDS):
        before = graph
        for run in PASSES:
            after = run(graph)
            if after is graph:
                continue
            graph, step = after, step + 1
            changed.add(run.__name__)
            _dump(graph, dump, step, run.__name__)
            if verify:
                verify_graph(graph)
        if graph is before:
            break
    return graph, tuple(run.__name__ for run in PASSES if run.__name__ in changed)


def _dump(graph: Graph, folder: Path | None, step: int, name: str) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step:02}_{name}.txt").write_text(str(graph), encoding="utf-8")

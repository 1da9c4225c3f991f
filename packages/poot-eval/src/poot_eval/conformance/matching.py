"""A graph on a device against the oracle: every element of every output and state, within its
bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.bounds import Bounds, bound_for
from poot_eval.compare import assert_matches
from poot_eval.conformance.session import Result, open_session
from poot_eval.graph import EvalOptions, Evaluation, eval
from poot_executor.compile.options import CompileOptions
from poot_executor.compile.program import Program
from poot_executor.device import Device
from poot_executor.graph.graph import Graph
from poot_executor.graph.keys import InputKey

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A run that matched: what was compiled, what came out, and how far it might have been off."""

    program: Program
    result: Result
    oracle: Evaluation
    bounds: Bounds

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions of the program's dispatches, in order, those launched as one each by itself; a contraction that
        stores its activations as halves before is one."""
        launched = (d.region for d in self.program.dispatches if d.kernel.name != "halves")
        return tuple(region for joined in launched for region in joined.split("+"))


def assert_device_matches(
    device: Device,
    graph: Graph,
    inputs: Mapping[InputKey, Array],
    options: CompileOptions | None = None,
    undecided: float = 0.0,
) -> Match:
    """Run a graph on a device and raise AssertionError unless it matches the oracle.

    At most the share `undecided` of the elements may be left open by the inputs; how many were is
    printed.
    """
    oracle = eval(graph, inputs, EvalOptions(environment=True))
    bounds = bound_for(graph, oracle.environment, device.target.caps)
    with open_session(device, graph, inputs, options) as session:
        result = session.run(session.lower())
        program = session.program
    assert_result(result, oracle, bounds)
    kept = {*graph.outputs.values(), *(pair.after for pair in graph.state)}
    most = undecided * sum(value.type.count for value in kept)
    if bounds.undecided:
        print(f"{graph.name}: {bounds.undecided} elements are undecided")  # noqa: T201 (counted in the report)
    assert bounds.undecided <= most, f"{graph.name}: {bounds.undecided} elements are undecided, at most {most:g} may be"
    return Match(program, result, oracle, bounds)


def assert_result(result: Result, oracle: Evaluation, bounds: Bounds) -> None:
    """Raise AssertionError unless outputs, states and checks match the oracle."""
    assert result.checks == oracle.checks, f"checks are {result.checks}, the oracle's {oracle.checks}"
    for name, expected in oracle.outputs.items():
        _compare(result.outputs[name], expected, bounds.output(name), f"output {name}")
    for key, expected in oracle.state.items():
        _compare(result.state[key], expected, bounds.state(key), f"state {key}")


def _compare(device: Array, oracle: Array, bound: Array, what: str) -> None:
    assert_matches(device, oracle, np.where(np.isinf(bound), np.finfo(np.float64).max, bound), what)

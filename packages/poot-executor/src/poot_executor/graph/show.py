"""A graph as text: stable, one line a value."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from poot_executor.dtype import to_bytes
from poot_executor.graph.graph import Equation, Graph, Input


def show(graph: Graph) -> str:
    """The graph's text: inputs with storage and key, equations in order, then state, checks and
    outputs.
    """
    lines = [f"graph {graph.name}:"]
    lines += [f"  {show_input(item)}" for item in graph.inputs]
    lines += [f"  {show_equation(equation)}" for equation in graph.equations]
    lines += [f"  state {pair.key}: {pair.before} -> {pair.after}" for pair in graph.state]
    lines += [f"  check {value}" for value in graph.checks]
    lines += [f"  output {name}: {value}" for name, value in graph.outputs.items()]
    return "\n".join(lines) + "\n"


def show_input(item: Input) -> str:
    """`%0: f32[576] = const 3.attention_norm`, or for a computed one its value or a hash of its
    bytes.
    """
    head = f"{item.value}: {item.value.type} = {item.storage.value}"
    return f"{head} {item.key if item.data is None else _data(item)}"


def show_equation(equation: Equation) -> str:
    """`%3: f32[4, 8] = reshape(%1, shape=[4, 8])`."""
    operands = [str(value) for value in equation.inputs]
    params = show_params(equation.params)
    call = ", ".join([*operands, *([params] if params else [])])
    return f"{equation.output}: {equation.output.type} = {equation.op}({call})"


def show_params(params: Mapping[str, Any]) -> str:
    """`axis=1, dtype=i32`, by name. Equal text means equal params, also for 0.0 beside -0.0, 0 and
    False.
    """
    return ", ".join(f"{name}={_param(params[name])}" for name in sorted(params))


def _param(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _data(item: Input) -> str:
    data = item.data
    assert data is not None
    raw = to_bytes(data, item.value.dtype)
    size = item.value.dtype.size
    if raw == raw[:size] * item.value.type.count:
        return f"splat {np.ravel(data)[0]}"
    return f"#{hashlib.sha256(raw).hexdigest()[:12]}"

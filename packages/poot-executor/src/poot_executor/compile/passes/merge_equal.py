"""Common subexpressions: equal operations on equal operands become one, and so do equal constants."""

from __future__ import annotations

from poot_executor.dtype import to_bytes
from poot_executor.graph.graph import Graph, Input, TensorType, Value
from poot_executor.graph.rewrite import Rewriter
from poot_executor.graph.show import show_params


def merge_equal(graph: Graph) -> Graph:
    """The graph with the first of each set of equal values in place of the others."""
    rewriter = Rewriter(graph)
    constants: dict[tuple[TensorType, bytes], Value] = {}
    for item in graph.inputs:
        known = constants.get(_content(item)) if item.data is not None else None
        if known is not None:
            rewriter.replace(item.value, known)
            continue
        value = rewriter.keep_input(item)
        if item.data is not None:
            constants[_content(item)] = value
    seen: dict[tuple[str, tuple[Value, ...], str], Value] = {}
    for equation in graph.equations:
        call = rewriter.call(equation)
        # The text of params tells 0.0 from -0.0, 0 and False, which are equal as keys.
        key = (call.op, call.inputs, show_params(call.params))
        if key in seen:
            rewriter.replace(equation.output, seen[key])
        else:
            seen[key] = rewriter.keep(equation)
    return rewriter.result()


def _content(item: Input) -> tuple[TensorType, bytes]:
    assert item.data is not None
    return item.value.type, to_bytes(item.data, item.value.dtype)

"""The table: a row for each primitive, and which of them the host computes between two models."""

from __future__ import annotations

from poot_executor.graph.graph import Equation
from poot_executor.graph.ops import OPS
from poot_npu.vpu import elementwise, structure, top_k
from poot_npu.vpu.lowering import Build

ROWS: dict[str, Build] = elementwise.ROWS | structure.ROWS | top_k.ROWS
"""What a model computes; `packed_dequant` is no row of its own: `rewrites` put weights where they are used."""

HOST = frozenset(("rem", "random_bits", "sample_token"))
"""What the host computes, by the rules of the op table."""

OPERATIONS = frozenset(ROWS) | HOST | {"packed_dequant"}
"""Every primitive that a program may have."""

assert set(OPS) >= OPERATIONS


def on_host(equation: Equation) -> bool:
    """Whether an equation is computed between two models: OpenVINO has no such operation, or not an exact one."""
    dtype = equation.output.dtype
    if equation.op == "bitcast":
        return dtype.is_float or equation.inputs[0].dtype.is_float
    if equation.op == "div":
        return not dtype.is_float
    if equation.op == "sum":
        return not dtype.is_float and equation.inputs[0].shape[equation.params["axis"]] > structure.EXACT_TERMS
    return equation.op in HOST

"""Graphs: the typed list of primitive equations that a model is traced into."""

from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Equation, Graph, Input, StatePair, TensorType, Value
from poot_executor.graph.keys import InputKey, SlotKey, SlotKind, StateKey, Storage
from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.op_row import OpKind, OpRow
from poot_executor.graph.ops import OPS, op_named
from poot_executor.graph.traced import Traced
from poot_executor.graph.verify import verify

__all__ = [
    "OPS",
    "Arithmetic",
    "Builder",
    "Equation",
    "Graph",
    "Input",
    "InputKey",
    "OpKind",
    "OpRow",
    "SlotKey",
    "SlotKind",
    "StateKey",
    "StatePair",
    "Storage",
    "TensorType",
    "Traced",
    "Value",
    "op_named",
    "verify",
]

"""A small program in an engine: what the tests of steps and faults run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile import compile
from poot_executor.device import Device
from poot_executor.dtype import F32, I32
from poot_executor.engine import Engine
from poot_executor.errors import WeightError
from poot_executor.executor import EntryId, ExecutableId, StepOutputs
from poot_executor.formats import FORMATS
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import StoredTensor, WeightKey

Array = NDArray[Any]

VALUE, PLACE = SlotKey(SlotKind.INPUT, "value"), SlotKey(SlotKind.INPUT, "place")
POOL, COUNT, TABLE = StateKey(None, "pool"), StateKey(None, "count"), WeightKey(None, "table")
POSITIONS = 16


class MemoryStore:
    """A weight store over arrays in host memory, each f32."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._tensors = {
            name: StoredTensor(
                name, FORMATS["f32"], array.shape, np.ascontiguousarray(array).view(np.uint8).reshape(-1)
            )
            for name, array in arrays.items()
        }

    def names(self) -> tuple[str, ...]:
        """Every tensor's name."""
        return tuple(self._tensors)

    def tensor(self, name: str) -> StoredTensor:
        """Raises WeightError where there is no such tensor."""
        if name not in self._tensors:
            raise WeightError(f"there is no tensor {name!r}")
        return self._tensors[name]


def step_graph(width: int = 3) -> Graph:
    """Exact integer and copied work, so that every result is known bit for bit.

    `value` i32[width] is written to the pool at `place` (out of range is a kernel's fault), a count
    goes up by one, and a table's row is read at value[0]. Outputs: the pool's sum after the step,
    three times the count before it, the row. A value below 0 fails the step's only check, with its
    index.
    """
    b = Builder(f"step{width}")
    value = b.slot(VALUE, TensorType((width,), I32))
    place = b.slot(PLACE, TensorType((1,), I32))
    pool = b.state(POOL, TensorType((POSITIONS, width), I32))
    count = b.state(COUNT, TensorType((1,), I32))
    after = p.scatter_update(pool, place, p.reshape(value, (1, width)))
    b.next_state(POOL, after)
    b.next_state(COUNT, count + 1)
    b.output("sum", p.sum_(p.reshape(after, (POSITIONS * width,)), 0))
    b.output("count", count * 3)
    table = b.weight(TABLE, TensorType((8, 5), F32))
    index = p.minimum(p.maximum(p.slice_(value, (0,), (1,)), b.splat(0, TensorType((1,), I32))),
                      b.splat(7, TensorType((1,), I32)))  # fmt: skip
    b.output("row", p.gather(table, index))
    negative = value < 0
    first = p.select(negative, p.iota(b, (width,), 0, I32), b.splat(width, TensorType((width,), I32)))
    lowest = -p.reduce_max(-first, 0)
    b.check(p.select(lowest < width, lowest, b.splat(-1, TensorType((), I32))))
    return b.build()


class Stepper:
    """An engine with the step program as an entry, and what a correct device must answer."""

    def __init__(self, device: Device, table: Array, width: int = 3) -> None:
        self.width = width
        self.table = table
        self.program = compile(step_graph(width), device.target)
        self.engine = Engine(device)
        self.executable: ExecutableId = self.engine.load_weights(MemoryStore({"table": table}), {TABLE: "table"})
        self.entry: EntryId = self.engine.add_entry(self.executable, self.program)
        self.clear()

    def clear(self) -> None:
        """Expect a state of zeros."""
        self.pool = np.zeros((POSITIONS, self.width), np.int32)
        self.count = 0

    def inputs(self, value: list[int], place: int) -> dict[SlotKey, Array]:
        """A step's inputs."""
        return {VALUE: np.array(value, np.int32), PLACE: np.array([place], np.int32)}

    def expect(self, value: list[int], place: int, outputs: StepOutputs) -> None:
        """Take the step into account and compare its outputs."""
        if place >= 0:
            self.pool[place] = value
        assert int(outputs["sum"]) == self.pool.sum()
        assert int(outputs["count"][0]) == 3 * self.count
        row = self.table[min(max(value[0], 0), 7)]
        assert np.array_equal(outputs["row"][0].view(np.uint32), row.view(np.uint32))
        self.count += 1

    def step(self, value: list[int], place: int) -> None:
        """One step that must be right."""
        self.expect(value, place, self.engine.step(self.executable, self.entry, self.inputs(value, place)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

"""What the host does between models and behind them: equations that OpenVINO does not have, results that lie elsewhere,
and the new rows of states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import from_bytes, to_bytes
from poot_executor.errors import KernelFault
from poot_executor.graph.graph import Equation, Graph, Input, Value
from poot_executor.graph.ops import OPS
from poot_npu.vpu.homes import Bytes, Homes
from poot_npu.vpu.memory import Memory
from poot_npu.vpu.model import Lowered
from poot_npu.vpu.plan import RowUpdate, WholeUpdate
from poot_npu.vpu.window import Places

Work = Callable[[], None]


def computed(graph: Graph, equation: Equation, homes: Homes) -> Work:
    """An equation by the op table's own rule."""
    row, out = OPS[equation.op], equation.output

    def source(value: Value) -> Callable[[], Any]:
        found = graph.definition(value)
        if isinstance(found, Input) and found.data is not None:
            return lambda: found.data
        memory = homes.bytes(value)
        return lambda: from_bytes(memory, value.dtype, value.shape)

    sources = [source(value) for value in equation.inputs]
    target = homes.bytes(out)

    def work() -> None:
        result = row.evaluate([read() for read in sources], equation.params, out.type)
        target[:] = np.frombuffer(to_bytes(result, out.dtype), np.uint8)

    return work


def copied(homes: Homes) -> list[Work]:
    """Results that lie elsewhere, before any state changes."""
    return [_copy(source, target) for source, target in homes.copied()]


def _copy(source: Bytes, target: Bytes) -> Work:
    def work() -> None:
        target[:] = source

    return work


def replaced(lowered: Lowered, homes: Homes) -> list[Work]:
    """States that are replaced as a whole: every new value is taken before the first is written, since one state
    may become what another was."""
    updates = [u for u in lowered.plan.updates if isinstance(u, WholeUpdate)]
    pairs = [(homes.bytes(u.after), homes.state(u.key, u.after.type.nbytes)) for u in updates]
    inputs = [lowered.graph.input(u.after) is not None for u in updates]

    def work() -> None:
        taken = [source.copy() if given else source for (source, _), given in zip(pairs, inputs, strict=True)]
        for source, (_, target) in zip(taken, pairs, strict=True):
            target[:] = source

    return [work] if pairs else []


def rows_replaced(lowered: Lowered, homes: Homes) -> list[Work]:
    """States whose rows are replaced: those with one index together."""
    plain: dict[Value, list[tuple[Bytes, Bytes]]] = {}
    windowed: dict[Value, list[tuple[Memory, NDArray[np.float32]]]] = {}
    limits: dict[Value, int] = {}
    for update in lowered.plan.updates:
        if not isinstance(update, RowUpdate):
            continue
        type, rows = update.equation.output.type, update.rows
        new = homes.bytes(rows)
        limits[update.index] = min(type.shape[0], limits.get(update.index, type.shape[0]))
        if update.windowed:
            memory = homes.state_memory(update.key)
            windowed.setdefault(update.index, []).append((memory, new.view(np.float32).reshape(rows.shape)))
        else:
            state = homes.state(update.key, type.nbytes).reshape(type.shape[0], -1)
            plain.setdefault(update.index, []).append((_wide(state), _wide(new.reshape(rows.shape[0], -1))))
    return [
        _rows_written(homes.bytes(index), limit, plain.get(index, []), windowed.get(index, []))
        for index, limit in limits.items()
    ]


def _wide(rows: Bytes) -> NDArray[Any]:
    """Rows of bytes in larger elements, where they fill them."""
    return rows.view(np.uint64) if rows.shape[1] % 8 == 0 and rows.ctypes.data % 8 == 0 else rows


def _rows_written(
    index: Bytes,
    limit: int,
    plain: list[tuple[NDArray[Any], NDArray[Any]]],
    windowed: list[tuple[Memory, NDArray[np.float32]]],
) -> Work:
    places = index.view(np.int32)

    def work() -> None:
        wanted = places.tolist()
        beyond = [n for n, place in enumerate(wanted) if place >= limit]
        if beyond:
            raise KernelFault("scatter_update", beyond[0])
        if windowed:
            new_places = Places(wanted)
            for memory, rows in windowed:
                new_places.put(memory, rows)
        if len(wanted) == 1:
            place = wanted[0]
            if place >= 0:
                for state, new in plain:
                    state[place] = new[0]
        elif plain:
            kept = places >= 0
            at = places[kept]
            for state, new in plain:
                state[at] = new[kept]

    return work

"""Binding a program's weights: by typed role, checked against the store, uploaded once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from poot_executor.compile.program import WeightUse
from poot_executor.device import Buffer
from poot_executor.dtype import DType
from poot_executor.engine.transaction import Transaction
from poot_executor.errors import BindError, WeightError
from poot_executor.graph.graph import TensorType
from poot_executor.layout import WeightLayout
from poot_executor.weights import StoredTensor, WeightKey, WeightMap, WeightStore


@dataclass(frozen=True, slots=True)
class Run:
    """A stored run of bytes (host address, length) in one device layout: one buffer each."""

    address: int
    nbytes: int
    layout: WeightLayout


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A weight on the device. It keeps the stored bytes, so that their address stays theirs."""

    stored: StoredTensor
    buffer: Buffer


class WeightTable:
    """The weights of one executable: roles to store keys, and what is on the device already."""

    def __init__(self, store: WeightStore, weight_map: WeightMap) -> None:
        known = set(store.names())
        for key, name in weight_map.items():
            if name not in known:
                raise WeightError(f"weight {key} is mapped to {name!r}, which the checkpoint does not hold")
        self._store = store
        self._map = dict(weight_map)
        self._runs: dict[Run, Uploaded] = {}
        self._names: dict[tuple[str, WeightLayout], Buffer] = {}

    def bind(self, uses: Iterable[WeightUse], made: Transaction) -> BoundWeights:
        """A buffer for each weight that a program reads; new ones are uploaded through `made`.

        Nothing here changes until `publish`. Every weight is checked before the first is uploaded.
        Raises BindError for a role that the map does not name and WeightError for a stored tensor
        that is not what the program was compiled for.
        """
        checked = [(use, name, self._checked(use, name)) for use, name in self._named(uses)]
        bound = BoundWeights({}, {}, {})
        for use, name, stored in checked:
            named = (name, use.layout)
            run = Run(stored.data.ctypes.data, stored.data.nbytes, use.layout)
            buffer = self._names.get(named) or bound.names.get(named)
            if buffer is None:
                uploaded = self._runs.get(run) or bound.runs.get(run)
                if uploaded is None:
                    uploaded = Uploaded(stored, made.upload(use, stored))
                    bound.runs[run] = uploaded
                buffer = uploaded.buffer
                bound.names[named] = buffer
            bound.buffers[use.key] = buffer
        return bound

    def publish(self, bound: BoundWeights) -> None:
        """Keep what `bind` uploaded, for the entries that follow."""
        self._runs.update(bound.runs)
        self._names.update(bound.names)

    def buffers(self) -> list[Buffer]:
        """Every weight buffer of the executable, once."""
        return [uploaded.buffer for uploaded in self._runs.values()]

    def _named(self, uses: Iterable[WeightUse]) -> list[tuple[WeightUse, str]]:
        named: list[tuple[WeightUse, str]] = []
        for use in uses:
            if use.key not in self._map:
                raise BindError(f"weight {use.key} ({use.type}) is unbound: the weight map does not name it")
            named.append((use, self._map[use.key]))
        return named

    def _checked(self, use: WeightUse, name: str) -> StoredTensor:
        stored = self._store.tensor(name)
        check_stored(use, stored)
        return stored


@dataclass(frozen=True, slots=True)
class BoundWeights:
    """A program's weights by role, and those that were uploaded for it."""

    buffers: dict[WeightKey, Buffer]
    runs: dict[Run, Uploaded]
    names: dict[tuple[str, WeightLayout], Buffer]


def check_stored(use: WeightUse, stored: StoredTensor) -> None:
    """Compare a stored tensor with the weight that a program was compiled for.

    A dense weight has the stored shape and the format's dtype; a packed one is u8[…, row_bytes],
    its leading axes the stored ones or all of them as one. Raises WeightError naming the role, the
    key and both shapes.
    """
    layout, format = use.layout, stored.format
    where = f"weight {use.key} ({stored.name!r})"
    if format != layout.format:
        raise WeightError(f"{where} is stored as {format.name}; the program was compiled for {layout.format.name}")
    if prod(stored.shape) == 0:
        raise WeightError(f"{where} is empty: {list(stored.shape)}")
    columns = stored.shape[-1] if stored.shape else 1
    rows = prod(stored.shape[:-1])
    row_bytes = format.row_bytes(columns)
    if format.dtype is None:
        fits = use.type.dtype is DType.U8 and use.type.shape in (
            (*stored.shape[:-1], row_bytes),
            (rows, row_bytes),
        )
    else:
        fits = use.type == TensorType(tuple(stored.shape), format.dtype)
    if not fits or (layout.rows, layout.columns) != (rows, columns):
        raise WeightError(
            f"{where} is stored as {format.name}{list(stored.shape)}; "
            f"the program expects {use.type} of {layout.rows} rows × {layout.columns} columns"
        )
    if stored.data.nbytes != rows * row_bytes:
        raise WeightError(
            f"{where} has {stored.data.nbytes:,} stored bytes; "
            f"{format.name}{list(stored.shape)} takes {rows * row_bytes:,}"
        )

"""Checkpoint names to typed roles: what a family expects, checked against what a store holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType

from poot_executor.errors import WeightError
from poot_executor.weights import WeightKey, WeightMap, WeightStore
from poot_llm.blocks.weights import StoredWeight, Weights


@dataclass(frozen=True, slots=True)
class Expected:
    """A weight that a family reads: its role, the checkpoint's name for it and its shape, row-major.

    A matrix may be stored packed; any other weight is dense. Two roles may name one tensor.
    """

    key: WeightKey
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundWeights:
    """A store's tensors by role: `names` for the engine, `stored` for the trace."""

    names: WeightMap
    stored: Weights


def bind_weights(
    expected: Iterable[Expected],
    store: WeightStore,
    ignored: Callable[[str], bool] = lambda _: False,
) -> BoundWeights:
    """Find every expected weight in the store, one after the other.

    Raises WeightError naming the tensor that is missing, has another shape, or is left over (unless
    `ignored` holds for its name), and Unsupported for a format that poot does not decode.
    """
    left = dict.fromkeys(store.names())
    names: dict[WeightKey, str] = {}
    stored: dict[WeightKey, StoredWeight] = {}
    for item in expected:
        if item.name not in left and item.name not in names.values():
            raise WeightError(f"the checkpoint has no tensor {item.name!r} for {item.key} {list(item.shape)}")
        left.pop(item.name, None)
        names[item.key] = item.name
        stored[item.key] = _checked(item, store)
    surplus = [name for name in left if not ignored(name)]
    if surplus:
        shown = ", ".join(repr(name) for name in surplus[:5])
        more = f" and {len(surplus) - 5} more" if len(surplus) > 5 else ""
        raise WeightError(f"the checkpoint has tensors that the model does not read: {shown}{more}")
    return BoundWeights(MappingProxyType(names), MappingProxyType(stored))


def _checked(item: Expected, store: WeightStore) -> StoredWeight:
    tensor = store.tensor(item.name)
    if tensor.shape != item.shape:
        raise WeightError(f"tensor {item.name!r} is {list(tensor.shape)}, {item.key} is {list(item.shape)}")
    if tensor.format.is_packed and len(item.shape) != 2:
        raise WeightError(f"tensor {item.name!r} is {tensor.format.name}, {item.key} is dense")
    return StoredWeight(tensor.format, tensor.shape)

"""State of an executable: one buffer a key, shared by its entries; a smaller type sees a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from poot_executor.compile.program import StateUse
from poot_executor.device import Buffer, Device
from poot_executor.errors import BindError
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import StateKey

ZERO_BYTES = 4 << 20
"""Host bytes of zeros written at a time by a reset, so that its host memory stays bounded."""


@dataclass(frozen=True, slots=True)
class State:
    """A state on the device: the largest type that an entry gave it, and its buffer."""

    type: TensorType
    buffer: Buffer


def new_state_types(
    held: Mapping[StateKey, State], uses: Iterable[StateUse], *, dirty: bool
) -> dict[StateKey, TensorType]:
    """The states that must be allocated for `uses`: unknown ones, and those that must grow.

    Types agree where they are equal or differ in the length of axis 0 alone: positions come first,
    so the smaller one sees a prefix of the buffer. Growing loses what the state holds, so it is
    refused once a step ran (`dirty`), until the state is reset. Raises BindError with both types.
    """
    types = {key: state.type for key, state in held.items()}
    fresh: dict[StateKey, TensorType] = {}
    for use in uses:
        have = types.get(use.key)
        if have is not None and not _prefix(have, use.type) and not _prefix(use.type, have):
            raise BindError(f"state {use.key} is {have} in this executable; the program has {use.type}")
        if have is not None and _prefix(use.type, have):
            continue
        if have is not None and dirty:
            raise BindError(
                f"state {use.key} would grow from {have} to {use.type} and lose its contents: "
                "add the largest entry first, or call reset_state before"
            )
        types[use.key] = fresh[use.key] = use.type
    return fresh


def _prefix(small: TensorType, large: TensorType) -> bool:
    """Whether `small` is `large` or its first rows."""
    if small == large:
        return True
    same = small.dtype is large.dtype and len(small.shape) == len(large.shape) > 0
    return same and small.shape[1:] == large.shape[1:] and small.shape[0] <= large.shape[0]


def write_zeros(device: Device, buffer: Buffer) -> None:
    """Zero a whole buffer from the host, a bounded run at a time."""
    zeros = np.zeros(min(ZERO_BYTES, buffer.nbytes), np.uint8)
    for offset in range(0, buffer.nbytes, ZERO_BYTES):
        device.write(buffer, zeros[: buffer.nbytes - offset], offset)

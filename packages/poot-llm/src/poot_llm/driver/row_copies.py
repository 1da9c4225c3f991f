"""Copies between rows of contiguous KV, of what a prompt shares with another row, where that beats computing it."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from poot_executor.executor import EntryId
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import StateKey, Storage
from poot_llm.blocks.step import StepShape
from poot_llm.driver.loaded import LoadedModel
from poot_llm.models.copy_graph import COUNT, SOURCE, TARGET, trace_copy
from poot_llm.models.step_graph import trace_step
from poot_llm.sampling import Suffix

LEAST = 64
"""Positions that are copied while it is not known how long copying and reading take."""
MEMORY = 0.5
"""Weight of what was measured before in a running mean."""


class RowCopies:
    """The copying step of a driver of `shape`, that of all its rows. It is prepared once; until then nothing is worth a
    copy.
    """

    def __init__(self, model: LoadedModel, shape: StepShape) -> None:
        self._model = model
        self._shape = shape
        self._entry: EntryId | None = None
        self._seconds: float | None = None
        self._pace: float | None = None
        self.copies = 0
        """Copies so far."""

    def prepare(self) -> None:
        """Compile and add the step, if it is not there. Raises what compiling and adding raise."""
        if self._entry is None:
            graph = trace_copy(self._states(), self._shape.rows, self._shape.capacity)
            self._entry = self._model.add(graph, ahead=False)

    def worth(self, positions: int) -> bool:
        """Whether copying is quicker than reading so many positions again."""
        if self._entry is None:
            return False
        if self._seconds is None or self._pace is None:
            return positions >= LEAST
        return self._seconds < positions * self._pace

    def copy(self, source: int, target: int, count: int) -> bool:
        """The first positions of a row become those of another; False where the step failed, and the states were reset.

        Raises DeviceError only where the device cannot go on.
        """
        assert self._entry is not None
        flights = self._model.flights
        flights.drain()
        started = perf_counter()
        inputs = {key: np.array([n], np.int32) for key, n in ((SOURCE, source), (TARGET, target), (COUNT, count))}
        flight = flights.submit(self._entry, inputs, 1)
        flights.finish(flight)
        if flight.outputs is None:
            return False
        self.copies += 1
        self._seconds = _mean(self._seconds, perf_counter() - started)
        return True

    def took(self, shape: StepShape, seconds: float) -> None:
        """A step that read prompts took so long, alone."""
        if shape.tokens > 1 and not shape.window:
            self._pace = _mean(self._pace, seconds / shape.tokens)

    def _states(self) -> dict[StateKey, TensorType]:
        """The states of a step that hold something of each position."""
        handle, shape, activations = self._model.handle, self._shape, self._model.options.activations
        graph = trace_step(handle.family, handle.config, shape, handle.weights, Suffix.GREEDY, activations)
        found: dict[StateKey, TensorType] = {}
        for item in graph.inputs:
            kind = item.value.type
            if item.storage is Storage.STATE and len(kind.shape) > 1 and kind.shape[0] == shape.positions:
                assert isinstance(item.key, StateKey)
                found[item.key] = kind
        return found


def _mean(held: float | None, fresh: float) -> float:
    return fresh if held is None else MEMORY * held + (1 - MEMORY) * fresh

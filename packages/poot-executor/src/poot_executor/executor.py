"""What a driver holds: loads weights, adds entries, runs steps, and never learns the backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NewType, Self

from numpy.typing import NDArray

from poot_executor.compile.program import Program
from poot_executor.compile.target import Target
from poot_executor.graph.keys import SlotKey
from poot_executor.stats import EngineStats
from poot_executor.weights import WeightMap, WeightStore

ExecutableId = NewType("ExecutableId", int)
EntryId = NewType("EntryId", int)
StepId = NewType("StepId", int)

StepInputs = Mapping[SlotKey, NDArray[Any]]
"""Every slot of an entry, of its exact shape and of the numpy dtype that holds its element type."""


class StepOutputs(Mapping[str, NDArray[Any]]):
    """The named outputs of one step, as numpy holds them (see `dtype`), read-only.

    Outputs of a step may share one block of host memory: copy one that is to outlive the others.
    """

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"StepOutputs({', '.join(f'{k}={v!r}' for k, v in self._arrays.items())})"


class Executor(ABC):
    """Executables, entries, steps. Calls come from one thread.

    An *executable* is a set of weights with the state that its entries share; an *entry* is one
    program (one step shape) of it. A *step* runs an entry once, in place on the state. Steps are
    collected in the order they were submitted in; one may be submitted ahead of another that is
    not collected yet. Ids are never used twice. An id that is unknown or gone is a BindError, a
    call out of order a CallOrder. docs/contract.md has the failure table.
    """

    @property
    @abstractmethod
    def target_set(self) -> tuple[Target, ...]:
        """The targets that it drives: one, or several for tensor parallelism."""

    @abstractmethod
    def load_weights(self, store: WeightStore, weight_map: WeightMap) -> ExecutableId:
        """A new executable over a store. Nothing is uploaded yet.

        `weight_map` binds roles to store keys; raises WeightError where it names a key that the
        store lacks. A const that it does not name stays unbound, even where a store key spells it.
        """

    @abstractmethod
    def add_entry(self, executable: ExecutableId, program: Program) -> EntryId:
        """Bind a program's weights, state and blocks. All or nothing: a failure changes nothing.

        A weight is uploaded once per stored run of bytes and layout; state is shared by key and
        type. Raises BindError (an unbound weight, a state of another type, a program for another
        target), WeightError (a stored tensor of another shape or format), OutOfMemory, and
        CallOrder while a step is submitted.
        """

    @abstractmethod
    def prepare(self, executable: ExecutableId, entry: EntryId, *, ahead: bool = False) -> None:
        """Record an entry before its first step. `ahead`: for a step submitted ahead too."""

    @abstractmethod
    def submit(self, executable: ExecutableId, entry: EntryId, inputs: StepInputs) -> StepId:
        """Check and write the inputs and start the step. At most one may be submitted ahead.

        Raises BindError for an input that is missing, unknown, or of another shape or dtype, before
        anything is written; NeedsReset after a step of this executable that failed.
        """

    @abstractmethod
    def collect(self, step: StepId) -> StepOutputs:
        """Wait for the oldest submitted step, examine its checks, return its outputs.

        Raises CheckFailed before any output is read out, KernelFault, DeviceLost or DeviceTimeout.
        After any failure the executable needs `reset_state`; steps submitted behind are discarded.
        """

    @abstractmethod
    def step(self, executable: ExecutableId, entry: EntryId, inputs: StepInputs) -> StepOutputs:
        """`submit`, then `collect`. Raises CallOrder while another step waits to be collected."""

    @abstractmethod
    def reset_state(self, executable: ExecutableId) -> None:
        """Zero-fill every state. Its submitted steps are waited for and discarded."""

    @abstractmethod
    def remove_entry(self, executable: ExecutableId, entry: EntryId) -> None:
        """Give an entry's recordings and blocks back. Weights, state and arena stay."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """Counters; it never fails, also when poisoned."""

    @abstractmethod
    def unload(self, executable: ExecutableId) -> None:
        """Give an executable back. Its submitted steps are waited for and discarded."""

    @abstractmethod
    def close(self) -> None:
        """Unload every executable; idempotent. The device stays open: its opener closes it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

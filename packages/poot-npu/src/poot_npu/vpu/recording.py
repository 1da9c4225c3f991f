"""A recording: models bound to memory, and what the host does between and behind them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from poot_executor.compile.program import Program
from poot_executor.device import Bindings
from poot_executor.errors import DeviceTimeout, KernelFault
from poot_npu.vpu.bound_windows import BoundWindows
from poot_npu.vpu.compiler import Compiled
from poot_npu.vpu.homes import Homes
from poot_npu.vpu.host_work import computed, copied, replaced, rows_replaced
from poot_npu.vpu.loading import Later
from poot_npu.vpu.lowering import NO_FAULT
from poot_npu.vpu.memory import memory_of
from poot_npu.vpu.model import Interface, Lowered
from poot_npu.vpu.plan import RowUpdate
from poot_npu.vpu.sweep import Swept, sweep_of
from poot_npu.vpu.window import drop

MILLISECONDS = 1000.0


@dataclass(frozen=True, slots=True, eq=False)
class BoundStage:
    """A model's request over its memory, where there is a model, and the host's part behind it."""

    request: Any
    faults: NDArray[np.int32]
    names: tuple[str, ...]
    host: tuple[Callable[[], None], ...]
    keep: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class BoundStep:
    """One step over fixed memory. `prepare` is what the host does before the first model, and before `windows` are made
    to fit."""

    stages: tuple[BoundStage, ...]
    prepare: Callable[[], None]
    windows: BoundWindows | None
    finish: tuple[Callable[[], None], ...]

    def look(self) -> Swept | None:
        """What a step sweeps, of the inputs as they are: for one that starts once another is over."""
        return None if self.windows is None else self.windows.look()

    def start(self, swept: Swept | None = None) -> None:
        """Submit the first model; it returns at once. `swept` is what `look` said of the same inputs."""
        self.prepare()
        if self.windows is not None:
            self.windows.fit(self.windows.look() if swept is None else swept)
        first = self.stages[0]
        if first.request is not None:
            first.request.start_async()

    def complete(self, timeout: float) -> None:
        """Wait for it, then do the rest. Raises KernelFault for an index that was out of range, DeviceTimeout."""
        deadline = monotonic() + timeout
        for number, stage in enumerate(self.stages):
            if stage.request is not None:
                if number:
                    stage.request.start_async()
                if not stage.request.wait_for(max(int((deadline - monotonic()) * MILLISECONDS), 1)):
                    raise DeviceTimeout("a step on OpenVINO", timeout)
            for name, place in zip(stage.names, stage.faults.tolist(), strict=True):
                if place != NO_FAULT:
                    raise KernelFault(name, place)
            for work in stage.host:
                work()
        for work in self.finish:
            work()

    def abandon(self) -> None:
        """Stop a submitted step at the next operation, and wait until nothing writes to its memory any more."""
        for stage in self.stages:
            if stage.request is not None:
                with contextlib.suppress(RuntimeError):  # that it was cancelled, or never started
                    stage.request.cancel()
                    stage.request.wait()


class VpuRecording:
    """A step that is bound to its models when they are first needed: they may still be read from disk until then.

    `touched` are the buffers that a replay reads or writes.
    """

    __slots__ = ("_bind", "_bound", "_models", "_timeout", "touched")

    def __init__(
        self, bindings: Bindings, models: Later[Compiled], bind: Callable[[Compiled], BoundStep], timeout: float
    ) -> None:
        self.touched = frozenset((*bindings.states.values(), bindings.inputs.buffer, bindings.outputs.buffer))
        self._models = models
        self._bind = bind
        self._timeout = timeout
        self._bound: BoundStep | None = None

    @property
    def ready(self) -> bool:
        """Whether `bound` waits for nothing."""
        return self._bound is not None or self._models.done

    def bound(self) -> BoundStep:
        """The step, its models being waited for. Raises what reading them raised, and DeviceTimeout."""
        if self._bound is None:
            self._bound = self._bind(self._models.result(self._timeout))
        return self._bound

    def abandon(self) -> None:
        """Stop it where it was submitted."""
        if self._bound is not None:
            self._bound.abandon()


def bind(
    lowered: Lowered, faces: Sequence[Interface | None], compiled: Sequence[Any], program: Program, bindings: Bindings
) -> BoundStep:
    """Requests of the compiled models over this memory."""
    homes = Homes(lowered.graph, program, bindings)
    rows = homes.together([a.values.rows for a in lowered.attentions])
    stages = []
    for face, made, stage in zip(faces, compiled, lowered.plan.stages, strict=True):
        request, faults, names = None, np.empty(0, np.int32), ()
        keep: list[Any] = []
        if face is not None:
            request, names = made.create_infer_request(), face.faults
            faults = np.full(len(names), NO_FAULT, np.int32)
            keep = _bound(request, face, homes, faults)
        host = tuple(computed(lowered.graph, equation, homes) for equation in stage.host)
        stages.append(BoundStage(request, faults, names, host, tuple(keep)))
    finish = [*copied(homes), *rows_replaced(lowered, homes), *replaced(lowered, homes)]
    windows, first = None, faces[0]
    if first is not None and first.windows:
        memories = [memory_of(bindings.states[use.key]) for use in first.windows]
        sweep = sweep_of(lowered.graph, lowered.attentions, homes.slot)
        before = len(first.reads) + len(first.tables)
        windows = BoundWindows(stages[0].request, first.windows, memories, before, sweep, rows)
        finish.insert(0, windows.check)
    return BoundStep(tuple(stages), _dropped(lowered, bindings), windows, tuple(finish))


def _dropped(lowered: Lowered, bindings: Bindings) -> Callable[[], None]:
    """States that the program reads and writes as they are: no window may be ahead of them."""
    windowed = {u.key for u in lowered.plan.updates if isinstance(u, RowUpdate) and u.windowed}
    memories = [memory_of(buffer) for key, buffer in bindings.states.items() if key not in windowed]

    def work() -> None:
        for memory in memories:
            drop(memory)

    return work


def _bound(request: Any, model: Interface, homes: Homes, faults: NDArray[np.int32]) -> list[Any]:
    keep: list[Any] = []
    for place, value in enumerate(model.reads):
        keep.append(homes.tensor(value))
        request.set_input_tensor(place, keep[-1])
    for place, key in enumerate(model.tables, len(model.reads)):
        keep.append(homes.table(key))
        request.set_input_tensor(place, keep[-1])
    for place, value in enumerate(model.writes):
        keep.append(homes.tensor(value))
        request.set_output_tensor(place, keep[-1])
    if model.faults:
        keep.append(openvino.Tensor(faults, shared_memory=True))
        request.set_output_tensor(len(model.writes), keep[-1])
    return keep

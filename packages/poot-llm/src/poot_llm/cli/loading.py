"""What a terminal shows while a model is loaded: the stage and the seconds, gone when the first text comes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from poot_executor.engine import Engine
from poot_llm.driver import Driver
from poot_llm.generation import TextPiece, TextStream
from poot_llm.sampling import SamplingParams

if TYPE_CHECKING:
    from rich.progress import Progress

    from poot_executor.compile.program import Program
    from poot_executor.device import Device
    from poot_executor.executor import EntryId, ExecutableId


class Loading:
    """A line on standard error that turns while it is entered, on a terminal; elsewhere nothing.

    It can be entered again: a conversation that grows prepares further steps.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._line: Progress | None = None

    def stage(self, text: str) -> None:
        """Say what is being done now. Outside of it nothing."""
        if self._line is not None:
            self._line.update(self._line.task_ids[0], description=f"{self._what}: {text}")

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._line = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
            self._line.add_task(self._what, total=None)
            try:
                self._line.start()
            except BaseException:  # A Ctrl-C: nobody leaves what was not entered, and the line would go on turning.
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.stop()
            self._line = None

    def stream(self, driver: Driver, prompt_ids: Sequence[int], params: SamplingParams) -> TextStream:
        """The answer to a prompt, the steps that it needs prepared. Raises what `TextStream` does."""
        with self:
            self.stage("preparing")
            return TextStream(driver, prompt_ids, params)

    def pieces(self, stream: TextStream) -> Iterator[TextPiece]:
        """The pieces of an answer; the line shows until the first one comes."""
        with self:
            self.stage("reading the prompt")
            first = next(stream)
        yield first
        yield from stream


class StagedEngine(Engine):
    """An engine that says how far the preparation of its steps is."""

    def __init__(self, device: Device, stage: Callable[[str], None]) -> None:
        super().__init__(device)
        self._stage = stage
        self._step = 1

    def add_entry(self, executable: ExecutableId, program: Program) -> EntryId:
        """As `Engine.add_entry`; the first one uploads the weights."""
        self._stage(f"step {self._step}, loading")
        return super().add_entry(executable, program)

    def prepare(self, executable: ExecutableId, entry: EntryId, *, ahead: bool = False) -> None:
        """As `Engine.prepare`. What follows it is the next step's compilation, if there is one."""
        self._stage(f"step {self._step}, recording")
        super().prepare(executable, entry, ahead=ahead)
        self._step += 1
        self._stage(f"step {self._step}, compiling")

"""A model whose weights are on an executor: what every part of a driver that adds entries starts from."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

from poot_executor.compile import Program, Target
from poot_executor.compile.several import compile_several
from poot_executor.executor import EntryId, ExecutableId, Executor
from poot_executor.graph.graph import Graph
from poot_llm.driver.entry_budget import EntryBudget
from poot_llm.driver.flights import Flights
from poot_llm.driver.options import DriverOptions
from poot_llm.registry import ModelHandle


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as one executable. All of its entries count in one budget, and its steps are submitted through `flights`
    alone.
    """

    handle: ModelHandle
    executor: Executor
    executable: ExecutableId
    options: DriverOptions
    flights: Flights
    budget: EntryBudget

    @property
    def target(self) -> Target:
        """What its entries are compiled for."""
        return self.executor.target_set[0]

    def add(self, graph: Graph, *, ahead: bool) -> EntryId:
        """Compile a graph, add it, and prepare one step of it, or two where one is submitted ahead. Steps that are
        under way are waited for first.

        Raises CompileLimit beyond the budget, and what compiling and adding raise.
        """
        (program,) = self.compiled([[graph]])
        return self.add_program(program, ahead=ahead)

    def compiled(self, groups: Sequence[Sequence[Graph]]) -> Generator[Program, None, None]:
        """The programs of graphs in order, each when it is asked for; those of a group have most of their kernels in
        common. Raises CompileLimit beyond the budget of entries, before it compiles, and what compiling raises.
        """
        programs = compile_several(groups, self.target, self.options.compile_options)
        with closing(programs):
            for _ in chain.from_iterable(groups):
                self.budget.check()
                yield next(programs)

    def add_program(self, program: Program, *, ahead: bool) -> EntryId:
        """The second half of `add`."""
        self.budget.check(program)
        self.flights.drain()
        entry = self.executor.add_entry(self.executable, program)
        self.executor.prepare(self.executable, entry, ahead=ahead)
        self.budget.take(program)
        return entry

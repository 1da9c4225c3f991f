"""A model whose weights are on an executor: what every part of a driver that adds entries starts from."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.compile import Target, compile
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
        self.budget.check()
        program = compile(graph, self.target, self.options.compile_options)
        self.budget.check(program)
        self.flights.drain()
        entry = self.executor.add_entry(self.executable, program)
        self.executor.prepare(self.executable, entry, ahead=ahead)
        self.budget.take(program)
        return entry

"""What a driver says of itself: its sizes, what is prepared, and what it has counted so far."""

from __future__ import annotations

from poot_executor.errors import Unsupported
from poot_executor.executor import Executor
from poot_executor.stats import EngineStats
from poot_llm.driver.decoding import Decoding
from poot_llm.driver.encoding import Encoding
from poot_llm.driver.flights import Flights
from poot_llm.driver.kv import KvLayout, KvUse
from poot_llm.driver.kv_fit import KvPlan
from poot_llm.driver.options import EntryKey
from poot_llm.driver.step_set import StepSet
from poot_llm.registry import ModelHandle


class DriverFacts:
    """The part of a driver that is read and changes nothing. What is of generating is Unsupported where the model does
    not.
    """

    handle: ModelHandle
    _executor: Executor
    _flights: Flights
    _encoding: Encoding
    _generating: Decoding | None

    @property
    def _decoding(self) -> Decoding:
        if self._generating is None:
            raise Unsupported(f"generation by {self.handle.name}", "it encodes texts, and gives no next token")
        return self._generating

    @property
    def plan(self) -> KvPlan:
        """What there is room for, and what was given up for it."""
        return self._decoding.plan

    @property
    def steps(self) -> StepSet:
        """Every step that can be prepared."""
        return self._decoding.steps

    @property
    def kv(self) -> KvLayout:
        """Where sequences keep K and V."""
        return self._decoding.kv

    @property
    def capacity(self) -> int:
        """Ids of prompt and answer that a sequence can hold."""
        return self._decoding.steps.capacity

    @property
    def rows(self) -> int:
        """Sequences that can be open at once."""
        return self._decoding.plan.rows

    @property
    def few_programs(self) -> bool:
        """Whether a program takes seconds to be made ready on the device, and memory of its own for weights."""
        return self._executor.target_set[0].caps.few_programs

    @property
    def prepare_seconds(self) -> float:
        """Wall time spent so far on compiling and adding entries."""
        return self._encoding.seconds + (0.0 if self._generating is None else self._generating.entries.seconds)

    @property
    def wait_seconds(self) -> float:
        """Wall time spent so far on waiting for submitted steps."""
        return self._flights.waited

    @property
    def device_seconds(self) -> float:
        """Processor time that the calling thread spent so far inside the executor: to begin steps, and to end them."""
        return self._flights.used

    def stats(self) -> EngineStats:
        """What lies under it counts."""
        return self._executor.stats()

    @property
    def prepared(self) -> tuple[EntryKey, ...]:
        """The steps that can run without compiling anything."""
        return self._decoding.entries.keys()

    def use(self) -> KvUse:
        """Rows, blocks and reused positions, as they are now."""
        return self._decoding.kv.use()

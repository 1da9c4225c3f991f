"""What a driver has for a model that generates: room for K and V, steps, and the sequences that take them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poot_executor.compile.target import Granularity
from poot_executor.executor import Executor
from poot_llm.blocks.step import StepShape
from poot_llm.driver.contiguous_kv import ContiguousKv
from poot_llm.driver.entries import Entries
from poot_llm.driver.forced import Forcing
from poot_llm.driver.grouping import PROGRAM, Grouping
from poot_llm.driver.guesses import Guesser
from poot_llm.driver.kv import KvLayout
from poot_llm.driver.kv_fit import KvPlan, fit
from poot_llm.driver.loaded import LoadedModel
from poot_llm.driver.open_sequences import OpenSequences
from poot_llm.driver.options import DriverOptions, EntryKey, Layout
from poot_llm.driver.paged_kv import PagedKv
from poot_llm.driver.preparation import Preparation
from poot_llm.driver.requests import Requests
from poot_llm.driver.row_copies import RowCopies
from poot_llm.driver.step_set import StepSet
from poot_llm.driver.stepper import Stepper
from poot_llm.registry import ModelHandle
from poot_llm.sampling import Suffix


@dataclass(frozen=True, slots=True)
class DecodingPlan:
    """Sizes that are settled before weights are loaded: what there is room for, and the steps that follow from it."""

    kv: KvPlan
    steps: StepSet

    @classmethod
    def of(cls, handle: ModelHandle, executor: Executor, options: DriverOptions) -> DecodingPlan:
        """Raises SettingsError for options that the model or the executor does not allow, or that the device's memory
        does not hold.
        """
        caps = executor.target_set[0].caps
        paged = options.layout is Layout.PAGED or (
            options.layout is Layout.AUTO and options.rows > 1 and caps.granularity is Granularity.KERNEL
        )
        limits = [n for n in (caps.max_binding_bytes, caps.max_buffer_bytes) if n is not None]
        kv = fit(handle, options, paged, executor.stats().memory, min(limits, default=None))
        sized = replace(options, rows=kv.rows)
        return cls(kv, StepSet.of(sized, handle.config.context, kv.blocks, kv.capacity, caps.few_programs))


@dataclass(frozen=True, slots=True)
class Decoding:
    """The parts of a driver that generate."""

    plan: KvPlan
    steps: StepSet
    kv: KvLayout
    entries: Entries
    preparation: Preparation
    requests: Requests
    sequences: OpenSequences
    stepper: Stepper
    copies: RowCopies | None

    @classmethod
    def of(cls, plan: DecodingPlan, model: LoadedModel) -> Decoding:
        """Nothing is compiled or uploaded yet."""
        handle, options, steps = model.handle, model.options, plan.steps
        largest = EntryKey(PROGRAM, steps.largest(), Suffix.GREEDY)
        copies = None
        if plan.kv.blocks is None and plan.kv.rows > 1 and options.prefix_cache:
            all_rows = StepShape(plan.kv.rows, 1, steps.capacity, steps.capacity)
            copies = RowCopies(model, all_rows)
        kv = _layout(plan.kv, options.prefix_cache, copies)
        entries = Entries(model, largest)
        # Another checkpoint, adapter or dtype gives other K and V for the same ids.
        identity = handle, None, options.activations
        together = kv.fixed_rows and not steps.single
        grouping = Grouping(entries, kv.fixed_rows, together, 1 if steps.single else options.prefill_rows)
        stepper = Stepper(
            model.flights,
            kv,
            grouping,
            None if options.window is None else Guesser(options.window - 1),
            Forcing(grouping) if options.jump_ahead else None,
            copies,
            {name: width(handle.config) for name, width in handle.family.inputs.items()},
            options.ahead,
        )
        return cls(
            plan.kv,
            steps,
            kv,
            entries,
            Preparation(steps, kv, entries, options.jump_ahead),
            Requests(handle, steps.capacity),
            OpenSequences(kv, steps.capacity, handle.config.vocabulary, identity, copies),
            stepper,
            copies,
        )


def _layout(plan: KvPlan, cache: bool | None, copies: RowCopies | None) -> KvLayout:
    if plan.blocks is None and copies is not None:
        return ContiguousKv(plan.rows, plan.capacity, True, copies.worth)
    if plan.blocks is None:
        return ContiguousKv(plan.rows, plan.capacity, cache is True)
    return PagedKv(plan.rows, plan.capacity, plan.blocks, cache is not False)

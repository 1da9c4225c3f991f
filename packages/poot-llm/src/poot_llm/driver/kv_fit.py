"""How much KV a device holds: sizes from its own figures, what was given up to fit, and a refusal with numbers."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from poot_executor.device import MemoryInfo
from poot_executor.dtype import DType
from poot_executor.errors import SettingsError
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import Storage
from poot_llm.blocks.step import BLOCK, StepShape
from poot_llm.driver.options import DriverOptions
from poot_llm.driver.step_set import wanted_capacity
from poot_llm.models.step_graph import trace_step
from poot_llm.registry import ModelHandle
from poot_llm.sampling import Suffix

LEAST_CAPACITY = 256
"""A capacity that nobody asked for may shrink to this."""
_LOG = logging.getLogger("poot.driver")


@dataclass(frozen=True, slots=True)
class KvPrice:
    """Bytes of KV of one position: of all layers together, and of the largest single state."""

    position: int
    state: int


@dataclass(frozen=True, slots=True)
class KvPlan:
    """What a driver has room for. `blocks` of a pool, the reserved one among them; None where KV is contiguous. Sizes
    in bytes; `budget` is None where the device does not say what is free.
    """

    rows: int
    capacity: int
    blocks: int | None
    kv_bytes: int
    weight_bytes: int
    budget: int | None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = "contiguous" if self.blocks is None else f"{self.blocks - 1} blocks of {BLOCK}"
        known = "the device's free memory is unknown" if self.budget is None else f"of {_size(self.budget)} to be used"
        text = (
            f"KV for {self.rows} rows of {self.capacity} positions, {where}: {_size(self.kv_bytes)}, "
            f"weights {_size(self.weight_bytes)}, {known}"
        )
        return "; ".join((text, *self.notes))


def kv_price(handle: ModelHandle, activations: DType) -> KvPrice:
    """From what the model's family says of its KV, else from the states of a step, which takes a trace."""
    sizes = [state.nbytes for state in kv_states(handle, activations)]
    return KvPrice(sum(sizes), max(sizes, default=0))


def kv_states(handle: ModelHandle, activations: DType) -> list[TensorType]:
    """What each KV state of a step holds of one position."""
    if handle.family.kv is not None:
        return [TensorType(shape, activations) for shape in handle.family.kv(handle.config)]
    shape = StepShape(1, 1, BLOCK, BLOCK)
    graph = trace_step(handle.family, handle.config, shape, handle.weights, Suffix.GREEDY, activations)
    states = [item.value.type for item in graph.inputs if item.storage is Storage.STATE]
    return [TensorType(kept.shape[1:], kept.dtype) for kept in states if len(kept.shape) > 1]


def fit(
    handle: ModelHandle,
    options: DriverOptions,
    paged: bool,
    memory: MemoryInfo | None,
    state_limit: int | None,
) -> KvPlan:
    """Rows, capacity and pool that fit what `memory_fraction` of the free memory leaves beside the weights, and states
    of at most `state_limit` bytes.

    A pool that was not asked for shrinks first, as long as it holds one full row; then a capacity that was not asked
    for, down to 256; then the rows. Raises SettingsError where even that does not fit, with the numbers and the setting
    that would.
    """
    capacity, rows = wanted_capacity(options, handle.config.context), options.rows
    price = kv_price(handle, options.activations)
    budget = _budget(memory, options.memory_fraction)
    room = _room(price, handle.stored_bytes, budget, state_limit)
    plan = (_fit_pool if paged else _fit_rows)(options, capacity, rows, room)
    if plan is None:
        raise SettingsError(_refusal(handle, options, paged, capacity, price, budget, state_limit, room))
    rows_now, capacity_now, blocks = plan
    notes = []
    if capacity_now < capacity:
        notes.append(f"the capacity shrank from {capacity} to fit")
    if rows_now < rows:
        notes.append(f"the rows shrank from {rows} to fit")
    wanted = rows_now * -(-capacity_now // BLOCK) + 1
    if blocks is not None and options.pool_blocks is None and blocks < wanted:
        notes.append(f"the pool holds {blocks - 1} of the {wanted - 1} blocks that full rows take")
    positions = rows_now * capacity_now if blocks is None else blocks * BLOCK
    made = KvPlan(rows_now, capacity_now, blocks, positions * price.position, handle.stored_bytes, budget, tuple(notes))
    (_LOG.warning if notes else _LOG.info)("%s", made)
    return made


def _budget(memory: MemoryInfo | None, fraction: float) -> int | None:
    """Bytes that a driver may take: of what is free, or of the limit less what is used."""
    if memory is None:
        return None
    if memory.free is not None:
        return int(memory.free * fraction)
    if memory.limit is not None:
        return int((memory.limit - sum(memory.used.values())) * fraction)
    return None


def _room(price: KvPrice, weights: int, budget: int | None, state_limit: int | None) -> int | None:
    """Positions that fit in all; None where nothing is known."""
    limits = []
    if budget is not None:
        limits.append(max(budget - weights, 0) // max(price.position, 1))
    if state_limit is not None:
        limits.append(state_limit // max(price.state, 1))
    return min(limits, default=None)


def _fit_pool(options: DriverOptions, capacity: int, rows: int, room: int | None) -> tuple[int, int, int | None] | None:
    """Rows, capacity and blocks; None where they do not fit."""
    most = None if room is None else room // BLOCK
    if options.pool_blocks is not None:
        blocks = options.pool_blocks
        if most is not None and blocks > most:
            return None
    else:
        blocks = rows * -(-capacity // BLOCK) + 1
        if most is not None:
            blocks = min(blocks, most)
    held = (blocks - 1) * BLOCK
    if held < capacity:
        if options.capacity is not None or held < min(capacity, LEAST_CAPACITY):
            return None
        capacity = held
    return min(rows, blocks - 1), capacity, blocks


def _fit_rows(options: DriverOptions, capacity: int, rows: int, room: int | None) -> tuple[int, int, int | None] | None:
    """Rows and capacity of contiguous KV; None where they do not fit."""
    if room is None or rows * capacity <= room:
        return rows, capacity, None
    least = capacity if options.capacity is not None else min(capacity, LEAST_CAPACITY)
    smaller = min(capacity, room // rows)
    if smaller >= least:
        return rows, smaller, None
    fewer = room // least
    return (fewer, least, None) if fewer else None


def _refusal(
    handle: ModelHandle,
    options: DriverOptions,
    paged: bool,
    capacity: int,
    price: KvPrice,
    budget: int | None,
    state_limit: int | None,
    room: int | None,
) -> str:
    least = capacity if options.capacity is not None else min(capacity, LEAST_CAPACITY)
    wanted = least + BLOCK if paged else least
    if paged and options.pool_blocks is not None:
        wanted = max(wanted, options.pool_blocks * BLOCK)
        if (options.pool_blocks - 1) * BLOCK < least:
            return (
                f"pool_blocks is {options.pool_blocks}: {least} positions of one row take "
                f"{-(-least // BLOCK) + 1} with the reserved one"
            )
    room = room or 0
    needs = f"KV of {wanted} positions takes {_size(wanted * price.position)}"
    if budget is not None:
        needs += f" beside weights of {_size(handle.stored_bytes)}, and {_size(budget)} may be used"
    if state_limit is not None and wanted * price.state > state_limit:
        needs += f"; a state of it takes {_size(wanted * price.state)}, a buffer holds {_size(state_limit)}"
    usable = (room // BLOCK - 1) * BLOCK if paged else room
    if usable < 2:
        return f"{needs}: no capacity fits; take a smaller model, or free memory on the device"
    if paged and options.pool_blocks is not None and usable >= least:
        return f"{needs}: pool_blocks {room // BLOCK} would fit"
    return f"{needs}: capacity {usable} would fit"


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"

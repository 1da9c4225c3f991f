"""An interpreter of kernel IR: all threads of many groups at once, each operation one numpy call.

Threads that a branch leaves out are masked. A barrier is checked (every thread of the group must
reach it), races are found (`poot_eval.races`), and what the language leaves undefined gives
patterns that show.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval import kernel_fragments as fragments
from poot_eval.faults import CheckFault, DivergenceError, Fault
from poot_eval.kernel_halves import LANES, mma, pack_bf16, packed_fma
from poot_eval.kernel_memory import Lanes, Mask, Memory, Place, Spot
from poot_eval.kernel_values import evaluate, poison
from poot_eval.kernel_warpgroups import Copies, Readers
from poot_executor.errors import DeviceTimeout, KernelError
from poot_executor.kernel.fragments import FragmentType
from poot_executor.kernel.ir import Block, Kernel, Op, Val
from poot_executor.kernel.warpgroups import OPERATIONS

Array = NDArray[Any]

CHUNK_THREADS = 1 << 15
"""Threads that run as one axis, where memory allows: past this, arrays no longer fit a processor's
cache."""

CHUNK_BYTES = 256 << 20
"""Bound on the bytes of all values of one chunk."""


def run_kernel(
    kernel: Kernel,
    buffers: Sequence[Array],
    groups: tuple[int, int, int],
    *,
    subgroup_width: int = 8,
    detect_races: bool = True,
    strict: bool = False,
    counts: Sequence[int] | None = None,
    timeout: float | None = None,
) -> list[Fault]:
    """Run one dispatch. `buffers` are 1-D arrays of the parameters' dtypes, changed in place; they
    may overlap.

    `counts` are element counts as a dispatch binds them, the whole arrays unless given. The result
    lists the checks that failed and the accesses that left an array, each once a place. Raises
    RaceError and DivergenceError, with `strict` OutOfRangeError, DeviceTimeout after `timeout`
    seconds, and KernelError for buffers that do not fit the kernel.
    """
    sizes = _checked(kernel, buffers, counts)
    if any(n < 1 for n in groups):
        raise KernelError(f"kernel {kernel.name}: a grid of {groups} has no groups")
    memory = Memory(kernel, buffers, sizes, strict=strict, races=detect_races)
    deadline = None if timeout is None else (time.monotonic() + timeout, timeout)
    checks: dict[int, CheckFault] = {}
    total = groups[0] * groups[1] * groups[2]
    chunk = _chunk_groups(kernel)
    with np.errstate(all="ignore"):
        for first in range(0, total, chunk):
            lanes = Lanes(min(chunk, total - first), kernel.group_size, first)
            memory.enter(lanes)
            _Run(kernel, memory, lanes, groups, subgroup_width, deadline, checks).block(kernel.body, None)
    return [*checks.values(), *memory.faults.values()]


def _checked(kernel: Kernel, buffers: Sequence[Array], counts: Sequence[int] | None) -> list[int]:
    if len(buffers) != len(kernel.params):
        raise KernelError(f"kernel {kernel.name} has {len(kernel.params)} parameters, not {len(buffers)}")
    for param, data in zip(kernel.params, buffers, strict=True):
        if data.ndim != 1 or data.dtype != param.dtype.numpy or not data.flags.c_contiguous:
            got = f"{data.dtype}{list(data.shape)}"
            raise KernelError(f"kernel {kernel.name}: {param.name} is a contiguous {param.dtype}[n], not {got}")
    sizes = [data.size for data in buffers] if counts is None else list(counts)
    for param, data, count in zip(kernel.params, buffers, sizes, strict=True):
        if count > data.size:
            raise KernelError(f"kernel {kernel.name}: {param.name} has {data.size} elements, not {count}")
    return sizes


def _chunk_groups(kernel: Kernel) -> int:
    """Groups a chunk: every value may live, and so may every shared array."""
    values = 1 + sum(len(op.results) + sum(len(b.args) for b in op.blocks) for op in kernel.body.walk())
    shared = 32 * sum(array.count for array in kernel.shared)  # with its tracker
    by_bytes = CHUNK_BYTES // (8 * values * kernel.group_size + shared)
    return max(1, min(CHUNK_THREADS // kernel.group_size, by_bytes))


@dataclass(slots=True, eq=False)
class _Run:
    """One chunk of groups: its values so far are in `env`."""

    kernel: Kernel
    memory: Memory
    lanes: Lanes
    groups: tuple[int, int, int]
    width: int
    deadline: tuple[float, float] | None
    checks: dict[int, CheckFault]
    env: dict[Val, Array] = field(default_factory=dict)
    copies: Copies = field(default_factory=Copies)
    readers: Readers = field(default_factory=Readers)

    def block(self, block: Block, mask: Mask) -> list[Array]:
        """Run a block for the threads in `mask` (None: all). Returns what its `yield` gives."""
        env = self.env
        for op in block.ops:
            operands = [env[v] for v in op.operands]
            if op.kind == "yield":
                return operands
            special = _SPECIAL.get(op.kind)
            if special is not None:
                results = special(self, op, operands, mask)
            else:
                value = evaluate(op.kind, operands, op.attrs, op.result.type)
                if value is None:
                    raise KernelError(f"kernel {self.kernel.name}: there is no operation {op.kind!r}")
                results = (value,)
            env.update(zip(op.results, results, strict=True))
        return []

    def bind(self, block: Block, values: Sequence[Array]) -> None:
        self.env.update(zip(block.args, values, strict=True))

    def in_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline[0]:
            raise DeviceTimeout(f"kernel {self.kernel.name}", self.deadline[1])

    def place(self, op: Op) -> Place:
        if "buffer" in op.attrs:
            return self.memory.buffers[op.attrs["buffer"]]
        return self.memory.shared[op.attrs["array"]]

    def at(self, op: Op, mask: Mask) -> Spot:
        """Where a memory operation happens."""
        return Spot(self.place(op), self.lanes, mask, op.line)

    def whole(self, mask: Mask, size: int, op: Op) -> None:
        """Raises DivergenceError unless each run of `size` threads of a group is active as a whole
        or not at all."""
        if mask is None or mask.shape[1] == 1:
            return
        starts = np.arange(0, self.lanes.threads, size)
        active = np.add.reduceat(mask.astype(np.int64), starts, axis=1)
        sizes = np.diff(np.append(starts, self.lanes.threads))
        if ((active != 0) & (active != sizes)).any():
            where = f" ({op.line})" if op.line else ""
            raise DivergenceError(f"kernel {self.kernel.name}: {op.kind} in divergent control flow{where}")


# Places in the grid


def _group_id(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    linear = run.lanes.first + np.arange(run.lanes.groups, dtype=np.int64)
    x, y, _ = run.groups
    axis = (linear % x, linear // x % y, linear // (x * y))[op.attrs["axis"]]
    return (axis.astype(np.int32)[:, None],)


def _threads(run: _Run) -> Array:
    return np.arange(run.lanes.threads, dtype=np.int32)[None, :]


def _length(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    return (np.full((1, 1), run.place(op).count, np.int32),)


# Memory


def _load(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    return (run.memory.load(run.at(op, mask), operands[0], op.result.type.width),)


def _store(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    run.memory.store(run.at(op, mask), *operands)
    return ()


def _atomic(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    index, value = operands
    return (run.memory.atomic(run.at(op, mask), index, value, op.attrs["operation"]),)


def _barrier(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    run.whole(mask, run.lanes.threads, op)
    run.lanes.epoch = run.lanes.epoch + (1 if mask is None else mask.any(axis=1, keepdims=True))
    run.readers.barrier(run.memory, mask)
    return ()


def _check(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    failed = ~operands[0] if mask is None else ~operands[0] & mask
    if failed.any():
        group, thread = np.argwhere(np.broadcast_to(failed, run.lanes.shape))[0]
        code = op.attrs["code"]
        run.checks.setdefault(code, CheckFault(run.kernel.name, code, run.lanes.first + int(group), int(thread)))
    return ()


# Across threads

_REDUCE: Mapping[str, np.ufunc] = MappingProxyType({"sum": np.add, "max": np.maximum, "min": np.minimum})


def _group_reduce(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    run.whole(mask, run.lanes.threads, op)
    value = _full(run, operands[0])
    return (_REDUCE[op.kind.removeprefix("group_")].reduce(value, axis=1, keepdims=True, dtype=value.dtype),)


def _subgroup_reduce(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    run.whole(mask, run.width, op)
    value = _full(run, operands[0])
    starts = np.arange(0, run.lanes.threads, run.width)
    function = _REDUCE[op.kind.removeprefix("subgroup_")]
    reduced = function.reduceat(value, starts, axis=1, dtype=value.dtype)
    return (np.repeat(reduced, run.width, axis=1)[:, : run.lanes.threads],)


def _shuffle(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    run.whole(mask, run.width, op)
    lane = _threads(run) % run.width
    wanted = lane ^ np.int32(op.attrs["mask"]) if op.kind == "subgroup_shuffle_xor" else operands[1]
    source = _threads(run) - lane + wanted
    valid = (wanted >= 0) & (wanted < run.width) & (source < run.lanes.threads)
    value = _full(run, operands[0])
    at = np.broadcast_to(np.where(valid, source, 0), value.shape)
    return (np.where(valid, np.take_along_axis(value, at, axis=1), poison(op.result.dtype)),)


def _mma(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    if run.width != LANES or run.lanes.threads % LANES:
        raise KernelError(f"kernel {run.kernel.name}: mma takes whole subgroups of {LANES} threads")
    run.whole(mask, run.lanes.threads, op)
    a, b, c = (np.broadcast_to(x, (run.lanes.groups, run.lanes.threads, x.shape[2])) for x in operands)
    return (mma(a, b, c, op.attrs["half"]),)


def _packed_fma(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    a, b, c = operands
    return (packed_fma(a, b, c, op.attrs["half"]),)


def _fragment(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    if run.lanes.threads % run.width:
        raise KernelError(f"kernel {run.kernel.name}: {op.kind} takes whole subgroups of {run.width} threads")
    run.whole(mask, run.lanes.threads, op)
    match op.kind:
        case "fragment_load":
            return (fragments.load(run.memory, run.at(op, mask), op, operands[0], run.width),)
        case "fragment_store":
            first, value = operands
            fragments.store(run.memory, run.at(op, mask), op, first, value, run.width)
            return ()
        case "fragment_fma":
            return (fragments.fma(*operands),)
    types = tuple(v.type for v in (*op.operands, *op.results) if isinstance(v.type, FragmentType))
    if op.kind == "fragment_zero":
        return (fragments.zero(types[0], run.width),)
    groups = max(x.shape[0] for x in operands)
    a, b, c = operands
    return (fragments.mma(a, b, c, types[:3], (groups, run.lanes.threads), run.width),)


def _warpgroup(run: _Run, op: Op, operands: list[Array], mask: Mask) -> tuple[Array, ...]:
    if op.kind == "shared_copy":
        place, word = operands
        source = Spot(run.memory.buffers[op.attrs["buffer"]], run.lanes, mask, op.line)
        target = Spot(run.memory.shared[op.attrs["array"]], run.lanes, mask, op.line)
        run.copies.begin(run.memory, source, target, place, word)
        return ()
    run.whole(mask, run.lanes.threads, op)
    match op.kind:
        case "copy_commit":
            run.copies.commit(mask)
            return ()
        case "copy_wait":
            run.copies.wait(run.memory, mask, op.attrs["pending"])
            return ()
    return run.readers.product(run.memory, run.at(op, mask), op, operands, run.lanes)


def _full(run: _Run, value: Array) -> Array:
    return np.broadcast_to(value, (value.shape[0], run.lanes.threads))


# Control flow


def _merge(chosen: Array, new: Array, old: Array) -> Array:
    return np.where(chosen[..., None] if new.ndim > chosen.ndim else chosen, new, old)


def _narrow(mask: Mask, condition: Array) -> tuple[Mask, bool]:
    """The active threads where `condition` holds (None: all threads), and whether there is one."""
    active = condition if mask is None else condition & mask
    if active.all():
        return None, True
    return active, bool(active.any())


def _if(run: _Run, op: Op, operands: list[Array], mask: Mask) -> list[Array]:
    condition = operands[0]
    yes, some_yes = _narrow(mask, condition)
    no, some_no = _narrow(mask, ~condition)
    if not some_no:
        return run.block(op.blocks[0], mask) if some_yes else run.block(op.blocks[1], mask)
    if not some_yes:
        return run.block(op.blocks[1], mask)
    taken, other = run.block(op.blocks[0], yes), run.block(op.blocks[1], no)
    return [_merge(condition, a, b) for a, b in zip(taken, other, strict=True)]


def _for(run: _Run, op: Op, operands: list[Array], mask: Mask) -> list[Array]:
    low, high, step, *carried = operands
    (body,) = op.blocks
    if (step < 1).any():
        raise KernelError(f"kernel {run.kernel.name}: a loop's step is positive ({op.line})")
    if low.size == high.size == step.size == 1:
        for i in range(low.item(), high.item(), step.item()):
            run.in_time()
            run.bind(body, [np.full((1, 1), i, np.int32), *carried])
            carried = run.block(body, mask)
        return carried
    index = low.astype(np.int64)
    while True:
        running, some = _narrow(mask, index < high)
        if not some:
            return carried
        run.in_time()
        run.bind(body, [index.astype(np.int32), *carried])
        new = run.block(body, running)
        carried = new if running is None else [_merge(running, n, c) for n, c in zip(new, carried, strict=True)]
        index = index + step


def _while(run: _Run, op: Op, operands: list[Array], mask: Mask) -> list[Array]:
    condition, body = op.blocks
    carried, running = operands, mask
    while True:
        run.in_time()
        run.bind(condition, carried)
        (goes_on,) = run.block(condition, running)
        running, some = _narrow(running, goes_on)
        if not some:
            return carried
        run.bind(body, carried)
        new = run.block(body, running)
        carried = new if running is None else [_merge(running, n, c) for n, c in zip(new, carried, strict=True)]


_SPECIAL: Mapping[str, Callable[[_Run, Op, list[Array], Mask], Sequence[Array]]] = MappingProxyType(
    {
        "group_id": _group_id,
        "thread_id": lambda run, *_: (_threads(run),),
        "lane_id": lambda run, *_: (_threads(run) % run.width,),
        "subgroup_id": lambda run, *_: (_threads(run) // run.width,),
        "subgroup_size": lambda run, *_: (np.full((1, 1), run.width, np.int32),),
        "length": _length,
        "load": _load, "shared_load": _load,
        "store": _store, "shared_store": _store,
        "atomic": _atomic, "barrier": _barrier, "check": _check,
        "group_sum": _group_reduce, "group_max": _group_reduce, "group_min": _group_reduce,
        "subgroup_sum": _subgroup_reduce, "subgroup_max": _subgroup_reduce,
        "subgroup_min": _subgroup_reduce,
        "subgroup_shuffle": _shuffle, "subgroup_shuffle_xor": _shuffle,
        "pack_bf16": lambda run, op, operands, mask: (pack_bf16(*operands),),
        "packed_fma": _packed_fma, "mma": _mma,
        **dict.fromkeys(
            ("fragment_zero", "fragment_load", "fragment_store", "fragment_mma", "fragment_fma"), _fragment
        ),
        **dict.fromkeys(OPERATIONS, _warpgroup),
        "if": _if, "for": _for, "while": _while,
    }
)  # fmt: skip
"""Operations that need more than their operands: the grid, memory, other threads, control flow."""

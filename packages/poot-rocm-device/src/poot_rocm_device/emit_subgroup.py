"""HIP rules across the lanes of a wave. A group whose threads are no whole waves has a last wave of fewer lanes."""

from __future__ import annotations

from poot_executor.kernel.ir import Op
from poot_rocm_device.emit_arithmetic import thread
from poot_rocm_device.emitter import Emitter
from poot_rocm_device.rules import RULES

_JOIN = {"subgroup_sum": "poot_add", "subgroup_max": "poot_max", "subgroup_min": "poot_min"}


@RULES.rule("subgroup_sum", "subgroup_max", "subgroup_min")
def _reduce(e: Emitter, op: Op) -> None:
    join, threads = _JOIN[op.kind], e.kernel.group_size
    value = f"({op.result.dtype}){e.scalar(op.operands[0])}"
    lanes = min(threads, e.wave)
    if threads % lanes == 0 and lanes & (lanes - 1) == 0:
        e.define(op, [f"poot_reduce<{join}, {lanes}>({value})"])
        return
    rest = threads % e.wave
    here = f"({thread(e)} < {threads - rest} ? {e.wave} : {rest})" if threads > e.wave else str(rest)
    e.define(op, [f"poot_reduce_some<{join}>({value}, {here})"])


@RULES.rule("subgroup_shuffle")
def _shuffle(e: Emitter, op: Op) -> None:
    value, source = op.operands
    # One lane for all needs no exchange through local memory.
    function = "poot_broadcast" if e.constant(source) is not None else "poot_shuffle"
    e.define(op, [f"{function}(({value.dtype}){e.scalar(value)}, {e.scalar(source)})"])


@RULES.rule("subgroup_shuffle_xor")
def _shuffle_xor(e: Emitter, op: Op) -> None:
    (value,) = op.operands
    e.define(op, [f"poot_shuffle_xor<{op.attrs['mask']}>(({value.dtype}){e.scalar(value)})"])

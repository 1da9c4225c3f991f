"""Opening an adapter: a device with every feature it names, then known answers, then the caps that remain."""

from __future__ import annotations

import numpy as np

from poot_executor.cache import CompileCache, source_digest
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Dispatch
from poot_executor.errors import OutOfMemory, Unsupported
from poot_executor.settings import DeviceSettings
from poot_wgpu_device.caps import ALWAYS_TRIED, WANTED, Adapter, caps_of
from poot_wgpu_device.device import WgpuDevice
from poot_wgpu_device.errors import WgpuError
from poot_wgpu_device.known_answers import GROUP, Case, Words, cases, subgroup_width
from poot_wgpu_device.native import Handle, Native


def open_adapter(adapter: Handle, facts: Adapter, settings: DeviceSettings) -> WgpuDevice:
    """A device whose optional features have all given their known answers."""
    wanted = [name for name in WANTED if name in facts.features]
    native = Native(adapter, wanted)
    sizes = facts.subgroup_sizes
    named = ALWAYS_TRIED | ({"subgroup"} if "subgroup" in wanted else set())
    cache = CompileCache(settings.cache, emitter=source_digest("poot_wgpu_device"))
    device = WgpuDevice(
        native, caps_of(facts, named, None), cache, timeout=settings.timeout, timestamps="timestamp-query" in wanted
    )
    try:
        switched_off: dict[str, str] = {}
        width = None
        for case in cases():
            if case.feature not in named:
                continue
            answer = _run(device, case)
            reason = answer if isinstance(answer, str) else case.wrong(case.given, answer)
            if reason is not None:
                switched_off[case.feature] = reason
            elif case.feature == "subgroup" and not isinstance(answer, str) and sizes[0] == sizes[1]:
                width = subgroup_width(answer)
        device.settle(caps_of(facts, named - switched_off.keys(), width), switched_off)
    except BaseException:
        device.close()
        raise
    return device


def _run(device: WgpuDevice, case: Case) -> Words | str:
    """What the case's kernel gives, or why it does not run."""
    given = device.allocate(BufferKind.STAGING, case.given.nbytes)
    answer = device.allocate(BufferKind.STAGING, case.given.nbytes * case.per_thread)
    try:
        args = tuple(BoundArg(BufferSlice(b, 0, b.nbytes), b.nbytes // 4) for b in (given, answer))
        dispatch = Dispatch(device.loaded(case.kernel), args, (case.given.size // GROUP, 1, 1), 1)
        device.write(given, case.given)
        recording = device.record([dispatch], BufferSlice(answer, 0, answer.nbytes))
        device.replay(recording)
        device.synchronize()
        out = np.empty(answer.nbytes // 4, np.uint32)
        device.read(answer, out)
        device.release(recording)
    except (WgpuError, Unsupported, OutOfMemory) as error:
        return str(error)
    finally:
        device.free(given)
        device.free(answer)
    return out

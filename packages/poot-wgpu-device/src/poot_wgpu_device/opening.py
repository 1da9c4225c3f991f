"""Opening an adapter: a device with every feature it names, then known answers, then the caps that remain."""

from __future__ import annotations

import logging

from poot_executor.cache import CompileCache, source_digest
from poot_executor.errors import OutOfMemory, Unsupported
from poot_executor.known_answers import SUBGROUP, Case, Words, answer_of, cases, subgroup_width
from poot_executor.known_arithmetic import DENORMALS, arithmetic_cases
from poot_executor.settings import DeviceSettings
from poot_wgpu_device.caps import ALWAYS_TRIED, WANTED, Adapter, caps_of
from poot_wgpu_device.device import WgpuDevice
from poot_wgpu_device.errors import WgpuError
from poot_wgpu_device.native import Handle, Native

logger = logging.getLogger(__name__)


def open_adapter(adapter: Handle, facts: Adapter, settings: DeviceSettings) -> WgpuDevice:
    """A device whose optional features have all given their known answers."""
    wanted = [name for name in WANTED if name in facts.features]
    native = Native(adapter, wanted)
    named = ALWAYS_TRIED | ({SUBGROUP} if SUBGROUP in wanted else set())
    cache = CompileCache(settings.cache, emitter=source_digest("poot_wgpu_device"))
    device = WgpuDevice(
        native, caps_of(facts, named, None), cache, timeout=settings.timeout, timestamps="timestamp-query" in wanted
    )
    try:
        _settle(device, facts, named)
    except BaseException:
        device.close()
        raise
    for feature, reason in device.switched_off.items():
        # What an adapter names and gets wrong is its fault; the rest is merely not there.
        level = logging.WARNING if feature == SUBGROUP else logging.INFO
        logger.log(level, "wgpu: %s is switched off: %s", feature, reason)
    return device


def _settle(device: WgpuDevice, facts: Adapter, named: frozenset[str]) -> None:
    """Run the cases and leave the device with what they prove."""
    switched_off: dict[str, str] = {}
    width = None
    flushes = False
    (denormals,) = (case for case in arithmetic_cases() if case.feature == DENORMALS)
    for case in (*cases(), denormals):
        if case.feature not in named | {DENORMALS}:
            continue
        answer, reason = _tried(device, case)
        if case.feature == DENORMALS:
            flushes = reason is not None
        elif reason is not None:
            switched_off[case.feature] = reason
        elif case.feature == SUBGROUP and answer is not None and facts.subgroup_sizes[0] == facts.subgroup_sizes[1]:
            width = subgroup_width(answer)
    caps = caps_of(facts, named - switched_off.keys(), width, flushes_denormals=flushes)
    device.settle(caps, switched_off)


def _tried(device: WgpuDevice, case: Case) -> tuple[Words | None, str | None]:
    """What the case's kernel gives, and what is wrong with it or why it does not run."""
    try:
        answer = answer_of(device, case)
    except (WgpuError, Unsupported, OutOfMemory) as error:
        return None, str(error)
    return answer, case.wrong(case.given, answer)

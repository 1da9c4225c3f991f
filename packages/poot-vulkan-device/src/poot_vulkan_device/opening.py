"""Opening a physical device: every feature that its driver names, then known answers, then the caps that remain."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from poot_executor.cache import CompileCache, source_digest
from poot_executor.compile.target import Caps
from poot_executor.device import BoundArg, BufferKind, BufferSlice, Dispatch
from poot_executor.errors import DeviceNotFound, OutOfMemory, Poisoned, Unsupported
from poot_executor.settings import DeviceSettings
from poot_vulkan_device.adapter import Adapter
from poot_vulkan_device.caps import Arithmetic, caps_of, work_budget
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.errors import VulkanError
from poot_vulkan_device.features import (
    DENORM_PRESERVE,
    INF_NAN_PRESERVE,
    PACK_HALF,
    ROUNDING_RTE,
    UNBOUNDED_LOOPS,
    UNPACK_HALF,
)  # fmt: skip
from poot_vulkan_device.instance import Instance
from poot_vulkan_device.known_answers import CONTRACTION, DENORMALS, FUSED, GROUP, Case, Words, cases, subgroup_width
from poot_vulkan_device.native import Native
from poot_vulkan_device.pipeline_cache import PipelineCache

logger = logging.getLogger(__name__)

_NAMED = frozenset({"subgroup", "dot4", INF_NAN_PRESERVE, DENORM_PRESERVE, ROUNDING_RTE})
"""Features that a driver names."""

_ALWAYS_TRIED = frozenset({PACK_HALF, UNPACK_HALF, UNBOUNDED_LOOPS})
"""Features that every driver should have."""


def open_adapter(instance: Instance, place: int, settings: DeviceSettings, *, staged: bool = False) -> VulkanDevice:
    """A device whose optional features have all given their known answers. It owns the instance; on failure that is
    closed.

    Raises DeviceNotFound where the physical device cannot be used.
    """
    adapter = instance.adapters[place]
    if adapter.refusal is not None:
        instance.close()
        raise DeviceNotFound(adapter.refusal)
    try:
        native = Native(instance, place)
    except BaseException:
        instance.close()
        raise
    features = adapter.features & _NAMED | _ALWAYS_TRIED
    device = VulkanDevice(
        native,
        caps_of(adapter, features, None),
        CompileCache(settings.cache, emitter=source_digest("poot_vulkan_device")),
        PipelineCache(settings.cache, adapter.identity),
        timeout=settings.timeout,
        staged=staged,
        budget=work_budget(adapter),
    )
    try:
        _settle(device, native, features)
    except BaseException:
        device.close()
        raise
    for feature, reason in device.switched_off.items():
        # What a driver names and gets wrong is its fault; the rest is merely not there.
        level = logging.WARNING if feature in _NAMED else logging.INFO
        logger.log(level, "vulkan: %s is switched off: %s", feature, reason)
    return device


def _settle(device: VulkanDevice, native: Native, features: frozenset[str]) -> None:
    """Run the cases and leave the device with what they prove."""
    adapter = native.adapter
    wrong: dict[str, str] = {}
    width = None
    for case in cases():
        if case.feature in _NAMED and case.feature not in features:
            continue
        answer = _run(device, case)
        reason = answer if isinstance(answer, str) else case.wrong(case.given, answer)
        if reason is not None:
            wrong[case.feature] = reason
        elif case.feature == "subgroup" and not isinstance(answer, str):
            width = _fixed_width(native, subgroup_width(answer))
    caps = settled(adapter, features, wrong, width)
    device.settle(caps, {name: reason for name, reason in wrong.items() if name in features})


def settled(adapter: Adapter, features: frozenset[str], wrong: Mapping[str, str], width: int | None) -> Caps:
    """The caps of a device with those features, some of which answered wrongly."""
    kept = features - set(wrong)
    if INF_NAN_PRESERVE in wrong:
        # The three modes are declared together: none of them is believed.
        kept -= {DENORM_PRESERVE, ROUNDING_RTE}
    arithmetic = Arithmetic(CONTRACTION in wrong, FUSED not in wrong, DENORMALS in wrong)
    return caps_of(adapter, kept, width, arithmetic)


def _fixed_width(native: Native, answered: int) -> int | None:
    """The width that subgroups have: the only one, or the default where a pipeline may ask for it."""
    default, least, greatest = native.adapter.subgroup
    if least == greatest:
        return answered
    return default if "size_control" in native.adapter.features and least <= default <= greatest else None


def _run(device: VulkanDevice, case: Case) -> Words | str:
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
    except (VulkanError, Unsupported, OutOfMemory) as error:
        return str(error)
    finally:
        # A device that was lost takes nothing back, and the first error is the one to see.
        with suppress(Poisoned):
            device.free(given)
            device.free(answer)
    return out

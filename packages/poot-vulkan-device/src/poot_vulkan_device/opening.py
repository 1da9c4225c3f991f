"""Opening a physical device: every feature that its driver names, then known answers, then the caps that remain."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from poot_executor.cache import CompileCache, source_digest
from poot_executor.compile.target import Caps
from poot_executor.errors import DeviceNotFound, OutOfMemory, Unsupported
from poot_executor.kernel.fragments import FEATURE as FRAGMENTS
from poot_executor.known_answers import (
    DOT4,
    PACK_HALF,
    SUBGROUP,
    UNBOUNDED_LOOPS,
    UNPACK_HALF,
    Case,
    Words,
    answer_of,
    cases,
    subgroup_width,
)  # fmt: skip
from poot_executor.known_arithmetic import CONTRACTION, DENORMALS, FUSED, INF_NAN_PRESERVE, arithmetic_cases
from poot_executor.known_fragments import fragment_case
from poot_executor.settings import DeviceSettings
from poot_vulkan_device.adapter import Adapter
from poot_vulkan_device.caps import Arithmetic, caps_of, work_budget
from poot_vulkan_device.device import VulkanDevice
from poot_vulkan_device.errors import VulkanError
from poot_vulkan_device.features import DENORM_PRESERVE, FRAGMENT_BUFFERS, ROUNDING_RTE, SIZE_CONTROL
from poot_vulkan_device.instance import Instance
from poot_vulkan_device.native import Native
from poot_vulkan_device.pipeline_cache import PipelineCache

logger = logging.getLogger(__name__)

_NAMED = frozenset({SUBGROUP, DOT4, INF_NAN_PRESERVE, DENORM_PRESERVE, ROUNDING_RTE})
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
        level = logging.INFO if feature in _ALWAYS_TRIED else logging.WARNING
        logger.log(level, "vulkan: %s is switched off: %s", feature, reason)
    return device


def _settle(device: VulkanDevice, native: Native, features: frozenset[str]) -> None:
    """Run the cases and leave the device with what they prove."""
    adapter = native.adapter
    wrong: dict[str, str] = {}
    width = None
    for case in (*cases(), *arithmetic_cases()):
        if case.feature in _NAMED and case.feature not in features:
            continue
        answer, reason = _tried(device, case)
        if reason is not None:
            wrong[case.feature] = reason
        elif case.feature == SUBGROUP and answer is not None:
            width, reason = _fixed_width(device, case, answer)
            wrong |= {} if reason is None else {SIZE_CONTROL: reason}
    caps = settled(adapter, features, wrong, width)
    off = {name: reason for name, reason in wrong.items() if name in features | {SIZE_CONTROL}}
    device.settle(caps, off)
    if adapter.fragments and width is not None:
        device.settle(*_with_fragments(device, caps, off))


def _with_fragments(device: VulkanDevice, caps: Caps, off: Mapping[str, str]) -> tuple[Caps, dict[str, str]]:
    """The caps with the matrix products that the driver names and that are right, and what is off with those that are
    not.
    """
    shapes = device.adapter.fragments
    wrong: dict[str, str] = {}
    device.settle(replace(caps, features=caps.features | {FRAGMENTS}, fragments=shapes), off)
    for shape in shapes:
        case = fragment_case(shape, caps.subgroup_width or 1)
        _, reason = _tried(device, case)
        if reason is not None:
            wrong[case.feature] = reason
    right = tuple(shape for shape in shapes if str(shape) not in wrong)
    buffers = {FRAGMENT_BUFFERS} if "cooperative_robust" in device.adapter.features else set()
    features = caps.features | ({FRAGMENTS, *buffers} if right else set())
    return replace(caps, features=features, fragments=right), {**off, **wrong}


def settled(adapter: Adapter, features: frozenset[str], wrong: Mapping[str, str], width: int | None) -> Caps:
    """The caps of a device with those features, some of which answered wrongly."""
    kept = features - set(wrong)
    if INF_NAN_PRESERVE in wrong:
        # The three modes are declared together: none of them is believed.
        kept -= {DENORM_PRESERVE, ROUNDING_RTE}
    arithmetic = Arithmetic(CONTRACTION in wrong, FUSED not in wrong, DENORMALS in wrong)
    return caps_of(adapter, kept, width, arithmetic)


def _fixed_width(device: VulkanDevice, case: Case, answer: Words) -> tuple[int | None, str | None]:
    """The width that subgroups have: the only one there is, or the default where pipelines that ask for it get it;
    None where there is none. And what is wrong with asking.
    """
    default, least, greatest = device.adapter.subgroup
    if least == greatest:
        return subgroup_width(answer), None
    if SIZE_CONTROL not in device.adapter.features:
        return None, None
    device.require_width(default)
    asked, reason = _tried(device, case)
    if asked is not None and reason is None and subgroup_width(asked) != default:
        reason = f"subgroups of {subgroup_width(asked)} threads where {default} were asked for"
    return (default, None) if reason is None else (None, reason)


def _tried(device: VulkanDevice, case: Case) -> tuple[Words | None, str | None]:
    """What the case's kernel gives, and what is wrong with it or why it does not run."""
    try:
        answer = answer_of(device, case)
    except (VulkanError, Unsupported, OutOfMemory) as error:
        return None, str(error)
    return answer, case.wrong(case.given, answer)

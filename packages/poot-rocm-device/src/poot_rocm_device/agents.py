"""GPUs of the runtime and the memory pools that a device takes from."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from poot_rocm_device.errors import HsaError
from poot_rocm_device.hsa import Hsa
from poot_rocm_device.hsa_types import GLOBAL_SEGMENT, AgentInfo, DeviceType, PoolFlag, PoolInfo


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU agent. `name` is its instruction set ("gfx1100"), `memory` what its own pool holds in bytes (0: it has
    none), `packets` what a queue may hold at most."""

    ordinal: int
    agent: int
    name: str
    product: str
    units: int
    memory: int
    packets: int


@dataclass(frozen=True, slots=True)
class Pools:
    """Where a device's memory comes from: its own (coarse-grained), the host's (fine-grained: seen by both at any
    time), and the host's for kernel arguments. `host_agent` owns the latter two.
    """

    device: int
    host: int
    kernarg: int
    host_agent: int


def gpus(hsa: Hsa) -> tuple[Gpu, ...]:
    """Every GPU agent, in the runtime's order."""
    found = [a for a in hsa.agents() if hsa.agent_number(a, AgentInfo.DEVICE) == DeviceType.GPU]
    return tuple(_gpu(hsa, ordinal, agent) for ordinal, agent in enumerate(found))


def _gpu(hsa: Hsa, ordinal: int, agent: int) -> Gpu:
    pool = _find(hsa, agent, PoolFlag.COARSE_GRAINED)
    return Gpu(
        ordinal,
        agent,
        hsa.agent_text(agent, AgentInfo.NAME),
        hsa.agent_text(agent, AgentInfo.PRODUCT_NAME),
        hsa.agent_number(agent, AgentInfo.COMPUTE_UNIT_COUNT),
        0 if pool is None else hsa.pool_number(pool, PoolInfo.SIZE, ctypes.c_size_t),
        hsa.agent_number(agent, AgentInfo.QUEUE_MAX_SIZE),
    )


def pools(hsa: Hsa, gpu: Gpu) -> Pools | None:
    """The pools for a GPU; None where one is missing."""
    device = _find(hsa, gpu.agent, PoolFlag.COARSE_GRAINED)
    if device is None:
        return None
    for agent in hsa.agents():
        if hsa.agent_number(agent, AgentInfo.DEVICE) == DeviceType.CPU:
            host = _find(hsa, agent, PoolFlag.FINE_GRAINED, without=PoolFlag.KERNARG_INIT)
            kernarg = _find(hsa, agent, PoolFlag.KERNARG_INIT)
            if host is not None and kernarg is not None:
                return Pools(device, host, kernarg, agent)
    return None


def _find(hsa: Hsa, agent: int, flag: PoolFlag, *, without: int = 0) -> int | None:
    for pool in hsa.pools(agent):
        if hsa.pool_number(pool, PoolInfo.SEGMENT) != GLOBAL_SEGMENT:
            continue
        flags = hsa.pool_number(pool, PoolInfo.GLOBAL_FLAGS)
        allowed = hsa.pool_number(pool, PoolInfo.RUNTIME_ALLOC_ALLOWED, ctypes.c_bool)
        if allowed and flags & flag and not flags & without:
            return pool
    return None


def free_bytes(hsa: Hsa, gpu: Gpu) -> int | None:
    """What is left of a GPU's memory; None where the runtime does not say (before ROCm 5.3)."""
    try:
        return hsa.agent_number(gpu.agent, AgentInfo.MEMORY_AVAIL, ctypes.c_uint64)
    except HsaError:
        return None

"""HSA's structures and numbers, as hsa.h and hsa_ext_amd.h declare them. A test compiles them against those headers."""

from __future__ import annotations

import ctypes
from enum import IntEnum

PACKET_BYTES = 64
PACKET_WORDS = PACKET_BYTES // 4
COMPLETION = 7
"""The completion signal's place in a packet, in units of 8 bytes."""


class Queue(ctypes.Structure):
    """hsa_queue_t: what a queue shows of itself."""

    _fields_ = [
        ("type", ctypes.c_uint32), ("features", ctypes.c_uint32), ("base_address", ctypes.c_void_p),
        ("doorbell_signal", ctypes.c_uint64), ("size", ctypes.c_uint32), ("reserved1", ctypes.c_uint32),
        ("id", ctypes.c_uint64),
    ]  # fmt: skip


class DispatchPacket(ctypes.Structure):
    """hsa_kernel_dispatch_packet_t. Sizes of the grid are in work-items, those of segments in bytes."""

    _fields_ = [
        ("header", ctypes.c_uint16), ("setup", ctypes.c_uint16), ("workgroup_size_x", ctypes.c_uint16),
        ("workgroup_size_y", ctypes.c_uint16), ("workgroup_size_z", ctypes.c_uint16), ("reserved0", ctypes.c_uint16),
        ("grid_size_x", ctypes.c_uint32), ("grid_size_y", ctypes.c_uint32), ("grid_size_z", ctypes.c_uint32),
        ("private_segment_size", ctypes.c_uint32), ("group_segment_size", ctypes.c_uint32),
        ("kernel_object", ctypes.c_uint64), ("kernarg_address", ctypes.c_uint64), ("reserved2", ctypes.c_uint64),
        ("completion_signal", ctypes.c_uint64),
    ]  # fmt: skip


class MemoryFault(ctypes.Structure):
    """hsa_amd_gpu_memory_fault_info_t."""

    _fields_ = [
        ("agent", ctypes.c_uint64), ("virtual_address", ctypes.c_uint64), ("fault_reason_mask", ctypes.c_uint32)
    ]  # fmt: skip


class Event(ctypes.Structure):
    """hsa_amd_event_t. Of every type so far the information begins with the agent."""

    _fields_ = [("event_type", ctypes.c_uint32), ("memory_fault", MemoryFault)]


class DispatchTime(ctypes.Structure):
    """hsa_amd_profiling_dispatch_time_t, in ticks of the system's clock."""

    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64)]


QueueCallback = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
EventCallback = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.POINTER(Event), ctypes.c_void_p)
HandleCallback = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p)
"""Of an iteration over agents or pools: a handle, and data that nobody uses."""


class Status(IntEnum):
    """hsa_status_t, those that poot tells apart."""

    SUCCESS = 0
    INFO_BREAK = 1
    ERROR = 0x1000
    INVALID_ALLOCATION = 0x1003
    OUT_OF_RESOURCES = 0x1008
    INVALID_PACKET_FORMAT = 0x1009
    INVALID_ISA = 0x100F
    EXCEPTION = 0x1016
    FATAL = 0x1026
    MEMORY_APERTURE_VIOLATION = 41
    ILLEGAL_INSTRUCTION = 42
    MEMORY_FAULT = 43


class SystemInfo(IntEnum):
    """hsa_system_info_t."""

    TIMESTAMP_FREQUENCY = 3


class AgentInfo(IntEnum):
    """hsa_agent_info_t and hsa_amd_agent_info_t."""

    NAME = 0
    QUEUE_MAX_SIZE = 14
    DEVICE = 17
    COMPUTE_UNIT_COUNT = 0xA002
    PRODUCT_NAME = 0xA009
    MEMORY_AVAIL = 0xA015


class DeviceType(IntEnum):
    """hsa_device_type_t."""

    CPU = 0
    GPU = 1


class PoolInfo(IntEnum):
    """hsa_amd_memory_pool_info_t."""

    SEGMENT = 0
    GLOBAL_FLAGS = 1
    SIZE = 2
    RUNTIME_ALLOC_ALLOWED = 5


class PoolFlag(IntEnum):
    """hsa_amd_memory_pool_global_flag_t."""

    KERNARG_INIT = 1
    FINE_GRAINED = 2
    COARSE_GRAINED = 4


GLOBAL_SEGMENT = 0


class SymbolInfo(IntEnum):
    """hsa_executable_symbol_info_t."""

    KERNARG_SEGMENT_SIZE = 11
    GROUP_SEGMENT_SIZE = 13
    PRIVATE_SEGMENT_SIZE = 14
    KERNEL_OBJECT = 22


PROFILE_FULL, ROUNDING_DEFAULT = 1, 0

QUEUE_SINGLE = 1
"""hsa_queue_type_t: one producer."""

LESS_THAN, BLOCKED, ACTIVE = 2, 0, 1
"""hsa_signal_condition_t, and the two of hsa_wait_state_t."""


class EventType(IntEnum):
    """hsa_amd_event_type_t; the headers of ROCm 5.2 have the first alone. SHUTDOWN is no fault and has no agent."""

    MEMORY_FAULT = 0
    HARDWARE_EXCEPTION = 1
    MEMORY_ERROR = 2
    SHUTDOWN = 3


class Scope(IntEnum):
    """hsa_fence_scope_t."""

    NONE = 0
    AGENT = 1
    SYSTEM = 2


DISPATCH, INVALID = 2, 1
"""hsa_packet_type_t."""

BARRIER_AT, ACQUIRE_AT, RELEASE_AT = 8, 9, 11
"""hsa_packet_header_t: where fields begin, in bits."""


def header(*, barrier: bool, acquire: Scope, release: Scope) -> int:
    """The header of a kernel dispatch."""
    return DISPATCH | barrier << BARRIER_AT | acquire << ACQUIRE_AT | release << RELEASE_AT

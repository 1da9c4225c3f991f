"""The binding's structures, numbers and functions against AMD's own headers, by the C compiler."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from poot_eval.hsa.runtime import HEADER, REQUIRED
from poot_executor.settings import read_settings
from poot_rocm_device import hsa, hsa_types

HEADERS = ("hsa/hsa.h", "hsa/hsa_ext_amd.h")

STRUCTURES = {
    "hsa_queue_t": hsa_types.Queue,
    "hsa_kernel_dispatch_packet_t": hsa_types.DispatchPacket,
    "hsa_amd_gpu_memory_fault_info_t": hsa_types.MemoryFault,
    "hsa_amd_event_t": hsa_types.Event,
    "hsa_amd_profiling_dispatch_time_t": hsa_types.DispatchTime,
}
HANDLES = (
    "hsa_agent_t", "hsa_signal_t", "hsa_amd_memory_pool_t", "hsa_executable_t", "hsa_executable_symbol_t",
    "hsa_code_object_reader_t",
)  # fmt: skip
NUMBERS = {
    **{f"HSA_STATUS_{'ERROR_' * (s > 1 and s.name != 'ERROR')}{s.name}": s for s in hsa_types.Status},
    **{f"HSA_SYSTEM_INFO_{i.name}": i for i in hsa_types.SystemInfo},
    "HSA_AGENT_INFO_NAME": hsa_types.AgentInfo.NAME,
    "HSA_AGENT_INFO_QUEUE_MAX_SIZE": hsa_types.AgentInfo.QUEUE_MAX_SIZE,
    "HSA_AGENT_INFO_DEVICE": hsa_types.AgentInfo.DEVICE,
    "HSA_AMD_AGENT_INFO_COMPUTE_UNIT_COUNT": hsa_types.AgentInfo.COMPUTE_UNIT_COUNT,
    "HSA_AMD_AGENT_INFO_PRODUCT_NAME": hsa_types.AgentInfo.PRODUCT_NAME,
    **{f"HSA_DEVICE_TYPE_{t.name}": t for t in hsa_types.DeviceType},
    **{f"HSA_AMD_MEMORY_POOL_INFO_{i.name}": i for i in hsa_types.PoolInfo},
    **{f"HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_{f.name}": f for f in hsa_types.PoolFlag},
    "HSA_AMD_SEGMENT_GLOBAL": hsa_types.GLOBAL_SEGMENT,
    **{f"HSA_EXECUTABLE_SYMBOL_INFO_KERNEL_{i.name.removeprefix('KERNEL_')}": i for i in hsa_types.SymbolInfo},
    "HSA_PROFILE_FULL": hsa_types.PROFILE_FULL,
    "HSA_DEFAULT_FLOAT_ROUNDING_MODE_DEFAULT": hsa_types.ROUNDING_DEFAULT,
    "HSA_QUEUE_TYPE_SINGLE": hsa_types.QUEUE_SINGLE,
    "HSA_SIGNAL_CONDITION_LT": hsa_types.LESS_THAN,
    "HSA_WAIT_STATE_BLOCKED": hsa_types.BLOCKED,
    "HSA_WAIT_STATE_ACTIVE": hsa_types.ACTIVE,
    "HSA_AMD_GPU_MEMORY_FAULT_EVENT": hsa_types.EventType.MEMORY_FAULT,
    **{f"HSA_FENCE_SCOPE_{s.name}": s for s in hsa_types.Scope},
    "HSA_PACKET_TYPE_KERNEL_DISPATCH": hsa_types.DISPATCH,
    "HSA_PACKET_TYPE_INVALID": hsa_types.INVALID,
    "HSA_PACKET_HEADER_BARRIER": hsa_types.BARRIER_AT,
    "HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE": hsa_types.ACQUIRE_AT,
    "HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE": hsa_types.RELEASE_AT,
}
"""By the headers' names. MEMORY_AVAIL and all events but the first are of later headers than Debian's."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory):
    """`compiled(lines)` compiles C after the headers, and gives the messages; "" where there are none."""
    compiler = shutil.which("cc")
    if compiler is None or not HEADER.exists():
        reason = f"there is no C compiler or no {HEADER}: apt-get install gcc libhsa-runtime-dev"
        if REQUIRED in read_settings().require_devices:
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("layouts")

    def run(lines: list[str]) -> str:
        source = folder / "layouts.c"
        head = ["#include <stddef.h>", "#include <stdint.h>", *(f"#include <{name}>" for name in HEADERS)]
        source.write_text("\n".join([*head, *lines]) + "\n")
        command = [compiler, "-std=c11", "-Werror", "-c", str(source), "-o", str(folder / "layouts.o")]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    return run


def test_structures_lie_as_the_headers_declare_them(compiled) -> None:
    lines = [f'_Static_assert(sizeof({name}) == 8, "{name}");' for name in HANDLES]
    for name, structure in STRUCTURES.items():
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");')
        for field, *_ in structure._fields_:
            place = getattr(structure, field)
            what = f"{name}.{field}"
            lines += [
                f'_Static_assert(offsetof({name}, {field}) == {place.offset}, "{what}");',
                f'_Static_assert(sizeof((({name} *)0)->{field}) == {place.size}, "{what}");',
            ]
    assert compiled(lines) == ""


def test_numbers_are_the_headers(compiled) -> None:
    assert compiled([f'_Static_assert((unsigned){name} == {int(n)}u, "{name}");' for name, n in NUMBERS.items()]) == ""


def test_the_header_field_of_a_packet_is_as_the_headers_compose_it(compiled) -> None:
    value = hsa_types.header(barrier=True, acquire=hsa_types.Scope.SYSTEM, release=hsa_types.Scope.AGENT)
    composed = (
        "HSA_PACKET_TYPE_KERNEL_DISPATCH << HSA_PACKET_HEADER_TYPE | 1 << HSA_PACKET_HEADER_BARRIER | "
        "HSA_FENCE_SCOPE_SYSTEM << HSA_PACKET_HEADER_SCACQUIRE_FENCE_SCOPE | "
        "HSA_FENCE_SCOPE_AGENT << HSA_PACKET_HEADER_SCRELEASE_FENCE_SCOPE"
    )
    assert compiled([f'_Static_assert(({composed}) == {value}, "header");']) == ""


def test_a_wrong_layout_is_noticed(compiled) -> None:
    assert "static assertion failed" in compiled(['_Static_assert(sizeof(hsa_queue_t) == 41, "queue");'])


def prototypes() -> dict[str, str]:
    """The argument list of each function that the headers declare, as text."""
    text = "\n".join(Path("/usr/include", name).read_text() for name in HEADERS)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return dict(re.findall(r"\b(hsa_\w+)\s*\(((?:[^()]|\([^()]*\))*)\)\s*;", text))


def sizes(arguments: str) -> list[int]:
    """The width in bytes of each argument of a prototype."""
    found = []
    depth_free = re.sub(r"\([^()]*\)\s*\([^()]*\)", "*", re.sub(r"\(\*\w*\)\(", "(*)(", arguments))
    for argument in re.split(r",(?![^()]*\))", depth_free):
        words = argument.replace("HSA_API", "").split()
        if not words or words == ["void"]:
            continue
        pointer = "*" in argument or "[" in argument or "callback" in argument
        narrow = {"uint32_t", "int", "hsa_status_t", "hsa_profile_t", "hsa_queue_type32_t", "hsa_wait_state_t"}
        enumeration = any(word.endswith(("_info_t", "_mode_t", "_condition_t")) for word in words)
        found.append(4 if not pointer and (enumeration or narrow & set(words)) else 8)
    return found


@pytest.mark.parametrize("name", sorted({*hsa._STATUS_FUNCTIONS, *hsa._VALUE_FUNCTIONS}))
@pytest.mark.usefixtures("compiled")
def test_a_function_takes_what_its_prototype_says(name: str) -> None:
    """As many arguments, each as wide."""
    given = hsa._STATUS_FUNCTIONS.get(name) or hsa._VALUE_FUNCTIONS.get(name, (None, ()))[1]
    declared = prototypes()[name]
    assert [ctypes.sizeof(argument) for argument in given] == sizes(declared), declared

"""`FakeRuntime`: the simulated HSA runtime as tests build it, steer it, and run kernels under it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from poot_executor.settings import read_settings

SOURCES = sorted(Path(__file__).parent.glob("fake_*.c"))
HEADER = Path("/usr/include/hsa/hsa.h")
REQUIRED = "hsa"
"""What POOT_REQUIRE_DEVICE names where the runtime must be built and a test must not be skipped."""

SUCCESS, ERROR, EXCEPTION = 0, 0x1000, 0x1016
"""Statuses that an executor returns: HSA_STATUS_SUCCESS, HSA_STATUS_ERROR, HSA_STATUS_ERROR_EXCEPTION (a trap)."""


class Injection(Enum):
    """What a dispatch, or a copy, meets. Values are those of fake.h."""

    NOTHING = 0
    QUEUE_ERROR = 1
    MEMORY_FAULT = 2
    RESET = 3
    HANG = 4
    DELAY = 5
    LOST_SIGNAL = 6
    COPY_ERROR = 7


class _Packet(ctypes.Structure):
    """hsa_kernel_dispatch_packet_t; the device's own layout of it is checked against the headers elsewhere."""

    _fields_ = [
        ("header", ctypes.c_uint16), ("setup", ctypes.c_uint16), ("group_size", ctypes.c_uint16 * 3),
        ("reserved0", ctypes.c_uint16), ("grid_size", ctypes.c_uint32 * 3), ("private_segment", ctypes.c_uint32),
        ("group_segment", ctypes.c_uint32), ("kernel_object", ctypes.c_uint64), ("kernarg", ctypes.c_uint64),
        ("reserved2", ctypes.c_uint64), ("completion", ctypes.c_uint64),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """One dispatch. `kernel_object` is where the kernel descriptor lies in the loaded image, `kernarg` where the
    arguments do: addresses of this process. Segments in bytes."""

    entry: str
    groups: tuple[int, int, int]
    group_size: tuple[int, int, int]
    group_segment: int
    private_segment: int
    kernel_object: int
    kernarg: int
    code_address: int
    code_bytes: int

    @property
    def code_object(self) -> bytes:
        """The file that was loaded."""
        return ctypes.string_at(self.code_address, self.code_bytes)


Executor = Callable[[Launch], int]
"""Runs a dispatch on the host and returns a status. It is called on the packet processor's thread."""

_EXECUTOR = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(_Packet), ctypes.c_void_p, ctypes.c_size_t)


class FakeRuntime:
    """The compiled runtime at `path`: what a device loads as its library. One for each process and path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raised: list[BaseException] = []
        """What executors raised, which dispatches report as HSA_STATUS_ERROR."""
        self._library = ctypes.CDLL(str(path))
        self._library.fake_error.restype = ctypes.c_char_p
        self._library.fake_count.restype = self._library.fake_visible.restype = ctypes.c_long

    def execute(self, executor: Executor) -> None:
        """Run kernels with a Python function from now on."""

        def called(entry: bytes, packet: ctypes._Pointer[_Packet], code: int, nbytes: int) -> int:
            try:
                p = packet.contents
                sizes = tuple(p.group_size)
                groups = tuple(grid // size for grid, size in zip(p.grid_size, sizes, strict=True))
                segments = (p.group_segment, p.private_segment)
                return executor(
                    Launch(entry.decode(), groups, sizes, *segments, p.kernel_object, p.kernarg, code, nbytes)
                )
            # An exception in a callback would be printed and the dispatch taken for done.
            except BaseException as error:  # noqa: BLE001
                self.raised.append(error)
                return ERROR

        callback = _EXECUTOR(called)
        # For good: the packet processor may be in the middle of it whenever this object goes.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
        self._library.fake_execute(callback)

    def execute_nothing(self) -> None:
        """Let kernels do nothing from now on, in no time: for what a submission costs the host."""
        self._library.fake_execute_nothing()

    def gpu(self, name: str, machine: int) -> None:
        """Pose as a GPU by the name of its instruction set and its number in code objects (EF_AMDGPU_MACH)."""
        self._library.fake_gpu(name.encode(), ctypes.c_uint32(machine))

    def absent(self, *, driver: bool = False, gpu: bool = False) -> None:
        """Let there be no kernel driver, or no GPU."""
        self._library.fake_absent(ctypes.c_bool(driver), ctypes.c_bool(gpu))

    def behave(self, *, reverse: bool = True, guard: bool = True, eager: bool = False, spurious: int = 0) -> None:
        """`reverse`: run what is unordered last to first. `guard`: the host must not touch device memory. `eager`: read
        packets as soon as their headers are valid. Every `spurious`-th wait returns early; 0 is none.
        """
        flags = (ctypes.c_bool(flag) for flag in (reverse, guard, eager))
        self._library.fake_behave(*flags, ctypes.c_long(spurious))

    def limit(self, nbytes: int) -> None:
        """How much device memory there is."""
        self._library.fake_limit(ctypes.c_uint64(nbytes))

    def inject(self, what: Injection, argument: int = 0, after: int = 0) -> None:
        """Let the dispatch (of COPY_ERROR: the copy) after so many more ones meet something: a QUEUE_ERROR of the
        status `argument`; a DELAY of `argument` milliseconds, and all later ones too.
        """
        self._library.fake_inject(what.value, argument, ctypes.c_long(after))

    def visible_memory(self) -> list[tuple[int, int]]:
        """Address and bytes of every allocation that the GPU sees, ascending: all that a kernel may touch."""
        address, nbytes, visible = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_bool()
        places = (ctypes.byref(address), ctypes.byref(nbytes), ctypes.byref(visible))
        self._library.fake_allocation.restype = ctypes.c_bool
        found: list[tuple[int, int]] = []
        place = 0
        while self._library.fake_allocation(ctypes.c_long(place), *places):
            if visible.value:
                found.append((address.value, nbytes.value))
            place += 1
        return found

    def visible(self) -> list[tuple[int, int]]:
        """Address and bytes of all memory that the GPU sees."""
        count = int(self._library.fake_visible(None, None, ctypes.c_long(0)))
        # More may come while this is asked; an executor needs what its dispatch names, which is there already.
        addresses, sizes = (ctypes.c_uint64 * count)(), (ctypes.c_uint64 * count)()
        self._library.fake_visible(addresses, sizes, ctypes.c_long(count))
        return list(zip(addresses, sizes, strict=True))

    @property
    def error(self) -> str:
        """Why the last call or packet was refused."""
        return self._library.fake_error().decode()

    def count(self, what: str) -> int:
        """How many of "dispatches", "barriers", "reordered" (packets), "spurious" (waits), "doorbells", "copies" and
        "signals" (made) there have been; how many "live signals", "allocations", "queues" and "references" there are,
        and how many queues are "running" packets.
        """
        number = int(self._library.fake_count(what.encode()))
        assert number >= 0, what
        return number


def missing_for_build() -> str:
    """What is not there to build the runtime with, and where to get it; "" where all is."""
    needed = {"a C compiler (cc)": shutil.which("cc") is not None, str(HEADER): HEADER.exists()}
    missing = [name for name, there in needed.items() if not there]
    if not missing:
        return ""
    what = " and no ".join(missing)
    return f"there is no {what} to build a simulated HSA runtime with: apt-get install gcc libhsa-runtime-dev"


def build_runtime(folder: Path) -> FakeRuntime:
    """Compile the runtime into a folder, and load it. Raises CalledProcessError with the compiler's messages."""
    path = folder / "libhsa-runtime64.so.1"
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    command += ["-fvisibility=hidden", *map(str, SOURCES), "-o", str(path)]
    subprocess.run(command, check=True)
    return FakeRuntime(path)


def build_or_skip(folder: Path) -> FakeRuntime:
    """`build_runtime`. Without what it needs the test is skipped and says so, or fails if POOT_REQUIRE_DEVICE names
    "hsa".
    """
    missing = missing_for_build()
    if missing and REQUIRED in read_settings().require_devices:
        pytest.fail(missing, pytrace=False)
    if missing:
        pytest.skip(missing)
    return build_runtime(folder)

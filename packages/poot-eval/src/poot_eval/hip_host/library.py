"""A kernel's HIP text as a shared library that runs its grids on the processor.

The library's functions, for callers in C:

    int32_t poot_run(const void *kernarg, uint32_t groups_x, uint32_t groups_y, uint32_t groups_z, uint32_t threads);
    void poot_stop(void);

`kernarg` holds the arguments as a GPU would read them, with addresses of this process. `poot_run` gives an `Outcome`;
it may run in several threads at once. `poot_stop` ends every grid, now and later.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from enum import IntEnum
from functools import cache
from pathlib import Path

from poot_executor.errors import KernelError, Unsupported

HEADER = Path(__file__).parent / "hip_host.h"

FLAGS = (
    "-x", "c++", "-std=c++17", "-O1", "-march=native", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off",
    "-fwrapv", "-fno-strict-aliasing", "-fno-strict-float-cast-overflow", f'-DPOOT_HOST="{HEADER}"',
)  # fmt: skip
"""What keeps arithmetic as the text says it."""

NEWEST, OLDEST = 25, 15
"""Versions of clang that are looked for by name."""


class Outcome(IntEnum):
    """How a grid ended: TRAPPED by a failed check, DIVERGED where threads waited for each other at different places,
    STOPPED from outside, REFUSED for a group of another size than the kernel's."""

    DONE = 0
    TRAPPED = 1
    DIVERGED = 2
    STOPPED = 3
    REFUSED = 4


@cache
def host_clang() -> str:
    """The machine's clang. Raises Unsupported where there is none."""
    names = ["clang", *(f"clang-{version}" for version in range(NEWEST, OLDEST - 1, -1))]
    for name in names:
        found = shutil.which(name)
        if found is not None:
            return found
    raise Unsupported("hip_host", f"no clang of version {OLDEST} or newer is on the path: install clang-19")


def build(text: str, entry: str, folder: Path) -> Path:
    """The shared library of a kernel's text, `<entry>.so` in the folder.

    Raises KernelError with the compiler's messages for text that it does not take.
    """
    library = folder / f"{entry}.so"
    command = [host_clang(), *FLAGS, "-o", str(library), "-"]
    source = f"{text}\nPOOT_ENTRY({entry})\n"
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError(f"kernel {entry} was not compiled for this processor:\n{done.stderr}")
    return library


def entry_of(text: str) -> str:
    """The name of the kernel that a text defines. Raises KernelError where it defines none."""
    found = re.search(r"^POOT_KERNEL\(.*\)\n(\w+)\(", text, re.MULTILINE)
    if found is None:
        raise KernelError("a text without a kernel")
    return found[1]


class HostKernel:
    """A library that `build` made, loaded for as long as the process lives."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self._run = loaded.poot_run
        self._run.argtypes = [ctypes.c_void_p, *[ctypes.c_uint32] * 4]
        self._run.restype = ctypes.c_int32

    def run(self, kernarg: bytes, groups: tuple[int, int, int], threads: int) -> Outcome:
        """Run a grid over what the arguments name, which the caller keeps alive."""
        held = ctypes.create_string_buffer(kernarg, max(1, len(kernarg)))
        return Outcome(self._run(ctypes.addressof(held), *groups, threads))

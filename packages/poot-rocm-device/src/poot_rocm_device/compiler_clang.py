"""Clang as a program: ROCm's own, or any that has the AMD target and a linker beside it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from poot_rocm_device.architecture import Architecture
from poot_rocm_device.compilers import FLAGS, PROBE, CompilerRefused

OPTIONS = (
    "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", "--no-gpu-bundle-output", "-fuse-cuid=none",
)  # fmt: skip
"""The last one leaves a symbol out whose name would be another each time."""

NEWEST, OLDEST = 30, 17
"""Versions that are looked for by name where there is no plain `clang`."""

ROCM = "/opt/rocm"
SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Clang:
    """A clang by its path; `version` is what it says of itself."""

    path: str
    version: str

    @property
    def identity(self) -> str:
        """The version with the options: the path changes nothing."""
        return f"{self.version} {' '.join((*OPTIONS, *FLAGS))}"

    def compile(self, text: str, architecture: Architecture) -> bytes:
        """Raises CompilerRefused with clang's messages."""
        with tempfile.TemporaryDirectory(prefix="poot-rocm-") as folder:
            code = Path(folder) / "kernel.hsaco"
            options = [*OPTIONS, *FLAGS, f"--offload-arch={architecture.name}", "-o", str(code), "-"]
            run_program([self.path, *options], text)
            return code.read_bytes()


def run_program(command: list[str], given: str = "") -> str:
    """What a program writes to its standard output. Raises CompilerRefused where it fails or does not end."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerRefused(f"{command[0]} did not run: {error}") from error
    if done.returncode:
        messages = done.stderr.strip() or f"it ended with {done.returncode} and said nothing"
        raise CompilerRefused(f"{Path(command[0]).name} refused: {messages}")
    return done.stdout


def open_clang(path: str, architecture: Architecture) -> Clang:
    """The clang of a path that knows an architecture. Raises CompilerRefused where it does not."""
    first = run_program([path, "--version"]).splitlines()[0]
    found = re.search(r"clang version (\d+)\.", first)
    if found is None:
        raise CompilerRefused(f"{path} is no clang: {first}")
    if int(found[1]) < OLDEST:
        raise CompilerRefused(f"{path} is clang {found[1]}, which is older than {OLDEST}")
    clang = Clang(path, first)
    clang.compile(PROBE, architecture)
    return clang


def find_rocm_clang(architecture: Architecture) -> Clang:
    """The clang that ROCm brings along. Raises CompilerRefused where there is none that knows the architecture."""
    root = Path(os.environ.get("ROCM_PATH") or os.environ.get("ROCM_HOME") or ROCM)
    for place in ("llvm/bin/clang", "lib/llvm/bin/clang"):
        path = root / place
        if path.exists():
            return open_clang(str(path), architecture)
    raise CompilerRefused(f"there is none in {root}")


def find_clang(architecture: Architecture) -> Clang:
    """The first clang on the path that knows the architecture. Raises CompilerRefused with what the others said."""
    refusals = []
    for name in ("clang", *(f"clang-{version}" for version in range(NEWEST, OLDEST - 1, -1))):
        path = shutil.which(name)
        if path is None:
            continue
        try:
            return open_clang(path, architecture)
        except CompilerRefused as error:
            refusals.append(str(error))
    raise CompilerRefused("; ".join(refusals) or f"none of version {OLDEST} or newer is on the path")

"""hiprtc, the compiler of HIP as a library, through hip-python.

A version that does not know an architecture may end the process instead of saying so: each architecture is first tried
in a process of its own, `python -m poot_rocm_device.compiler_hiprtc gfx1100`.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from poot_rocm_device.architecture import Architecture, architecture_named
from poot_rocm_device.compilers import FLAGS, PROBE, CompilerRefused

SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Hiprtc:
    """The library by its module of hip-python; `version` is (major, minor)."""

    module: Any
    version: tuple[int, int]

    @property
    def identity(self) -> str:
        """The version with the options."""
        return f"hiprtc {self.version[0]}.{self.version[1]} {' '.join(FLAGS)}"

    def compile(self, text: str, architecture: Architecture) -> bytes:
        """Raises CompilerRefused with the library's messages."""
        program = self._value("hiprtcCreateProgram", text.encode(), b"kernel.hip", 0, None, None)
        try:
            options = [f"--offload-arch={architecture.name}".encode(), *(flag.encode() for flag in FLAGS)]
            (result,) = self.module.hiprtcCompileProgram(program, len(options), options)
            if result != self.module.hiprtcResult.HIPRTC_SUCCESS:
                messages = self._bytes("hiprtcGetProgramLogSize", "hiprtcGetProgramLog", program)
                raise CompilerRefused(f"hiprtc refused: {messages.rstrip(bytes(1)).decode(errors='replace')}")
            return self._bytes("hiprtcGetCodeSize", "hiprtcGetCode", program)
        finally:
            self.module.hiprtcDestroyProgram(program.createRef())

    def _value(self, name: str, *arguments: Any) -> Any:
        """What a function gives besides its status. Raises CompilerRefused where that is not success."""
        status, *values = getattr(self.module, name)(*arguments)
        if status != self.module.hiprtcResult.HIPRTC_SUCCESS:
            raise CompilerRefused(f"{name}: {status.name}")
        return values[0] if values else None

    def _bytes(self, size: str, get: str, program: Any) -> bytes:
        held = bytearray(self._value(size, program))
        self._value(get, program, held)
        return bytes(held)


def open_hiprtc() -> Hiprtc:
    """The library of this machine. Raises CompilerRefused where the package or the library is missing."""
    module = _module()
    try:
        status, major, minor = module.hiprtcVersion()
    # The bindings load the library at the first call, and raise this where it is not there.
    except RuntimeError as error:
        raise CompilerRefused(f"the library did not load ({str(error).splitlines()[0]}): install ROCm") from error
    if status != module.hiprtcResult.HIPRTC_SUCCESS:
        raise CompilerRefused(f"hiprtcVersion: {status.name}")
    return Hiprtc(module, (major, minor))


def _module() -> ModuleType:
    try:
        from hip import hiprtc
    except ImportError as error:
        raise CompilerRefused(
            f"the package hip-python did not load ({error}): install poot-rocm-device[hiprtc]"
        ) from error
    return hiprtc


@cache
def _refusal(architecture: str) -> str:
    """Why the library does not compile for an architecture; "" where it does. Asked once in a process."""
    command = [sys.executable, "-m", "poot_rocm_device.compiler_hiprtc", architecture]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"compiling for it did not end within {SECONDS:g} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return f"this version does not compile for it ({lines[-1] if lines else f'it ended with {done.returncode}'})"


def find_hiprtc(architecture: Architecture) -> Hiprtc:
    """hiprtc, where it compiles for an architecture. Raises CompilerRefused with the reason."""
    hiprtc = open_hiprtc()
    reason = _refusal(architecture.name)
    if reason:
        raise CompilerRefused(f"{architecture.name}: {reason}")
    return hiprtc


if __name__ == "__main__":
    try:
        open_hiprtc().compile(PROBE, architecture_named(sys.argv[1]))
    except CompilerRefused as refused:
        sys.exit(str(refused))

"""From a kernel to its code object: the text, and the first compiler of this machine that takes it.

A compiler is asked for an architecture before it is used: what it does not know is refused here, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from poot_executor.compile.target import Target
from poot_executor.device import Compiled
from poot_executor.errors import DeviceError, DeviceNotFound
from poot_executor.kernel.ir import Kernel
from poot_rocm_device.architecture import Architecture, architecture_of
from poot_rocm_device.emit import emit
from poot_rocm_device.emitter import entry_name

FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-strict-float-cast-overflow",
    "-mcode-object-version=5",
)
"""Options of every compiler. All but the optimization keep what the text means: nothing is contracted, integers wrap,
buffers of several types overlap, and a number too large for an integer is some integer. Newer compilers write code
objects of a version that older drivers do not load.
"""

PROBE = 'extern "C" __attribute__((global)) void poot_probe(unsigned *at) { *at = 1u; }\n'
"""What a compiler that knows an architecture compiles for it."""


class CompilerRefused(DeviceError):
    """A compiler that is not there, does not know an architecture, or does not take a text, with its messages."""


class TextCompiler(Protocol):
    """A compiler of HIP text. `identity` is all that its code objects depend on besides text and architecture."""

    @property
    def identity(self) -> str:
        """Name, version and options."""
        ...

    def compile(self, text: str, architecture: Architecture) -> bytes:
        """The code object. Raises CompilerRefused with the compiler's messages."""
        ...


@dataclass(frozen=True, slots=True)
class KernelCompiler:
    """Compiles kernels with one compiler: the text is emitted for the target's caps."""

    compiler: TextCompiler

    @property
    def identity(self) -> str:
        """What a cache of its code objects is told besides kernel and caps."""
        return self.compiler.identity

    def __call__(self, kernel: Kernel, target: Target) -> Compiled:
        """The code object of a kernel; its entry is the kernel's symbol. Raises Unsupported and CompilerRefused."""
        architecture = architecture_of(target.caps.features)
        code = self.compiler.compile(emit(kernel, target.caps), architecture)
        return Compiled(kernel.name, code, entry_name(kernel))


Finder = Callable[[Architecture], TextCompiler]
"""Gives a compiler that knows an architecture, or raises CompilerRefused with the reason."""


def finders() -> Sequence[tuple[str, Finder]]:
    """Where compilers are looked for, the first choice first. What is not installed is not imported."""
    from poot_rocm_device.compiler_clang import find_clang, find_rocm_clang
    from poot_rocm_device.compiler_hiprtc import find_hiprtc
    from poot_rocm_device.compiler_zig import find_zig

    return (("hiprtc", find_hiprtc), ("ROCm's clang", find_rocm_clang), ("clang", find_clang), ("ziglang", find_zig))


def find_compiler(architecture: Architecture, among: Sequence[tuple[str, Finder]] | None = None) -> KernelCompiler:
    """The first compiler that knows the architecture. Raises DeviceNotFound with what each one lacks."""
    reasons = []
    for name, finder in finders() if among is None else among:
        try:
            return KernelCompiler(finder(architecture))
        except CompilerRefused as error:
            reasons.append(f"{name}: {error}")
    raise DeviceNotFound(
        f"nothing compiles kernels for {architecture.name} ({'; '.join(reasons)}): install ROCm with"
        " poot-rocm-device[hiprtc], clang and lld, or poot-rocm-device[zig]"
    )

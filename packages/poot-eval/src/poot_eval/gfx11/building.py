"""Building gfx11 code objects with the clang of this machine: HIP text (builtins only) and assembly."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from poot_executor.errors import Unsupported

_VERSIONS = ("-19", "-20", "-21", "-22", "-18", "-17", "")


def clang() -> str | None:
    """A clang that may know gfx11, by path; None where there is none."""
    paths = (shutil.which(f"clang{version}") for version in _VERSIONS)
    return next((path for path in paths if path is not None), None)


def build_hip(text: str, *, architecture: str = "gfx1100", wave: int = 32, options: Sequence[str] = ()) -> bytes:
    """The code object of HIP text. Raises Unsupported with the compiler's words where it does not compile."""
    flags = [
        "-x", "hip", "--cuda-device-only", f"--offload-arch={architecture}", "-nogpuinc", "-nogpulib",
        "--no-gpu-bundle-output", "-mcode-object-version=5", "-std=c++17", "-O3",
        *(["-mwavefrontsize64"] if wave == 64 else []),
    ]  # fmt: skip
    return _build(text, "hip", [*flags, *options])


def build_assembly(text: str, *, architecture: str = "gfx1100", wave: int = 32) -> bytes:
    """The code object of assembly text, with its kernels' descriptors in `.amdhsa_kernel` blocks."""
    flags = [
        "-x", "assembler", "-target", "amdgcn-amd-amdhsa", f"-mcpu={architecture}", "-mcode-object-version=5",
        *(["-mwavefrontsize64"] if wave == 64 else []),
    ]  # fmt: skip
    return _build(text, "s", flags)


def _build(text: str, suffix: str, flags: Sequence[str]) -> bytes:
    compiler = clang()
    if compiler is None:
        raise Unsupported("building machine code", "clang is not installed (clang 17 or newer, with lld)")
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, f"kernels.{suffix}"), Path(folder, "kernels.out")
        source.write_text(text)
        done = subprocess.run(
            [compiler, *flags, str(source), "-o", str(result)], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise Unsupported("building machine code", done.stderr.strip())
        return result.read_bytes()

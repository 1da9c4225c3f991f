"""The clang and lld inside the package ziglang: a compiler that pip installs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from poot_rocm_device.architecture import Architecture
from poot_rocm_device.compiler_clang import run_program
from poot_rocm_device.compilers import FLAGS, PROBE, CompilerRefused

FRONT_END = (
    "clang", "-cc1", "-triple", "amdgcn-amd-amdhsa", "-x", "hip", "-fcuda-is-device", "-mrelocation-model", "pic",
    "-pic-level", "2", "-fvisibility=hidden", "-fapply-global-visibility-to-externs", "-mframe-pointer=none",
    "-emit-obj",
)  # fmt: skip
"""zig hands these to clang's front end; what clang's driver would add for AMD's target is spelled out."""

_NAMES = {"-fno-strict-aliasing": "-relaxed-aliasing"}
OPTIONS = tuple(_NAMES.get(flag, flag) for flag in FLAGS)
"""The options of every compiler, by the front end's names."""


@dataclass(frozen=True, slots=True)
class Zig:
    """zig by its path; `version` is the package's."""

    path: str
    version: str

    @property
    def identity(self) -> str:
        """The version with the options."""
        return f"zig {self.version} {' '.join((*FRONT_END, *OPTIONS))}"

    def compile(self, text: str, architecture: Architecture) -> bytes:
        """Compiled and linked. Raises CompilerRefused with the messages of either."""
        with tempfile.TemporaryDirectory(prefix="poot-rocm-") as folder:
            source, compiled, code = (Path(folder) / name for name in ("kernel.hip", "kernel.o", "kernel.hsaco"))
            source.write_text(text)
            options = [*FRONT_END, *OPTIONS, "-target-cpu", architecture.name, "-o", str(compiled), str(source)]
            run_program([self.path, *options])
            run_program([self.path, "ld.lld", "-shared", "--no-undefined", str(compiled), "-o", str(code)])
            return code.read_bytes()


def find_zig(architecture: Architecture) -> Zig:
    """The package's zig. Raises CompilerRefused where it is not installed or does not know the architecture."""
    spec = find_spec("ziglang")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    path = next((shutil.which("zig", path=folder) for folder in folders), None)
    if path is None:
        raise CompilerRefused("the package ziglang is not installed")
    zig = Zig(path, run_program([path, "version"]).strip())
    zig.compile(PROBE, architecture)
    return zig

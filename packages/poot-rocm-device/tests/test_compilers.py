"""Finding a compiler, and what each of them does with what it does not know."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from poot_eval.conformance.sample_kernels import silu
from poot_executor.compile.target import Target
from poot_executor.errors import DeviceNotFound
from poot_executor.known_fragments import fragment_case
from poot_rocm_device.architecture import ARCHITECTURES, Architecture, architecture_named
from poot_rocm_device.caps import caps_of, products
from poot_rocm_device.compiler_clang import OLDEST, Clang, find_clang, find_rocm_clang, open_clang
from poot_rocm_device.compiler_hiprtc import open_hiprtc
from poot_rocm_device.compiler_zig import find_zig
from poot_rocm_device.compilers import CompilerRefused, Finder, KernelCompiler, TextCompiler, find_compiler, finders
from poot_rocm_device.emit import emit_module
from poot_rocm_device.emitter import entry_name

GFX1100, GFX1030, GFX90A = (architecture_named(name) for name in ("gfx1100", "gfx1030", "gfx90a"))


class Echo:
    """A compiler whose code is what it was given."""

    identity = "echo 1"

    def compile(self, text: str, architecture: Architecture) -> bytes:
        return f"{architecture.name}\n{text}".encode()


def refusing(reason: str) -> Finder:
    def find(architecture: Architecture) -> TextCompiler:
        raise CompilerRefused(f"{reason} {architecture.name}")

    return find


def test_the_first_compiler_that_knows_the_architecture_is_taken() -> None:
    found = find_compiler(
        GFX1100, [("one", refusing("too old for")), ("two", lambda _: Echo()), ("three", refusing(""))]
    )
    assert isinstance(found.compiler, Echo) and found.identity == "echo 1"
    compiled = found(silu(), Target("rocm", caps_of(GFX1100)))
    assert (
        compiled.code.startswith(b"gfx1100\n// silu for gfx1100") and f"\n{compiled.entry}(" in compiled.code.decode()
    )


def test_where_none_does_each_one_says_why() -> None:
    with pytest.raises(DeviceNotFound, match=r"gfx1100 \(one: too old for gfx1100; two: no gfx1100\): install ROCm"):
        find_compiler(GFX1100, [("one", refusing("too old for")), ("two", refusing("no"))])


def test_compilers_are_asked_in_the_order_of_what_they_know_best() -> None:
    assert [name for name, _ in finders()] == ["hiprtc", "ROCm's clang", "clang", "ziglang"]


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_programs_that_are_no_use_say_what_they_are(tmp_path: Path) -> None:
    for script, message in (
        ("echo Debian clang version 11.0.1-2", rf"is clang 11, which is older than {OLDEST}"),
        ("echo a compiler of something else", "is no clang: a compiler of something else"),
        ("echo out of memory >&2; exit 3", "clang refused: out of memory"),
        ("exit 4", "clang refused: it ended with 4 and said nothing"),
        (
            'test "$1" = --version && echo clang version 18.1.0 || { echo no such target >&2; exit 1; }',
            "no such target",
        ),
    ):
        with pytest.raises(CompilerRefused, match=message):
            open_clang(str(program(tmp_path, "clang", script)), GFX1100)
    with pytest.raises(CompilerRefused, match="did not run"):
        open_clang(str(tmp_path / "nothing"), GFX1100)


def test_a_rocm_installation_is_looked_for_where_it_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    with pytest.raises(CompilerRefused, match="there is none in"):
        find_rocm_clang(GFX1100)
    (tmp_path / "llvm" / "bin").mkdir(parents=True)
    program(tmp_path / "llvm" / "bin", "clang", "echo AMD clang version 12.0.0")
    with pytest.raises(CompilerRefused, match="is clang 12"):
        find_rocm_clang(GFX1100)


def test_no_clang_on_the_path_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerRefused, match=f"none of version {OLDEST} or newer is on the path"):
        find_clang(GFX1100)
    program(tmp_path, "clang", "echo clang version 14.0.6")
    program(tmp_path, f"clang-{OLDEST}", "exit 9")
    with pytest.raises(CompilerRefused, match=rf"clang 14, which is older .*; clang-{OLDEST} refused: it ended with 9"):
        find_clang(GFX1100)


def real_clang() -> Clang:
    try:
        return find_clang(GFX1100)
    except CompilerRefused as error:
        pytest.skip(str(error))


def test_clang_refuses_what_it_does_not_take_with_its_messages() -> None:
    clang = real_clang()
    with pytest.raises(CompilerRefused, match=r"error: .*nonsense"):
        clang.compile("nonsense", GFX1100)
    with pytest.raises(CompilerRefused, match="gfx9999"):
        clang.compile("", replace(GFX1100, name="gfx9999"))
    # A linker that finds a symbol missing refuses as well: nothing may wait for the loader.
    with pytest.raises(CompilerRefused, match="undefined"):
        clang.compile(
            '__attribute__((device)) void outside(); extern "C" __attribute__((global)) void k() { outside(); }',
            GFX1100,
        )
    assert (
        "clang version" in clang.identity and "-ffp-contract=off" in clang.identity and clang.path not in clang.identity
    )


def test_equal_texts_give_equal_code_objects() -> None:
    compiler, target = KernelCompiler(real_clang()), Target("rocm", caps_of(GFX1100))
    assert compiler(silu(), target) == compiler(silu(), target)


# hiprtc


def test_a_missing_package_or_library_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "hip", None)
    with pytest.raises(CompilerRefused, match=r"hip-python did not load .*: install poot-rocm-device\[hiprtc\]"):
        open_hiprtc()


@pytest.fixture(scope="module")
def rocm_5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like an installation's, over the hiprtc of the distribution's package libamdhip64-5.

    The bindings look for names without a version, which that package lacks.
    """
    pytest.importorskip("hip", reason="there is no hip-python: install poot-rocm-device[hiprtc]")
    libraries = sorted(Path("/usr/lib/x86_64-linux-gnu").glob("libamdhip64.so.5"))
    if not libraries:
        pytest.skip("there is no libamdhip64.so.5: install libamdhip64-5")
    folder = tmp_path_factory.mktemp("rocm")
    (folder / "lib").mkdir()
    for name in ("libhiprtc.so", "libamdhip64.so"):
        (folder / "lib" / name).symlink_to(libraries[0])
    return folder


@pytest.fixture
def with_rocm_5(rocm_5: Path) -> Callable[..., str]:
    """`with_rocm_5(program, *arguments)`: what a Python program writes whose hiprtc is of ROCm 5.2.

    In a process of its own: the library takes whatever HSA runtime a process has loaded before, and in this one that
    may be a simulated one.
    """

    def run(program: str, *arguments: str) -> str:
        environment = {**os.environ, "ROCM_PATH": os.fspath(rocm_5)}
        environment.pop("ROCM_HOME", None)
        command = [sys.executable, "-c", f"{COMMON}{program}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


COMMON = """
import sys
from poot_rocm_device.architecture import architecture_named
from poot_rocm_device.compiler_hiprtc import find_hiprtc
from poot_rocm_device.compilers import CompilerRefused
architecture = architecture_named(sys.argv[1])
"""

COMPILE = """
code = find_hiprtc(architecture).compile(open(sys.argv[2]).read(), architecture)
open(sys.argv[3], "wb").write(code)
"""

REFUSE = """
try:
    find_hiprtc(architecture).compile("nonsense", architecture)
except CompilerRefused as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [GFX1030, GFX90A], ids=lambda a: a.name)
def test_hiprtc_compiles_the_same_text(
    with_rocm_5: Callable[..., str], architecture: Architecture, tmp_path: Path, library_kernels: ModuleType
) -> None:
    """Every kernel of the library, and the known answers of the products that the architecture has."""
    text, code = tmp_path / "kernel.hip", tmp_path / "kernel.hsaco"
    shapes = products(architecture)
    kernels = library_kernels.library(architecture)
    kernels = [*kernels, *(fragment_case(shape, architecture.wave).kernel for shape in shapes)]
    text.write_text(emit_module(kernels, caps_of(architecture, fragments=shapes)))
    with_rocm_5(COMPILE, architecture.name, str(text), str(code))
    compiled = code.read_bytes()
    assert compiled[:5] == b"\x7fELF\x02" and compiled[48] == architecture.mach
    assert all(f"{entry_name(kernel)}.kd".encode() in compiled for kernel in kernels)


def test_hiprtc_refuses_a_text_with_its_messages(with_rocm_5: Callable[..., str]) -> None:
    said = with_rocm_5(REFUSE, "gfx1030")
    assert said.startswith("hiprtc refused: ") and "error: " in said and "nonsense" in said


def test_an_architecture_that_would_end_the_process_is_refused_before(with_rocm_5: Callable[..., str]) -> None:
    """ROCm 5.2 knows no gfx1100, and ends the process where it is asked to compile for it."""
    assert with_rocm_5(REFUSE, "gfx1100").startswith("gfx1100: this version does not compile for it (")


# zig


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_zig_compiles_for_every_architecture(architecture: Architecture) -> None:
    pytest.importorskip("ziglang", reason="there is no ziglang: install poot-rocm-device[zig]")
    zig = find_zig(architecture)
    compiled = KernelCompiler(zig)(silu(), Target("rocm", caps_of(architecture)))
    assert compiled.code[:5] == b"\x7fELF\x02" and compiled.code[48] == architecture.mach and compiled.code[8] == 3


def test_a_missing_zig_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poot_rocm_device.compiler_zig.find_spec", lambda name: None)
    with pytest.raises(CompilerRefused, match="the package ziglang is not installed"):
        find_zig(GFX1100)

"""What is emitted, compiled: every kernel of the library for each architecture, and what its descriptor then says."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from poot_eval.conformance.sample_kernels import silu
from poot_eval.gfx11.disassembly import objdump
from poot_executor.compile import compile
from poot_executor.compile.target import Target
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.known_answers import DOT4, cases
from poot_executor.known_fragments import fragment_case
from poot_rocm_device.architecture import ARCHITECTURES, Architecture
from poot_rocm_device.caps import caps_of, products
from poot_rocm_device.compiler_clang import Clang, find_clang
from poot_rocm_device.compilers import CompilerRefused
from poot_rocm_device.emit import emit_module
from poot_rocm_device.emitter import entry_name
from poot_rocm_device.kernarg import Kernarg

F32, I32, U32, BOOL = DType.F32, DType.I32, DType.U32, DType.BOOL
READ, WRITE = Access.READ, Access.READ_WRITE

each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)


@pytest.fixture
def clang(architecture: Architecture) -> Clang:
    try:
        return find_clang(architecture)
    except CompilerRefused as error:
        pytest.skip(f"there is no clang for AMD's GPUs ({error}): install clang-19, lld-19 and llvm-19")


@pytest.fixture(scope="session")
def notes() -> Callable[..., str]:
    """`notes(path)` gives a code object's header and metadata as text, `notes(path, option)` what else it shows."""
    tools = [shutil.which(name) for name in ("llvm-readelf-19", "llvm-readelf")]
    tool = next((path for path in tools if path is not None), None)
    if tool is None:
        pytest.skip("there is no llvm-readelf: install llvm-19")

    def read(path: Path, *options: str) -> str:
        command = [tool, *(options or ("--file-header", "--notes")), str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return read


@dataclass(frozen=True, slots=True)
class Metadata:
    """Of a kernel: numbers by key, and what its arguments are."""

    numbers: dict[str, int]
    arguments: list[tuple[int, int, str]]


def metadata(text: str) -> dict[str, Metadata]:
    """By name."""
    found = {}
    for part in re.split(r"^  - (?=\.)", text, flags=re.MULTILINE)[1:]:
        arguments = re.findall(r"\.offset: +(\d+)\n +\.size: +(\d+)\n +\.value_kind: +(\w+)", part)
        numbers = dict(re.findall(r"^    \.(\w+): +(\d+)$", part, re.MULTILINE))
        (name,) = re.findall(r"^    \.name: +(\w+)$", part, re.MULTILINE)
        found[name] = Metadata(
            {key: int(value) for key, value in numbers.items()}, [(int(o), int(s), k) for o, s, k in arguments]
        )
    return found


def check(kernel: Kernel, found: Metadata, architecture: Architecture) -> None:
    """The descriptor says what the packets will."""
    numbers, layout = found.numbers, Kernarg(len(kernel.params), kernel.checks)
    pointers = layout.buffers + layout.checks
    assert found.arguments == [
        *((8 * place, 8, "global_buffer") for place in range(pointers)),
        *((layout.counts + 4 * place, 4, "by_value") for place in range(layout.buffers)),
    ]
    assert numbers["kernarg_segment_size"] == layout.nbytes
    assert numbers["wavefront_size"] == architecture.wave
    assert numbers["max_flat_workgroup_size"] == kernel.group_size
    assert numbers["private_segment_fixed_size"] == 0, "registers went to memory"
    assert numbers["vgpr_spill_count"] == numbers["sgpr_spill_count"] == 0
    declared = sum(4 * array.count for array in kernel.shared)
    # The compiler may leave an array out that nothing reads.
    assert numbers["group_segment_fixed_size"] <= declared + 16 * len(kernel.shared)
    # A wave of every unit's four has so many registers where a group is as large as it may be.
    assert numbers["vgpr_count"] <= (512 if architecture.wave == 64 else 256)


@each_architecture
def test_numbers_are_rounded_to_nearest_and_denormals_kept(
    architecture: Architecture, clang: Clang, notes: Callable[..., str], tmp_path: Path
) -> None:
    """As the kernel's descriptor sets the float mode that it starts in."""
    path = tmp_path / "module.hsaco"
    path.write_bytes(clang.compile(emit_module([silu()], caps_of(architecture)), architecture))
    words = re.findall(r"^0x[0-9a-f]+ ((?:[0-9a-f]{8} ?)+)", notes(path, "--hex-dump=.rodata"), re.MULTILINE)
    descriptor = bytes.fromhex("".join(words).replace(" ", ""))
    assert len(descriptor) == 64
    # Bits 12 to 19 of the first register word: both roundings to nearest even, no flush of f32, nor of f16 and f64.
    assert int.from_bytes(descriptor[48:52], "little") >> 12 & 0xFF == 0xF0


def every_operation() -> Iterator[Kernel]:
    """A kernel for each dtype and width with each operation that takes it; each operand is a literal in turn."""
    elementary = "exp log sqrt rsqrt sin cos tanh erf floor round".split()
    unary = {F32: ["neg", "abs", *elementary], I32: ["neg", "abs", "not"], U32: ["neg", "abs", "not"]}
    binary = {F32: "add sub mul div min max pow".split()}
    binary[I32] = "add sub mul div rem min max and or xor shl shr".split()
    binary[U32] = [*binary[I32], "mulhi"]
    for dtype, width in itertools.product((F32, I32, U32), (1, 2, 4)):
        b = KernelBuilder(f"all_{dtype}_{width}", 64)
        x, y = b.buffer("x", dtype, READ), b.buffer("y", dtype, WRITE)
        i = b.thread_id() * width
        v, w = x.load(i, width), x.load(i + width, width)
        number, _ = b.widened(b.const(0.5 if dtype is F32 else 3, dtype), v)
        flags = [b.emit(op, v, w) for op in ("eq", "ne", "lt", "le", "gt", "ge")]
        flag = ((flags[0] & flags[1]) | flags[2]) ^ ~flags[3]
        values = [b.emit(op, operand) for op in unary[dtype] for operand in (v, number)]
        pairs = ((v, w), (v, number), (number, v), (number, number))
        values += [b.emit(op, *pair) for op in binary[dtype] for pair in pairs]
        values += [b.cast(b.cast(v, other), dtype) for other in (F32, I32, U32, BOOL) if other is not dtype]
        values += [b.bitcast(b.bitcast(v, other), dtype) for other in (F32, I32, U32)]
        if dtype is F32:
            values += [b.emit("fma", v, number, w), b.emit("half_to_float", b.emit("float_to_half", v))]
        total = b.select(flag, v, values[0])
        for value in values:
            total = b.select(flags[4] & flags[5], value, total + value)
        y.store(i, total)
        yield b.finish()


def places_and_threads(threads: int) -> Kernel:
    """Everything that is not elementwise, in groups that are whole waves or not."""
    b = KernelBuilder(f"places_{threads}", threads)
    y, z = b.buffer("y", I32, WRITE), b.buffer("z", U32, WRITE)
    t = b.thread_id()
    value = t + b.group_id(0) + b.group_id(1) + b.group_id(2) + b.lane_id() + b.subgroup_id() + b.subgroup_size()
    for dtype in (F32, I32, U32):
        part = b.cast(value, dtype)
        for kind in ("subgroup_sum", "subgroup_max", "subgroup_min"):
            value = value + b.cast(b.emit(kind, part), I32)
        value = value + b.cast(b.subgroup_shuffle(part, t & 3) + b.subgroup_shuffle(part, 1), I32)
        for mask in (1, 2, 3, 4, 7, 15, 16, 21, 31):
            value = value + b.cast(b.subgroup_shuffle_xor(part, mask), I32)
    for buffer, dtype in ((y, I32), (z, U32)):
        array = b.shared(f"s{dtype}", dtype, 16)
        array[t & 15] = b.cast(value, dtype)
        b.barrier()
        for operation in ("add", "min", "max", "or"):
            value = value + b.cast(buffer.atomic(operation, t, array.atomic(operation, 0, array[t])), I32)
    with b.while_(lambda: y[0] > 0):
        y[0] = y[0] - 1
    y.store(t * 4, b.vector(value, value, y.length(), b.dot4(z[t], z[t], value)))
    b.check(value > 0, 255)
    return b.finish()


@pytest.mark.slow
@each_architecture
def test_every_operation_compiles(
    architecture: Architecture, clang: Clang, notes: Callable[..., str], tmp_path: Path
) -> None:
    kernels = [*every_operation(), *(places_and_threads(threads) for threads in (20, 64, 96, 128))]
    _compiled(kernels, architecture, clang, notes, tmp_path)


def planned(architecture: Architecture, library_kernels: ModuleType) -> list[Kernel]:
    """The library; planning takes longer than compiling, and differs little between architectures of one width."""
    first = next(a for a in ARCHITECTURES if a.wave == architecture.wave)
    kernels: list[Kernel] = library_kernels.library(first)
    assert len(kernels) > 40
    return kernels


@pytest.mark.slow
@each_architecture
def test_the_kernels_of_the_library_compile(
    architecture: Architecture, clang: Clang, notes: Callable[..., str], tmp_path: Path, library_kernels: ModuleType
) -> None:
    """Architectures of one width share the library: each kernel is compiled for one of them."""
    same = [a for a in ARCHITECTURES if a.wave == architecture.wave]
    kernels = planned(architecture, library_kernels)[same.index(architecture) :: len(same)]
    _compiled(kernels, architecture, clang, notes, tmp_path)


@pytest.mark.slow
@pytest.mark.sweep(most=1)
@each_architecture
def test_every_kernel_of_the_library_compiles(
    architecture: Architecture, clang: Clang, notes: Callable[..., str], tmp_path: Path, library_kernels: ModuleType
) -> None:
    _compiled(planned(architecture, library_kernels), architecture, clang, notes, tmp_path)


def tiles(architecture: Architecture, library_kernels: ModuleType) -> list[Kernel]:
    """The known answers of each product, and a contraction of many rows."""
    caps = caps_of(architecture, fragments=products(architecture))
    graph = library_kernels.gated(np.random.default_rng(0), 40, "bf16")
    program = compile(graph, Target("rocm", replace(caps, parallel_groups=1)))
    kernels = [command.kernel for command in program.dispatches]
    multiplying = [k for k in kernels if any(op.kind == "fragment_mma" for op in k.body.walk())]
    assert multiplying
    return [*(fragment_case(shape, architecture.wave).kernel for shape in caps.fragments), *multiplying]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if a.matrix], ids=lambda a: a.name)
def test_products_of_matrices_compile(
    architecture: Architecture, clang: Clang, notes: Callable[..., str], tmp_path: Path, library_kernels: ModuleType
) -> None:
    kernels = tiles(architecture, library_kernels)
    _compiled(kernels, architecture, clang, notes, tmp_path, fragments=products(architecture))


INSTRUCTIONS = {
    "gfx90a": "v_dot4c?_i32_i8 v_mfma_f32_16x16x16f16 v_mfma_f32_16x16x16bf16_1k v_mfma_i32_16x16x16i8",
    "gfx942": "v_dot4c?_i32_i8 v_mfma_f32_16x16x16_f16 v_mfma_f32_16x16x16_bf16 v_mfma_i32_16x16x32_i8",
    "gfx1030": "v_dot4c?_i32_i8",
    "gfx1100": "v_dot4_i32_iu8 v_wmma_f32_16x16x16_f16 v_wmma_f32_16x16x16_bf16 v_wmma_i32_16x16x16_iu8",
    "gfx1151": "v_dot4_i32_iu8 v_wmma_f32_16x16x16_f16 v_wmma_f32_16x16x16_bf16 v_wmma_i32_16x16x16_iu8",
    "gfx1201": "v_dot4_i32_iu8 v_wmma_f32_16x16x16_f16 v_wmma_f32_16x16x16_bf16 v_wmma_i32_16x16x16_iu8",
}
"""What multiplies more than two numbers at once, in the order of their known answers; one form adds in place."""


@pytest.mark.slow
@each_architecture
def test_a_capability_is_an_instruction(architecture: Architecture, clang: Clang, tmp_path: Path) -> None:
    """Dot products of bytes and products of matrices are one each in what their known answers are compiled to."""
    tool, shapes = objdump(), products(architecture)
    if tool is None:
        pytest.skip("there is no llvm-objdump that knows AMD's GPUs: install llvm-19")
    dot = next(case.kernel for case in cases() if case.feature == DOT4)
    kernels = [dot, *(fragment_case(shape, architecture.wave).kernel for shape in shapes)]
    path = tmp_path / "module.hsaco"
    caps = caps_of(architecture, fragments=shapes)
    path.write_bytes(clang.compile(emit_module(kernels, caps), architecture))
    text = subprocess.run([tool, "-d", str(path)], capture_output=True, text=True, check=True).stdout
    bodies = dict(re.findall(r"^[0-9a-f]+ <(\w+)>:\n(.*?)(?=^$|\Z)", text, re.MULTILINE | re.DOTALL))
    for kernel, instruction in zip(kernels, INSTRUCTIONS[architecture.name].split(), strict=True):
        assert re.search(rf"\b{instruction}(_e32|_e64)?\b", bodies[entry_name(kernel)])


def _compiled(
    kernels: list[Kernel],
    architecture: Architecture,
    clang: Clang,
    notes: Callable[..., str],
    folder: Path,
    *,
    fragments: Sequence[FragmentShape] = (),
) -> None:
    """As one module, so that the compiler starts once; each kernel's descriptor as its packets need it."""
    path = folder / "module.hsaco"
    path.write_bytes(clang.compile(emit_module(kernels, caps_of(architecture, fragments=fragments)), architecture))
    text = notes(path)
    assert f"amdgcn-amd-amdhsa--{architecture.name}\n" in text
    (flags,) = re.findall(r"Flags: +(0x[0-9A-Fa-f]+)", text)
    assert int(flags, 16) & 0xFF == architecture.mach
    assert re.search(r"ABI Version: +3\n", text), "not code object version 5"
    assert "hidden_" not in text
    found = metadata(text)
    assert set(found) == {entry_name(kernel) for kernel in kernels}
    for kernel in kernels:
        check(kernel, found[entry_name(kernel)], architecture)

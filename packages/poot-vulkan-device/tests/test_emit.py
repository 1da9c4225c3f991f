"""The emitter alone: no device. Golden files are rewritten by `pytest --update-spirv` and read as diffs."""

from __future__ import annotations

import difflib
import hashlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from poot_eval.conformance.sample_kernels import exchange, scaled_sum, silu, sweep, tile_max
from poot_executor.compile import compile
from poot_executor.compile.reorder import reorder_steps
from poot_executor.compile.target import Caps, Target
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.formats import FORMATS, Format
from poot_executor.graph.builder import Builder
from poot_executor.graph.functional import gelu, linear, rms_norm, softmax, stored_weight, swiglu
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.primitives import argmax
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import KERNEL_OPS, Access, Kernel
from poot_executor.kernel.routines import ROUTINES
from poot_executor.known_answers import cases
from poot_executor.known_arithmetic import arithmetic_cases
from poot_executor.loop_watch import binds_fault
from poot_executor.weights import WeightKey
from poot_vulkan_device.assembler import literal
from poot_vulkan_device.emit import emit
from poot_vulkan_device.rules import RULES

GOLDEN = Path(__file__).parent / "golden"

F32, I32, U32, F16 = DType.F32, DType.I32, DType.U32, DType.F16
READ, WRITE = Access.READ, Access.READ_WRITE

FULL = Caps(
    max_group_size=1024,
    subgroup_width=8,
    features=frozenset(
        "subgroup dot4 pack_half unpack_half unbounded_loops denorm_preserve inf_nan_preserve rounding_rte".split()
    ),
)
PLAIN = Caps()


CASES: list[tuple[str, Callable[[], Kernel], Caps]] = [
    ("scaled_sum", scaled_sum, FULL),
    ("silu", silu, FULL),
    ("silu_plain", silu, PLAIN),
    ("tile_max", tile_max, FULL),
    ("exchange", exchange, PLAIN),
    ("sweep", sweep, FULL),
    ("sweep_watched", sweep, PLAIN),
]


def validate(tool: Callable[[str], str], folder: Path, code: bytes) -> None:
    """spirv-val says nothing."""
    path = folder / f"{hashlib.sha256(code).hexdigest()[:16]}.spv"
    path.write_bytes(code)
    done = subprocess.run(
        [tool("spirv-val"), "--target-env", "vulkan1.1", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize(("name", "build", "caps"), CASES, ids=[name for name, _, _ in CASES])
def test_code_is_as_recorded(
    request: pytest.FixtureRequest, tool: Any, tmp_path: Path, name: str, build: Callable[[], Kernel], caps: Caps
) -> None:
    code, path = emit(build(), caps), GOLDEN / f"{name}.spvasm"
    module = tmp_path / "module.spv"
    module.write_bytes(code)
    listing = subprocess.run(
        [tool("spirv-dis"), "--no-header", "--raw-id", "--no-color", str(module)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if request.config.getoption("--update-spirv"):
        path.write_text(listing)
    recorded = path.read_text()
    diff = "".join(difflib.unified_diff(recorded.splitlines(True), listing.splitlines(True), path.name, "emitted"))
    assert listing == recorded, f"run pytest --update-spirv if this is meant:\n{diff}"
    validate(tool, tmp_path, code)


@pytest.mark.parametrize(("name", "build", "caps"), CASES, ids=[name for name, _, _ in CASES])
def test_equal_kernels_have_equal_code(name: str, build: Callable[[], Kernel], caps: Caps) -> None:
    assert emit(build(), caps) == emit(build(), caps)


def every_operation() -> Iterator[Kernel]:
    """A kernel for each operation of the table and each type that it takes, scalars and vectors."""
    floats = [name for name in ROUTINES if name not in ("pow", "half_to_float", "float_to_half")]
    unary = {F32: ["neg", "abs", "sqrt", "rsqrt", "floor", "round", *floats], I32: ["neg", "abs", "not"]}
    unary[U32] = unary[I32]
    binary = {F32: ["add", "sub", "mul", "div", "min", "max", "pow"]}
    binary[I32] = ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"]
    binary[U32] = [*binary[I32], "mulhi"]
    compare = ["eq", "ne", "lt", "le", "gt", "ge"]
    for dtype in (F32, I32, U32):
        for width in (1, 2, 4):
            b = KernelBuilder(f"all_{dtype}_{width}", 8)
            x, y = b.buffer("x", dtype, READ), b.buffer("y", dtype, WRITE)
            i = b.thread_id() * width
            v = x.load(i, width)
            flags = [b.emit(op, v, x.load(i + width, width)) for op in compare]
            flag = ((flags[0] & flags[1]) | flags[2]) ^ ~flags[3]
            values = [b.emit(op, v) for op in unary[dtype]] + [b.emit(op, v, v) for op in binary[dtype]]
            values += [b.cast(b.cast(v, other), dtype) for other in (F32, I32, U32, DType.BOOL) if other is not dtype]
            values += [b.bitcast(b.bitcast(v, other), dtype) for other in (F32, I32, U32)]
            if dtype is F32:
                values += [b.emit("fma", v, v, v), b.emit("half_to_float", b.emit("float_to_half", v))]
            total = b.select(flag, v, values[0])
            for value in values:
                total = total + b.select(flags[4] & flags[5], value, v)
            y.store(i, total)
            yield b.finish()


def places_and_threads() -> Kernel:
    b = KernelBuilder("places", 16)
    y, z = b.buffer("y", I32, WRITE), b.buffer("z", U32, WRITE)
    t = b.thread_id()
    value = t + b.group_id(0) + b.group_id(1) + b.group_id(2) + b.lane_id() + b.subgroup_id() + b.subgroup_size()
    for dtype in (F32, I32, U32):
        part = b.cast(value, dtype)
        for kind in ("subgroup_sum", "subgroup_max", "subgroup_min"):
            value = value + b.cast(b.emit(kind, part), I32)
        value = value + b.cast(b.subgroup_shuffle(part, t & 3) + b.subgroup_shuffle(part, 1), I32)
        value = value + b.cast(b.subgroup_shuffle_xor(part, 2), I32)
    for buffer, dtype in ((y, I32), (z, U32)):
        array = b.shared(f"s{dtype}", dtype, 16)
        array[t] = b.cast(value, dtype)
        b.barrier()
        for operation in ("add", "min", "max", "or"):
            value = value + b.cast(buffer.atomic(operation, t, array.atomic(operation, 0, array[t])), I32)
    y.store(t * 4, b.vector(value, value, y.length(), b.dot4(z[t], z[t], value)))
    b.check(value > 0, 255)
    return b.finish()


def emitted() -> set[str]:
    """Operations that reach the emitter of a device with every feature that Vulkan may have."""
    lowered = {"group_sum", "group_max", "group_min"}
    return {name for name, row in KERNEL_OPS.items() if row.needs is None or row.needs in FULL.features} - lowered


def test_the_emitter_covers_the_table() -> None:
    """By a rule, or by a routine that takes its place before."""
    assert RULES.missing(emitted() - set(ROUTINES) - {"yield"}) == ()
    assert RULES.missing(ROUTINES)


def test_spirv_val_accepts_every_operation(tool: Any, tmp_path: Path) -> None:
    kernels = [*every_operation(), places_and_threads(), *(build() for _, build, _ in CASES)]
    kernels += [case.kernel for case in (*cases(), *arithmetic_cases())]
    used = {op.kind for kernel in kernels for op in kernel.body.walk()}
    assert used == emitted()
    for kernel in kernels:
        validate(tool, tmp_path, emit(kernel, FULL))
        if not any(KERNEL_OPS[op.kind].needs for op in kernel.body.walk()):
            validate(tool, tmp_path, emit(kernel, PLAIN))


def gated(rows: int, format: Format) -> Graph:
    """A norm, two products with a gate, a softmax and a token picked from it."""
    b = Builder("gated")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((rows, 96), F32))
    norm = stored_weight(b, WeightKey(0, "norm"), FORMATS["f32"], (96,))
    gate, up = (stored_weight(b, WeightKey(0, role), format, (64, 96)) for role in ("gate", "up"))
    y = rms_norm(x, norm, 1e-5)
    y = swiglu(linear(y, gate, format), linear(y, up, format))
    b.output("y", gelu(softmax(y)))
    b.output("best", argmax(y, 1))
    return b.build()


@pytest.mark.parametrize("format", ["f32", "bf16", "f16", "q4_0", "q4_1", "q8_0"])
def test_spirv_val_accepts_what_the_compiler_makes(tool: Any, tmp_path: Path, format: str) -> None:
    """Whatever templates they become, for a row, a few and many."""
    caps = Caps(max_bindings=31, tile_rows=32, group_threads=32, subgroup_width=8, features=FULL.features)
    kernels = {}
    for rows in (1, 5, 40):
        program = compile(gated(rows, FORMATS[format]), Target("vulkan", caps))
        kernels |= {c.kernel.digest(): c.kernel for c in program.dispatches}
        kernels |= {
            step.kernel.digest(): step.kernel
            for use in program.weights
            for step in reorder_steps(use.layout, 1 << 20, caps)
        }
    assert len(kernels) > 3
    for kernel in kernels.values():
        validate(tool, tmp_path, emit(kernel, caps))


def test_a_missing_capability_is_named() -> None:
    with pytest.raises(Unsupported, match=r"vulkan: subgroup_shuffle in kernel tile_max, .*: this device lacks subgro"):
        emit(tile_max(), PLAIN)


def test_an_operation_without_a_rule_is_named() -> None:
    b = KernelBuilder("mean", 8)
    x = b.buffer("x", F32, WRITE)
    x[b.thread_id()] = b.group_sum(x[b.thread_id()])
    with pytest.raises(Unsupported, match=r"vulkan, .*: no rule for operation group_sum of \(f32\)"):
        emit(b.finish(), FULL)


def test_limits_of_the_device_are_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="32 threads a group, the device has 16"):
        emit(scaled_sum(), Caps(max_group_size=16))
    with pytest.raises(Unsupported, match="2 buffers, the device has 1"):
        emit(scaled_sum(), Caps(max_bindings=1))


def test_loops_are_watched_where_they_may_be_cut_short() -> None:
    assert binds_fault(sweep(), PLAIN)
    assert not binds_fault(sweep(), FULL)
    assert not binds_fault(scaled_sum(), PLAIN)
    assert binds_fault(tile_max(), FULL)


@pytest.mark.parametrize("text", ["", "abc", "main", "größe"])
def test_strings_end_in_a_zero_byte(text: str) -> None:
    data = b"".join(word.to_bytes(4, "little") for word in literal(text))
    assert data.rstrip(b"\0") == text.encode()
    assert len(data) == (len(text.encode()) // 4 + 1) * 4


def test_emitting_loads_no_native_library() -> None:
    code = (
        "import sys, poot_vulkan_device.driver, poot_vulkan_device.rules, poot_vulkan_device.caps\n"
        "sys.exit(any(name in ('vulkan', 'vulkan._vulkan', '_cffi_backend') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

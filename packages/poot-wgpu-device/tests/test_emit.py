"""The emitter alone: no adapter. Golden files are rewritten by `pytest --update-golden` and read as diffs."""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_wgpu_device.emit import emit
from poot_wgpu_device.rounds import FEATURE, binds_fault, loop_rounds
from poot_wgpu_device.routines import ROUTINES, routine_text

GOLDEN = Path(__file__).parent / "golden"

F32, I32, U32, F16 = DType.F32, DType.I32, DType.U32, DType.F16
READ, WRITE = Access.READ, Access.READ_WRITE

FULL = Caps(
    max_group_size=1024,
    subgroup_width=8,
    features=frozenset({"subgroup", "dot4", "pack2x16float", "unpack2x16float", FEATURE}),
)
PLAIN = Caps()


def scaled_sum() -> Kernel:
    """A guard by length, a vector load, a loop with a carried value and an if without an else."""
    b = KernelBuilder("scaled_sum", 32)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    i = b.group_id() * 32 + b.thread_id()
    total = b.var(0.0, name="total")
    with b.range(16) as k:
        v = x.load((i * 16 + k) * 4, 4)
        total.set(total.get() + (v.x + v.y) + (v.z + v.w))
    with b.if_(i < y.length()):
        y[i] = total.get() * 0.1
    return b.finish()


def silu() -> Kernel:
    """A routine that needs others, over a half buffer: builtins or integers, as the caps say."""
    b = KernelBuilder("silu", 64)
    x, y = b.buffer("x", F16, READ), b.buffer("y", F32, WRITE)
    i = b.group_id() * 64 + b.thread_id()
    value = x[i]
    y[i] = value / (b.exp(-value) + 1.0)
    return b.finish()


def tile_max() -> Kernel:
    """Shared memory, barriers in a loop, a shuffle of a constant lane, an atomic, a check."""
    b = KernelBuilder("tile_max", 64)
    x, best = b.buffer("x", I32, READ), b.buffer("best", I32, WRITE)
    tile = b.shared("tile", I32, 64)
    t = b.thread_id()
    i = b.group_id() * 64 + t
    b.check(i < x.length(), 3)
    tile[t] = b.max(x[b.min(i, x.length() - 1)], b.subgroup_shuffle(t, 0))
    width = b.var(32)
    with b.while_(lambda: width.get() > 0):
        b.barrier()
        with b.if_(t < width.get()):
            tile[t] = b.max(tile[t], tile[t + width.get()])
        width.set(width.get() // 2)
    with b.if_(t == 0):
        best.atomic("max", 0, tile[0])
    return b.finish()


def sweep() -> Kernel:
    """A loop whose bound a buffer gives: watched where the device may end it early."""
    b = KernelBuilder("sweep", 8)
    pos, y = b.buffer("pos", I32, READ), b.buffer("y", I32, WRITE)
    count = b.var(0)
    with b.range(pos[0]):
        count.set(count.get() + 1)
    y[b.thread_id()] = count.get()
    return b.finish()


CASES: list[tuple[str, Callable[[], Kernel], Caps]] = [
    ("scaled_sum", scaled_sum, FULL),
    ("silu", silu, FULL),
    ("silu_plain", silu, PLAIN),
    ("tile_max", tile_max, FULL),
    ("sweep", sweep, FULL),
    ("sweep_watched", sweep, PLAIN),
]


@pytest.mark.parametrize(("name", "build", "caps"), CASES, ids=[name for name, _, _ in CASES])
def test_text_is_as_recorded(
    request: pytest.FixtureRequest, name: str, build: Callable[[], Kernel], caps: Caps
) -> None:
    text, path = emit(build(), caps), GOLDEN / f"{name}.wgsl"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    recorded = path.read_text()
    diff = "".join(difflib.unified_diff(recorded.splitlines(True), text.splitlines(True), path.name, "emitted"))
    assert text == recorded, f"run pytest --update-golden if this is meant:\n{diff}"


@pytest.mark.parametrize(("name", "build", "caps"), CASES, ids=[name for name, _, _ in CASES])
def test_equal_kernels_have_equal_text(name: str, build: Callable[[], Kernel], caps: Caps) -> None:
    assert emit(build(), caps) == emit(build(), caps)


def test_a_missing_capability_is_named_with_its_operation_and_types() -> None:
    with pytest.raises(
        Unsupported, match=r"wgpu: subgroup_shuffle\(i32, i32\) in kernel tile_max, .*: this device lacks subgroup"
    ):
        emit(tile_max(), PLAIN)


def test_an_operation_without_a_rule_is_named() -> None:
    b = KernelBuilder("mean", 8)
    x = b.buffer("x", F32, WRITE)
    x[b.thread_id()] = b.group_sum(x[b.thread_id()])
    with pytest.raises(Unsupported, match=r"group_sum\(f32\).*no rule"):
        emit(b.finish(), FULL)


def test_limits_of_the_device_are_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="32 threads a group, the device has 16"):
        emit(scaled_sum(), Caps(max_group_size=16))
    with pytest.raises(Unsupported, match="2 buffers, the device binds 1"):
        emit(scaled_sum(), Caps(max_bindings=1))


def nested(outer: int, inner: int) -> Kernel:
    b = KernelBuilder("nested", 8)
    y = b.buffer("y", I32, WRITE)
    with b.range(outer), b.range(0, inner, 3):
        y[0] = 1
    with b.range(10):
        y[1] = 1
    return b.finish()


def test_rounds_are_counted_over_all_loops() -> None:
    assert loop_rounds(nested(100, 30)) == 100 * (1 + 10) + 10
    assert loop_rounds(sweep()) is None
    assert loop_rounds(tile_max()) is None


def test_loops_are_watched_where_they_may_be_cut_short() -> None:
    assert not binds_fault(nested(100, 30), PLAIN)
    assert binds_fault(nested(60_000, 3), PLAIN)
    assert not binds_fault(nested(60_000, 3), FULL)
    assert binds_fault(sweep(), PLAIN)


def test_every_routine_is_found_with_what_it_calls() -> None:
    for name, routine in ROUTINES.items():
        text = routine_text([name])
        for called in (name, *routine.needs):
            assert f"fn {called}(" in text
        assert text.count("fn poot_") == text.count("\nfn poot_") + 1
    order = list(ROUTINES)
    for name, routine in ROUTINES.items():
        assert all(order.index(called) < order.index(name) for called in routine.needs), name


def test_emitting_loads_no_native_library() -> None:
    code = (
        "import sys, poot_wgpu_device.driver, poot_wgpu_device.emit, poot_wgpu_device.rules, poot_wgpu_device.caps\n"
        "sys.exit(any(name == 'wgpu' or name.startswith('wgpu.') or name == '_cffi_backend' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""The emitter alone: no adapter. Golden files are rewritten by `pytest --update-golden` and read as diffs."""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from poot_eval.conformance.sample_kernels import nested, scaled_sum, silu, sweep, tile_max
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import KERNEL_OPS, Access, Kernel
from poot_executor.kernel.routines import ROUTINES
from poot_executor.known_answers import PACK_HALF, UNBOUNDED_LOOPS, UNPACK_HALF
from poot_executor.loop_watch import binds_fault
from poot_wgpu_device.emit import emit
from poot_wgpu_device.rules import RULES

GOLDEN = Path(__file__).parent / "golden"

F32, I32, U32, F16 = DType.F32, DType.I32, DType.U32, DType.F16
READ, WRITE = Access.READ, Access.READ_WRITE

FULL = Caps(
    max_group_size=1024,
    subgroup_width=8,
    features=frozenset({"subgroup", "dot4", PACK_HALF, UNPACK_HALF, UNBOUNDED_LOOPS}),
)
PLAIN = Caps()


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
    with pytest.raises(Unsupported, match="2 buffers, the device has 1"):
        emit(scaled_sum(), Caps(max_bindings=1))


def test_loops_are_watched_where_they_may_be_cut_short() -> None:
    assert not binds_fault(nested(100, 30), PLAIN)
    assert binds_fault(nested(60_000, 3), PLAIN)
    assert not binds_fault(nested(60_000, 3), FULL)
    assert binds_fault(sweep(), PLAIN)


def test_the_emitter_covers_the_table() -> None:
    """By a rule, or by a routine that takes its place before."""
    wanted = {name for name, row in KERNEL_OPS.items() if row.needs is None or row.needs in FULL.features}
    lowered = {"group_sum", "group_max", "group_min", "yield"}
    assert set(RULES) >= wanted - lowered - set(ROUTINES)


def test_emitting_loads_no_native_library() -> None:
    code = (
        "import sys, poot_wgpu_device.driver, poot_wgpu_device.emit, poot_wgpu_device.rules, poot_wgpu_device.caps\n"
        "sys.exit(any(name == 'wgpu' or name.startswith('wgpu.') or name == '_cffi_backend' for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

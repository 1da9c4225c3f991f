"""The text of kernels on this processor: what the interpreter of kernel IR gives, bit for bit, and how grids end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.conformance.sample_kernels import scaled_sum, sweep, tile_max
from poot_eval.hip_host.library import HostKernel, Outcome, build, entry_of, host_clang
from poot_eval.kernel_ir import run_kernel
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import KernelError, Unsupported
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.fused_routines import ERRORS
from poot_executor.kernel.ir import Access, Block, Kernel, KType, Op, Param, Val
from poot_executor.known_fragments import fragment_case
from poot_rocm_device.architecture import ARCHITECTURES, Architecture, architecture_named
from poot_rocm_device.caps import caps_of, products
from poot_rocm_device.emit import emit
from poot_rocm_device.kernarg import Kernarg

F32, I32, U32 = DType.F32, DType.I32, DType.U32
READ, WRITE = Access.READ, Access.READ_WRITE
WAVES = [architecture_named("gfx1100"), architecture_named("gfx90a")]

Run = Callable[..., tuple[Outcome, list[NDArray[Any]], int]]

pytestmark = pytest.mark.parametrize("architecture", WAVES, ids=lambda a: a.name)


@pytest.fixture
def run(architecture: Architecture, tmp_path: Path) -> Run:
    """`run(kernel, arrays, groups)`: how the grid ended, the arrays afterwards, and the fault word."""

    def ran(
        kernel: Kernel, arrays: Sequence[NDArray[Any]], groups: int = 1, *, caps: Caps | None = None
    ) -> tuple[Outcome, list[NDArray[Any]], int]:
        text = emit(kernel, caps or caps_of(architecture))
        try:
            library = HostKernel(build(text, entry_of(text), tmp_path))
        except Unsupported as error:
            pytest.skip(str(error))
        copies, fault = [array.copy() for array in arrays], np.zeros(1, np.uint32)
        layout = Kernarg(len(copies), kernel.checks)
        addresses, counts = [array.ctypes.data for array in copies], [array.size for array in copies]
        kernarg = layout.pack(addresses, counts, fault.ctypes.data if kernel.checks else None)
        return library.run(kernarg, (groups, 1, 1), kernel.group_size), copies, int(fault[0])

    return ran


def same(run: Run, kernel: Kernel, arrays: Sequence[NDArray[Any]], groups: int, architecture: Architecture) -> None:
    """Run and interpreted, every word is the same."""
    expected = [array.copy() for array in arrays]
    assert run_kernel(kernel, expected, (groups, 1, 1), subgroup_width=architecture.wave, strict=True) == []
    outcome, got, fault = run(kernel, arrays, groups)
    assert (outcome, fault) == (Outcome.DONE, 0)
    for left, right in zip(got, expected, strict=True):
        np.testing.assert_array_equal(left.view(np.uint32), right.view(np.uint32))


def numbers(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    return rng.standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("name", ["scaled_sum", "tile_max", "sweep"])
def test_kernels_give_what_the_interpreter_gives(
    run: Run, rng: np.random.Generator, architecture: Architecture, name: str
) -> None:
    kernel, arrays = {
        "scaled_sum": (scaled_sum(), [numbers(rng, 2 * 32 * 64), numbers(rng, 64)]),
        "tile_max": (tile_max(), [rng.integers(-99, 99, 128, dtype=np.int32), np.full(1, -100, np.int32)]),
        "sweep": (sweep(), [np.array([70], np.int32), np.zeros(8, np.int32)]),
    }[name]
    same(run, kernel, arrays, 1 if name == "sweep" else 2, architecture)


def test_elementary_functions_are_within_what_the_caps_state(run: Run, rng: np.random.Generator) -> None:
    x = rng.uniform(0.01, 60, 1024).astype(np.float32)
    exact = {
        "exp": np.exp,
        "log": np.log,
        "sqrt": np.sqrt,
        "rsqrt": lambda v: 1 / np.sqrt(v),
        "sin": np.sin,
        "tanh": np.tanh,
    }
    b = KernelBuilder("elementary", 64)
    source, i = b.buffer("x", F32, READ), b.group_id() * 64 + b.thread_id()
    for name in exact:
        b.buffer(name, F32, WRITE)[i] = b.emit(name, source[i])
    _, (_, *got), _ = run(b.finish(), [x, *(np.zeros_like(x) for _ in exact)], 16)
    for (name, rule), found in zip(exact.items(), got, strict=True):
        wide = rule(x.astype(np.float64))
        assert (np.abs(found - wide) <= ERRORS[name] * np.spacing(np.abs(wide.astype(np.float32)))).all(), name


@pytest.mark.parametrize("threads", [8, 20, 32, 64, 96, 128])
def test_lanes_of_whole_and_partial_waves(
    run: Run, rng: np.random.Generator, architecture: Architecture, threads: int
) -> None:
    """Integers, whose sums are the same in every order: with shuffles, and within a branch that some groups take."""
    b = KernelBuilder(f"lanes_{threads}", threads)
    x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
    t = b.thread_id()
    value = x[b.group_id() * threads + t]
    total = b.var(b.subgroup_sum(value) * 3 + b.subgroup_max(value) - b.subgroup_min(value))
    for mask in (1, 4, 7):
        if (min(threads, architecture.wave) & (min(threads, architecture.wave) - 1)) == 0:
            total.set(total.get() + b.subgroup_shuffle_xor(value, mask))
    total.set(total.get() + b.subgroup_shuffle(value, 0) + b.subgroup_shuffle(value, t & 3))
    with b.if_(b.group_id() == 1):
        total.set(total.get() * 5 + b.subgroup_sum(t))
    y[b.group_id() * threads + t] = total.get()
    given = rng.integers(-1000, 1000, 3 * threads, dtype=np.int32)
    if threads % architecture.wave and threads > architecture.wave:
        # The last wave has lanes 0 to 3 as well: what is asked of them is there.
        assert threads % architecture.wave >= 4
    same(run, b.finish(), [given, np.zeros_like(given)], 3, architecture)


def test_sums_of_floats_are_taken_in_pairs(run: Run, rng: np.random.Generator, architecture: Architecture) -> None:
    """The order of the device's own steps: equal for every lane, and known."""
    b = KernelBuilder("pairs", 64)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    y[b.thread_id()] = b.subgroup_sum(x[b.thread_id()])
    given = numbers(rng, 64)
    _, (_, got), _ = run(b.finish(), [given, np.zeros_like(given)])
    expected = given.reshape(-1, architecture.wave)
    while expected.shape[1] > 1:
        expected = expected[:, ::2] + expected[:, 1::2]
    np.testing.assert_array_equal(got, np.repeat(expected, architecture.wave))


def test_products_of_matrices_are_right(run: Run, architecture: Architecture) -> None:
    """What a device is asked when it opens, of every product in waves of that width: factors in lines of both kinds,
    sums scaled and stored."""
    having = {shape: other for other in ARCHITECTURES if other.wave == architecture.wave for shape in products(other)}
    assert len(having) == (4 if architecture.wave == 64 else 3)
    for shape, other in having.items():
        case, caps = fragment_case(shape, other.wave), caps_of(other, fragments=products(other))
        answer = np.zeros(case.given.size * case.per_thread, np.uint32)
        groups = case.given.size // case.kernel.group_size
        outcome, (given, got), _ = run(case.kernel, [case.given, answer], groups, caps=caps)
        assert outcome is Outcome.DONE and case.wrong(given, got) is None


def test_accesses_outside_a_buffer_touch_the_nearest_element_or_nothing(run: Run) -> None:
    b = KernelBuilder("outside", 32)
    x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
    t = b.thread_id()
    y[t - 8] = x[t * 2] + y.atomic("add", t + 100, 7)
    y.store((t + 20) * 4, b.vector(t, t, t, t))
    outcome, (_, got), _ = run(b.finish(), [np.arange(10, dtype=np.int32), np.full(24, -1, np.int32)])
    assert outcome is Outcome.DONE
    np.testing.assert_array_equal(got, [9] * 24)


def test_shared_memory_holds_nothing_of_the_group_before(run: Run) -> None:
    b = KernelBuilder("stale", 32)
    y = b.buffer("y", U32, WRITE)
    tile = b.shared("tile", U32, 32)
    y[b.group_id() * 32 + b.thread_id()] = tile[b.thread_id()]
    tile[b.thread_id()] = 5
    _, (got,), _ = run(b.finish(), [np.zeros(64, np.uint32)], 2)
    assert 5 not in got


def test_a_failed_check_ends_the_grid_and_names_itself(run: Run) -> None:
    for together in (False, True):
        b = KernelBuilder("checked", 32)
        x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
        if together:
            b.barrier()
        b.check(x[b.thread_id()] < 9, 41)
        y[b.group_id() * 32 + b.thread_id()] = 1
        kernel, given = b.finish(), np.zeros(32, np.int32)
        given[20] = 9
        outcome, (_, got), fault = run(kernel, [given, np.zeros(64, np.int32)], 2)
        assert (outcome, fault) == (Outcome.TRAPPED, kernel.identity << 8 | 41)
        assert not got[32:].any(), "a later group ran"
        assert run(kernel, [np.zeros(32, np.int32), np.zeros(64, np.int32)], 2)[0] is Outcome.DONE


def diverging(kind: str) -> Kernel:
    """Half of the threads come to a barrier, or a wave's sum, that the others never reach."""

    def value(dtype: DType, kind: str, *operands: Val, **attrs: Any) -> Val:
        result = Val(KType(dtype))
        target.append(Op(kind, operands, (result,), attrs))
        return result

    target: list[Op] = []
    outer = target
    thread, limit = value(I32, "thread_id"), value(I32, "const", value=16)
    some = value(DType.BOOL, "lt", thread, limit)
    target = []
    if kind == "barrier":
        target.append(Op("barrier"))
    else:
        total = value(I32, kind, thread)
        target.append(Op("store", (thread, total), (), {"buffer": 0}))
    target.append(Op("yield"))
    blocks = (Block((), tuple(target)), Block((), (Op("yield"),)))
    outer.append(Op("if", (some,), (), {}, blocks))
    return Kernel("diverging", (Param("y", I32, WRITE),), (), 32, Block((), tuple(outer)))


@pytest.mark.parametrize("kind", ["barrier", "subgroup_sum"])
def test_threads_that_do_not_come_together_are_noticed(run: Run, kind: str) -> None:
    assert run(diverging(kind), [np.zeros(32, np.int32)])[0] is Outcome.DIVERGED


def test_a_grid_is_stopped_from_outside(architecture: Architecture, tmp_path: Path) -> None:
    b = KernelBuilder("endless", 32)
    y = b.buffer("y", I32, WRITE)
    with b.while_(lambda: y[0] == 0):
        y[1] = y[1] + 1
    kernel = b.finish()
    text = emit(kernel, caps_of(architecture))
    try:
        path = build(text, entry_of(text), tmp_path)
    except Unsupported as error:
        pytest.skip(str(error))
    library, array, outcomes = HostKernel(path), np.zeros(2, np.int32), list[Outcome]()
    kernarg = Kernarg(1, checks=False).pack([array.ctypes.data], [2], None)
    assert library.run(kernarg, (1, 1, 1), 64) is Outcome.REFUSED
    thread = threading.Thread(target=lambda: outcomes.append(library.run(kernarg, (1, 1, 1), 32)))
    thread.start()
    ctypes.CDLL(str(path)).poot_stop()
    thread.join(60)
    assert outcomes == [Outcome.STOPPED]


def test_a_text_that_is_none_is_refused(architecture: Architecture, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="a text without a kernel"):
        entry_of(f"// {architecture.name}")
    try:
        host_clang()
    except Unsupported as error:
        pytest.skip(str(error))
    with pytest.raises(KernelError, match=r"kernel nothing was not compiled for this processor:(.|\n)*error"):
        build("", "nothing", tmp_path)

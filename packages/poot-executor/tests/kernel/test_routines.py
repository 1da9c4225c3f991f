"""Routines of elementary functions and half conversions, in the interpreter against float64 and numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.kernel_ir import run_kernel
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel.loop_rounds import loop_rounds
from poot_executor.kernel.passes.expand import expand_routines
from poot_executor.kernel.routines import ROUTINES
from poot_executor.kernel.verify import verify

COUNT, GROUP = 1 << 13, 64
INF, NAN = math.inf, math.nan
ERF = np.vectorize(math.erf, otypes=[np.float64])

Array = NDArray[Any]
Source = Callable[[np.random.Generator], Array]


def kernel_of(kind: str, arity: int, width: int) -> Kernel:
    b = KernelBuilder(f"routine_{kind}", GROUP)
    given = DType.U32 if kind == "half_to_float" else DType.F32
    sources = [b.buffer(f"x{k}", given, Access.READ) for k in range(arity)]
    target = b.buffer("y", DType.U32 if kind == "float_to_half" else DType.F32, Access.READ_WRITE)
    i = (b.group_id() * GROUP + b.thread_id()) * width
    target.store(i, b.emit(kind, *(source.load(i, width) for source in sources)))
    kernel = expand_routines(b.finish(), ROUTINES)
    verify(kernel)
    assert all(op.kind not in ROUTINES for op in kernel.body.walk())
    return kernel


def run(kind: str, *given: Array, width: int = 1) -> Array:
    out = np.zeros(COUNT, np.uint32 if kind == "float_to_half" else np.float32)
    faults = run_kernel(kernel_of(kind, len(given), width), [*given, out], (COUNT // GROUP // width, 1, 1))
    assert not faults
    return out


def uniform(low: float, high: float) -> Source:
    return lambda rng: rng.uniform(low, high, COUNT).astype(np.float32)


def scaled(low: float, high: float) -> Source:
    """Magnitudes from `low` to `high`, each power of two as often as any other."""
    return lambda rng: np.exp2(rng.uniform(math.log2(low), math.log2(high), COUNT)).astype(np.float32)


def signed(low: float, high: float) -> Source:
    return lambda rng: scaled(low, high)(rng) * rng.choice(np.array([-1, 1], np.float32), COUNT)


RANGES = [
    ("exp", (uniform(-87, 88.7),), np.exp, 1.1),
    ("log", (scaled(1e-44, 3e38),), np.log, 0.9),
    ("log", (uniform(0.5, 2),), np.log, 1.0),
    ("sin", (signed(1e-6, 1e5),), np.sin, 3.0),
    ("cos", (signed(1e-6, 1e5),), np.cos, 3.0),
    ("tanh", (signed(1e-6, 12),), np.tanh, 1.5),
    ("erf", (signed(1e-6, 5),), ERF, 1.2),
    ("pow", (scaled(1e-3, 1e3), uniform(-12, 12)), np.power, 1.3),
    ("pow", (uniform(0.9, 1.1), uniform(-800, 800)), np.power, 1.3),
]


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("kind", "sources", "exact", "bound"), RANGES, ids=[f"{k}-{row[0]}" for k, row in enumerate(RANGES)]
)
def test_errors_in_units_of_the_last_place(
    rng: np.random.Generator, kind: str, sources: Any, exact: Any, bound: float, width: int
) -> None:
    arguments = [source(rng) for source in sources]
    got = run(kind, *arguments, width=width)
    with np.errstate(over="ignore"):
        wanted = exact(*(a.astype(np.float64) for a in arguments))
        spacing = np.spacing(np.maximum(np.abs(wanted.astype(np.float32)), np.finfo(np.float32).tiny))
    error = np.abs(got - wanted) / spacing
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{kind}{[a[worst] for a in arguments]} is off by {error[worst]:.2f}"


@pytest.mark.parametrize("width", [1, 2])
def test_every_half_becomes_its_float(width: int) -> None:
    for first in range(0, 65536, COUNT):
        halves = np.arange(first, first + COUNT, dtype=np.uint32)
        got, expected = run("half_to_float", halves, width=width), halves.astype(np.uint16).view(np.float16)
        same = got.view(np.uint32) == expected.astype(np.float32).view(np.uint32)
        assert (same | (np.isnan(got) & np.isnan(expected))).all()


def test_floats_become_the_nearest_half(rng: np.random.Generator) -> None:
    """Random ones, and the ties between neighbouring halves with the floats beside them."""
    halves = rng.integers(0, 0x7C00, COUNT).astype(np.uint16)
    middle = (halves.view(np.float16).astype(np.float64) + (halves + 1).astype(np.uint16).view(np.float16)) / 2
    ties = middle.astype(np.float32).view(np.uint32) + rng.integers(-1, 2, COUNT).astype(np.uint32)
    for given in (signed(1e-9, 1e6)(rng), ties.view(np.float32), -ties.view(np.float32)):
        finite = np.where(np.isfinite(given), given, np.float32(1))
        with np.errstate(over="ignore"):
            expected = finite.astype(np.float16).view(np.uint16)
        np.testing.assert_array_equal(run("float_to_half", finite), expected)
    edges = np.resize(np.array([INF, -INF, 65520, 65519.99, 1e38, -0.0], np.float32), COUNT)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(run("float_to_half", edges), edges.astype(np.float16).view(np.uint16))
    assert (run("float_to_half", np.full(COUNT, NAN, np.float32)) & 0x7FFF > 0x7C00).all()


EDGES: dict[str, list[tuple[float, ...]]] = {
    "exp": [(0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (NAN, NAN), (100, INF), (-200, 0), (1e30, INF), (-1e30, 0)],
    "log": [(1, 0), (0, -INF), (-0.0, -INF), (INF, INF), (-1, NAN), (NAN, NAN), (-INF, NAN)],
    "tanh": [(0, 0), (100, 1), (-100, -1), (INF, 1), (-INF, -1), (NAN, NAN), (1e-30, 1e-30)],
    "erf": [(0, 0), (10, 1), (-10, -1), (INF, 1), (-INF, -1), (NAN, NAN)],
    "sin": [(0, 0), (1e-30, 1e-30)],
    "cos": [(0, 1)],
    "pow": [
        (0, 0, 1), (0, 2, 0), (0, -2, INF), (1, 1e30, 1), (2, 0, 1), (2, 10, 1024), (2, 128, INF), (2, -160, 0),
        (INF, 2, INF), (INF, -2, 0), (NAN, 2, NAN), (2, NAN, NAN), (0, NAN, NAN), (2, 1e30, INF), (2, -1e30, 0),
        (0.5, 1e30, 0), (-2, 3, NAN), (INF, 0, 1), (4, 0.5, 2), (1e-20, 2, 1e-40), (1e38, 1, 1e38),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", EDGES)
def test_edges(kind: str) -> None:
    rows = np.resize(np.array(EDGES[kind], np.float32), (COUNT, len(EDGES[kind][0])))
    columns = [np.ascontiguousarray(column) for column in rows.T]
    count = len(EDGES[kind])
    got = run(kind, *columns[:-1])[:count]
    np.testing.assert_allclose(got, columns[-1][:count], rtol=4e-7, atol=0, err_msg=kind)


def test_a_kernel_without_such_operations_stays_as_it_is() -> None:
    b = KernelBuilder("plain", 8)
    y = b.buffer("y", DType.F32, Access.READ_WRITE)
    y[b.thread_id()] = 1.0
    kernel = b.finish()
    assert expand_routines(kernel, ROUTINES) is kernel


def test_operations_inside_loops_and_branches_are_expanded_in_place() -> None:
    b = KernelBuilder("nested", 8)
    y = b.buffer("y", DType.F32, Access.READ_WRITE)
    total = b.var(0.5)
    with b.range(3), b.if_(total.get() < 10.0):
        total.set(b.exp(total.get()))
    y[b.thread_id()] = total.get()
    kernel = expand_routines(b.finish(), {"exp": ROUTINES["exp"]})
    verify(kernel)
    assert [op.kind for op in kernel.body.walk() if op.kind in ("for", "if", "exp")] == ["for", "if"]
    out = np.zeros(8, np.float32)
    run_kernel(kernel, [out], (1, 1, 1))
    assert out[0] == pytest.approx(math.exp(math.exp(math.exp(0.5))), rel=1e-5)


def test_rounds_are_counted_over_all_loops() -> None:
    def nested(outer: int, inner: int) -> Kernel:
        b = KernelBuilder("rounds", 8)
        y = b.buffer("y", DType.I32, Access.READ_WRITE)
        with b.range(outer), b.range(0, inner, 3):
            y[0] = 1
        with b.range(10):
            y[1] = 1
        return b.finish()

    assert loop_rounds(nested(100, 30)) == 100 * (1 + 10) + 10
    assert loop_rounds(nested(0, 30)) == 10
    b = KernelBuilder("unknown", 8)
    y = b.buffer("y", DType.I32, Access.READ_WRITE)
    with b.range(y[0]):
        y[1] = 1
    assert loop_rounds(b.finish()) is None

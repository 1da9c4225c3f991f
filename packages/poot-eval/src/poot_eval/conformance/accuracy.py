"""Errors of arithmetic in units in the last place, against float64: what the caps state is an upper bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.conformance.inputs import Rng
from poot_eval.conformance.launching import written
from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel_device import KernelDevice

COUNT = 1 << 18


GROUP = 64

Floats = NDArray[np.float32]


def kernel_of(kind: str, arity: int) -> Kernel:
    """y = the operation of so many sources."""
    b = KernelBuilder(f"accuracy_{kind}", GROUP)
    sources = [b.buffer(f"x{k}", DType.F32, Access.READ) for k in range(arity)]
    target = b.buffer("y", DType.F32, Access.READ_WRITE)
    i = b.group_id() * GROUP + b.thread_id()
    target[i] = b.emit(kind, *(source[i] for source in sources))
    return b.finish()


def uniform(low: float, high: float) -> Callable[[np.random.Generator], Floats]:
    """Numbers from `low` to `high`."""
    return lambda rng: rng.uniform(low, high, COUNT).astype(np.float32)


def scaled(low: float, high: float) -> Callable[[np.random.Generator], Floats]:
    """Magnitudes from `low` to `high`, each power of two as often as any other."""
    return lambda rng: np.exp2(rng.uniform(math.log2(low), math.log2(high), COUNT)).astype(np.float32)


def signed(low: float, high: float) -> Callable[[np.random.Generator], Floats]:
    """The same of both signs."""
    return lambda rng: scaled(low, high)(rng) * rng.choice(np.array([-1, 1], np.float32), COUNT)


def near_quadrants(_: np.random.Generator) -> Floats:
    """The multiples of π/2 up to 100,000 as far as float32 has them: what is left of them is where reduction fails."""
    return np.resize(np.arange(1, 63_662) * (math.pi / 2), COUNT).astype(np.float32)


ERF = np.vectorize(math.erf, otypes=[np.float64])


RANGES = [
    ("div", (signed(1e-18, 1e18), signed(1e-18, 1e18)), np.divide),
    ("sqrt", (scaled(1.2e-38, 3e38),), np.sqrt),
    ("rsqrt", (scaled(1.2e-38, 3e38),), lambda x: 1 / np.sqrt(x)),
    ("exp", (uniform(-1, 1),), np.exp),
    ("exp", (uniform(-87, 88.7),), np.exp),
    ("log", (scaled(1.2e-38, 3e38),), np.log),
    ("log", (uniform(0.5, 2),), np.log),
    ("sin", (uniform(-7, 7),), np.sin),
    ("sin", (signed(1e-6, 1e5),), np.sin),
    ("sin", (near_quadrants,), np.sin),
    ("cos", (uniform(-7, 7),), np.cos),
    ("cos", (signed(1e-6, 1e5),), np.cos),
    ("cos", (near_quadrants,), np.cos),
    ("tanh", (signed(1e-6, 12),), np.tanh),
    ("erf", (signed(1e-6, 5),), ERF),
    ("pow", (scaled(1e-3, 1e3), uniform(-12, 12)), np.power),
    ("pow", (uniform(0.9, 1.1), uniform(-800, 800)), np.power),
    ("pow", (scaled(1e-30, 1e30), uniform(-1.25, 1.25)), np.power),
]


def units(got: Floats, exact: NDArray[np.float64]) -> NDArray[np.float64]:
    """|got − exact| in the spacing of float32 at the exact value."""
    rounded = exact.astype(np.float32)
    spacing = np.spacing(np.maximum(np.abs(rounded), np.finfo(np.float32).tiny)).astype(np.float64)
    return np.abs(got.astype(np.float64) - exact) / spacing


INF, NAN = math.inf, math.nan

EDGES: dict[str, list[tuple[float, ...]]] = {
    "exp": [(0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (NAN, NAN), (100, INF), (-200, 0), (1e30, INF), (-1e30, 0)],
    "log": [(1, 0), (0, -INF), (INF, INF), (-1, NAN), (NAN, NAN), (-INF, NAN), (-NAN, NAN)],
    "tanh": [(0, 0), (100, 1), (-100, -1), (INF, 1), (-INF, -1), (NAN, NAN), (1e-30, 1e-30)],
    "erf": [(0, 0), (10, 1), (-10, -1), (INF, 1), (-INF, -1), (NAN, NAN)],
    "pow": [
        (0, 0, 1),
        (0, 2, 0),
        (0, -2, INF),
        (1, 1e30, 1),
        (2, 0, 1),
        (2, 10, 1024),
        (2, 128, INF),
        (2, -160, 0),
        (INF, 2, INF),
        (INF, -2, 0),
        (NAN, 2, NAN),
        (2, NAN, NAN),
        (2, 1e30, INF),
        (2, -1e30, 0),
        (0.5, 1e30, 0),
        (-2, 3, NAN),
        (INF, 0, 1),
        (4, 0.5, 2),
        (9, -0.5, 1 / 3),
        (1e-20, 2, 1e-40),
        (1e38, 1, 1e38),
    ],
    "sin": [(0, 0), (1e-30, 1e-30)],
    "cos": [(0, 1)],
    "sqrt": [(0, 0), (4, 2), (INF, INF), (-1, NAN)],
    "rsqrt": [(4, 0.5), (INF, 0)],
    "div": [(1, 0, INF), (-1, 0, -INF), (0, 0, NAN), (1, INF, 0), (INF, INF, NAN)],
    "floor": [(-0.5, -1), (2.5, 2), (-3, -3), (1e30, 1e30), (INF, INF)],
    "round": [
        (0.5, 0),
        (1.5, 2),
        (2.5, 2),
        (-0.5, 0),
        (-1.5, -2),
        (-2.5, -2),
        (0.49999997, 0),
        (1e30, 1e30),
        (8388609, 8388609),
    ],
}


class AccuracyConformance:
    """Stated errors, edges, denormals and contraction."""

    @pytest.mark.parametrize(
        ("kind", "sources", "exact"), RANGES, ids=[f"{place}-{kind}" for place, (kind, _, _) in enumerate(RANGES)]
    )
    def test_error_is_within_what_the_caps_state(
        self, device: KernelDevice, rng: Rng, kind: str, sources: Any, exact: Any
    ) -> None:
        """Of many random arguments the worst."""
        arguments = [source(rng) for source in sources]
        (got,) = written(
            device, kernel_of(kind, len(arguments)), [*arguments, np.zeros(COUNT, np.float32)], COUNT // GROUP
        )
        with np.errstate(over="ignore"):
            error = units(got, exact(*(a.astype(np.float64) for a in arguments)))
        worst = int(np.argmax(error))
        where = [float(a[worst]) for a in arguments]
        print(f"{kind}: {error[worst]:.3f} ULP at {where}")  # noqa: T201 (pytest shows it where a test fails)
        assert error[worst] <= device.target.caps.errors[kind], (
            f"{kind}{where} = {got[worst]}, off by {error[worst]:.2f} ULP"
        )

    INF, NAN = math.inf, math.nan

    @pytest.mark.parametrize("kind", EDGES)
    def test_edges(self, device: KernelDevice, kind: str) -> None:
        """Zeros, infinities, NaN, overflow and ties."""
        rows = np.array(EDGES[kind], np.float64)
        padded = np.resize(rows, (GROUP, rows.shape[1])).astype(np.float32)
        columns = [np.ascontiguousarray(column) for column in padded.T]
        (got,) = written(device, kernel_of(kind, len(columns) - 1), [*columns[:-1], np.zeros(GROUP, np.float32)], 1)
        got, expected = got[: len(rows)], columns[-1][: len(rows)]
        if device.target.caps.flushes_denormals:
            expected = np.where((np.abs(expected) < np.finfo(np.float32).tiny) & (got == 0), got, expected)
        np.testing.assert_allclose(got, expected, rtol=4e-7, atol=0, err_msg=kind)

    def test_denormals_and_contraction_are_as_stated(self, device: KernelDevice, rng: Rng) -> None:
        """llvmpipe keeps denormals and rounds a product before it adds; where caps promise either, it must hold."""
        caps = device.target.caps
        tiny = np.full(GROUP, 1e-40, np.float32)
        (doubled,) = written(device, kernel_of("add", 2), [tiny, tiny, np.zeros(GROUP, np.float32)], 1)
        if not caps.flushes_denormals:
            np.testing.assert_array_equal(doubled, tiny + tiny)
        b = KernelBuilder("contraction", GROUP)
        a, c, d = (b.buffer(name, DType.F32, Access.READ) for name in "acd")
        target = b.buffer("y", DType.F32, Access.READ_WRITE)
        i = b.group_id() * GROUP + b.thread_id()
        target[i] = a[i] * c[i] + d[i]
        x, y, z = (rng.standard_normal(COUNT).astype(np.float32) for _ in range(3))
        (sums,) = written(device, b.finish(), [x, y, z, np.zeros(COUNT, np.float32)], COUNT // GROUP)
        if not caps.contracts:
            np.testing.assert_array_equal(sums, x * y + z)

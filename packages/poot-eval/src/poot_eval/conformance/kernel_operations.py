"""Every operation of the kernel table against numpy, over the extremes of every dtype."""

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
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import KERNEL_OPS, Access
from poot_executor.kernel_device import KernelDevice

F32, I32, U32, BOOL = DType.F32, DType.I32, DType.U32, DType.BOOL
N, GROUP = 1024, 64

Array = NDArray[Any]
Case = tuple[Callable[[KernelBuilder, list[Handle]], Handle], list[Array], Callable[..., Array]]


LOWERED = {"group_sum", "group_max", "group_min"}


STRUCTURE = {"yield", "const", "for", "if", "while", "load", "store"}
"""What every other case, or test_control, exercises."""


def ints(rng: np.random.Generator, dtype: Any = np.int32) -> Array:
    """All magnitudes, with the extremes among them."""
    wide = rng.integers(0, 1 << 32, N, dtype=np.uint64) >> rng.integers(0, 32, N).astype(np.uint64)
    words = wide.astype(np.uint32) ^ np.where(rng.random(N) < 0.5, np.uint32(0xFFFFFFFF), np.uint32(0))
    words[:6] = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80000001]
    return rng.permutation(words).view(dtype)


def floats(rng: np.random.Generator) -> Array:
    """Numbers of both signs and many magnitudes."""
    return (rng.standard_normal(N) * np.exp2(rng.integers(-20, 20, N))).astype(np.float32)


def f64(rule: Callable[..., Any]) -> Callable[..., Array]:
    """The rule in float64, rounded once."""
    return lambda *a: rule(*(x.astype(np.float64) for x in a)).astype(np.float32)


def emit(kind: str, **attrs: Any) -> Callable[[KernelBuilder, list[Handle]], Handle]:
    """The operation over all operands."""
    return lambda b, x: b.emit(kind, *x, **attrs)


def to(kind: str, dtype: DType) -> Callable[[KernelBuilder, list[Handle]], Handle]:
    """The operation to a dtype."""
    return lambda b, x: b.emit(kind, *x, dtype=dtype)


def truncated(a: Array, b: Array) -> Array:
    """Division toward zero."""
    wide = a.astype(np.int64), b.astype(np.int64)
    quotient = np.abs(wide[0]) // np.abs(wide[1]) * np.sign(wide[0]) * np.sign(wide[1])
    return quotient.astype(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    """Its remainder, with the sign of the dividend."""
    return np.fmod(a.astype(np.int64), b.astype(np.int64)).astype(a.dtype)


def cases(rng: np.random.Generator) -> dict[str, list[Case]]:
    """By operation: how a kernel has it, its operands, and what numpy says."""
    f, g, h = floats(rng), floats(rng), floats(rng)
    i, j, u, v = ints(rng), ints(rng), ints(rng, np.uint32), ints(rng, np.uint32)
    divisor_i = np.where((j == 0) | (j == -1), np.int32(7), j).astype(np.int32)
    divisor_u = np.maximum(v, np.uint32(1))
    small, count = rng.uniform(-3, 3, N).astype(np.float32), rng.integers(0, 64, N).astype(np.int32)
    positive, halves = np.abs(f) + np.float32(1e-3), rng.integers(0, 65536, N).astype(np.uint32)
    flag = (i & 1).astype(np.int32)
    lane = np.arange(N)
    table: dict[str, list[Case]] = {
        "neg": [(emit("neg"), [a], lambda a: (0 - a) if a.dtype.kind in "iu" else -a) for a in (f, i, u)],
        "abs": [(emit("abs"), [a], np.abs) for a in (f, i, u)],
        "not": [(emit("not"), [a], np.invert) for a in (i, u)]
        + [(lambda b, x: b.cast(b.emit("not", x[0] > 0), I32), [i], lambda a: (a <= 0).astype(np.int32))],
        "mulhi": [(emit("mulhi"), [u, v], lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32))],
        "fma": [(emit("fma"), [f, g, h], f64(lambda a, b, c: a * b + c))],
        "select": [
            (
                lambda b, x: b.emit("select", x[0] < x[1], x[2], x[3]),
                [i, j, f, g],
                lambda a, b, c, d: np.where(a < b, c, d),
            )
        ],
        "cast": [
            (to("cast", F32), [i], lambda a: a.astype(np.float32)),
            (to("cast", F32), [u], lambda a: a.astype(np.float32)),
            (to("cast", I32), [small * 1000], lambda a: np.trunc(a).astype(np.int32)),
            (to("cast", U32), [np.abs(small) * 1e8], lambda a: np.trunc(a).astype(np.uint32)),
            (to("cast", U32), [i], lambda a: a.astype(np.uint32)),
            (to("cast", I32), [u], lambda a: a.astype(np.int32)),
            (lambda b, x: b.cast(b.cast(x[0], BOOL), F32), [flag], lambda a: a.astype(np.float32)),
            (
                lambda b, x: b.cast(b.cast(x[0], BOOL), U32),
                [np.where(flag, f, 0).astype(np.float32)],
                lambda a: (a != 0).astype(np.uint32),
            ),
        ],
        "bitcast": [
            (to("bitcast", U32), [f], lambda a: a.view(np.uint32)),
            (to("bitcast", F32), [f.view(np.int32)], lambda a: a.view(np.float32)),
            (to("bitcast", I32), [u], lambda a: a.view(np.int32)),
        ],
        "half_to_float": [
            (emit("half_to_float"), [halves], lambda a: a.astype(np.uint16).view(np.float16).astype(np.float32))
        ],
        "float_to_half": [
            (emit("float_to_half"), [f], lambda a: a.astype(np.float16).view(np.uint16).astype(np.uint32))
        ],
        "dot4": [
            (
                emit("dot4"),
                [u, v, i],
                lambda a, b, c: (
                    (a.view(np.int8).astype(np.int64) * b.view(np.int8)).reshape(-1, 4).sum(1).astype(np.int32) + c
                ),
            )
        ],
        "vector": [(lambda b, x: b.vector(x[0], x[1], x[0], x[1])[3], [f, g], lambda a, b: b)],
        "extract": [(lambda b, x: b.emit("extract", b.vector(x[0], x[1]), lane=0), [f, g], lambda a, b: a)],
        "thread_id": [(lambda b, x: b.thread_id(), [i], lambda a: (lane % GROUP).astype(np.int32))],
        "group_id": [(lambda b, x: b.group_id(), [i], lambda a: (lane // GROUP).astype(np.int32))],
        "length": [(lambda b, x: b.emit("length", buffer=0), [i], lambda a: np.full(N, N, np.int32))],
        "shl": [
            (lambda b, x: b.emit("shl", x[0], x[1]), [i, count], lambda a, c: a << (c & 31)),
            (
                lambda b, x: b.emit("shl", x[0], b.cast(x[1], U32)),
                [u, count],
                lambda a, c: a << (c.astype(np.uint32) & 31),
            ),
            (lambda b, x: x[0] << 37, [u], lambda a: a << np.uint32(5)),
        ],
        "shr": [
            (lambda b, x: b.emit("shr", x[0], x[1]), [i, count], lambda a, c: a >> (c & 31)),
            (
                lambda b, x: b.emit("shr", x[0], b.cast(x[1], U32)),
                [u, count],
                lambda a, c: a >> (c.astype(np.uint32) & 31),
            ),
            (lambda b, x: x[0] >> 31, [i], lambda a: a >> 31),
        ],
        "pow": [(emit("pow"), [positive, small], f64(np.power))],
        "erf": [(emit("erf"), [small], f64(np.vectorize(math.erf)))],
        "div": [
            (emit("div"), [f, g], np.divide),
            (emit("div"), [i, divisor_i], truncated),
            (emit("div"), [u, divisor_u], truncated),
        ],
        "rem": [(emit("rem"), [i, divisor_i], remainder), (emit("rem"), [u, divisor_u], remainder)],
        "rsqrt": [(emit("rsqrt"), [positive], f64(lambda a: 1 / np.sqrt(a)))],
    }
    for name in ("exp", "sin", "cos", "tanh", "floor"):
        table[name] = [(emit(name), [small], f64(getattr(np, name)))]
    for name in ("log", "sqrt"):
        table[name] = [(emit(name), [positive], f64(getattr(np, name)))]
    table["round"] = [(emit("round"), [np.round(small * 4) / 2], f64(np.rint))]
    for name, rule in (
        ("add", np.add),
        ("sub", np.subtract),
        ("mul", np.multiply),
        ("min", np.minimum),
        ("max", np.maximum),
    ):
        table[name] = [(emit(name), pair, rule) for pair in ([f, g], [i, j], [u, v])]
    for name, bits in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        table[name] = [(emit(name), pair, bits) for pair in ([i, j], [u, v])]
        table[name].append(
            (
                lambda b, x, name=name: b.cast(b.emit(name, x[0] > 0, x[1] > 0), I32),
                [i, j],
                lambda a, c, bits=bits: bits(a > 0, c > 0).astype(np.int32),
            )
        )
    same = np.where(flag, i, j).astype(np.int32)
    for name, test in (
        ("eq", np.equal),
        ("ne", np.not_equal),
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
    ):
        pairs = ([i, same], [u, same.view(np.uint32)], [f, np.where(flag, f, g).astype(np.float32)])
        table[name] = [
            (
                lambda b, x, name=name: b.cast(b.emit(name, *x), U32),
                list(pair),
                lambda a, c, test=test: test(a, c).astype(np.uint32),
            )
            for pair in pairs
        ]
    return table


EXACT = {"exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "pow", "div", "fma"}
"""Operations whose float results may be off by what the caps state; all others agree in every bit."""


ELSEWHERE = {"shared_load", "shared_store", "atomic", "barrier", "check"}
"""Tested in `kernel_threads`, and a failing check in `device_faults`."""

NAMES = sorted(
    name
    for name, row in KERNEL_OPS.items()
    if row.needs in (None, "dot4") and name not in LOWERED | STRUCTURE | ELSEWHERE
)
"""Subgroup operations are tested in `kernel_threads`; what few targets have, beside the interpreter."""


def dtype_of(array: Array) -> DType:
    """The dtype of an array as a kernel sees it."""
    return {"f": F32, "i": I32, "u": U32}[array.dtype.kind]


CONSTANTS = [
    (
        F32,
        [
            0.0,
            -0.0,
            1.5,
            0.1,
            1e-5,
            3.4028234663852886e38,
            1.1754943508222875e-38,
            1e-45,
            -1e-40,
            math.inf,
            -math.inf,
            1e7,
            16777217.0,
            123456.789,
        ],
    ),
    (I32, [0, 1, -1, 2147483647, -2147483648, 65536]),
    (U32, [0, 1, 4294967295, 2147483648]),
]


class OperationConformance:
    """Elementwise operations, vectors and constants."""

    def test_every_operation_has_a_case(self) -> None:
        """None is forgotten, and none is of the past."""
        assert set(cases(np.random.default_rng(0))) == set(NAMES)

    @pytest.mark.parametrize("name", NAMES)
    def test_operation_agrees_with_numpy(self, device: KernelDevice, rng: Rng, name: str) -> None:
        """In every bit, or within what the caps state."""
        needs = KERNEL_OPS[name].needs
        if needs is not None and needs not in device.target.caps.features:
            pytest.skip(f"this device has no {needs}")
        for place, (body, arrays, rule) in enumerate(cases(rng)[name]):
            b = KernelBuilder(f"op_{name}_{place}", GROUP)
            with np.errstate(all="ignore"):
                expected = rule(*arrays)
            sources = [b.buffer(f"x{k}", dtype_of(a), Access.READ) for k, a in enumerate(arrays)]
            target = b.buffer("y", dtype_of(expected), Access.READ_WRITE)
            i = b.group_id() * GROUP + b.thread_id()
            target[i] = body(b, [source[i] for source in sources])
            (got,) = written(device, b.finish(), [*arrays, np.zeros(N, expected.dtype)], N // GROUP)
            if name in EXACT and expected.dtype == np.float32:
                bound = 1.0 if name == "fma" else device.target.caps.errors[name]
                tolerance = (bound + 0.5) * np.spacing(np.abs(expected))
                # A product that is rounded before the sum is off by a unit of the product.
                tolerance += np.spacing(np.abs(arrays[0] * arrays[1])) if name == "fma" else 0
                assert (np.abs(got.astype(np.float64) - expected) <= tolerance).all(), f"{name} case {place}"
            else:
                np.testing.assert_array_equal(got, expected, err_msg=f"{name} case {place}")

    @pytest.mark.parametrize("width", [2, 4])
    def test_vectors(self, device: KernelDevice, rng: Rng, width: int) -> None:
        """Loads, arithmetic, routines, selection and stores of vectors, lane for lane."""
        b = KernelBuilder(f"vectors_{width}", GROUP)
        x, y = b.buffer("x", F32, Access.READ), b.buffer("y", F32, Access.READ_WRITE)
        at = (b.group_id() * GROUP + b.thread_id()) * width
        v = x.load(at, width)
        w = b.emit("exp", -abs(v)) * 2.0 + b.vector(*(v[k] for k in reversed(range(width))))
        chosen = b.select(v > 0.0, w, -v)
        y.store(at, b.bitcast(b.bitcast(chosen, U32) ^ b.const(0, U32), F32))
        given = rng.standard_normal(N * width).astype(np.float32)
        (got,) = written(device, b.finish(), [given, np.zeros(N * width, np.float32)], N // GROUP)
        v_ = given.reshape(-1, width)
        expected = np.where(v_ > 0, np.exp(-np.abs(v_)) * 2 + v_[:, ::-1], -v_)
        np.testing.assert_allclose(got.reshape(-1, width), expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize(("dtype", "values"), CONSTANTS, ids=str)
    def test_constants_are_exact(self, device: KernelDevice, dtype: DType, values: list[float]) -> None:
        """Down to denormals, and with their signs."""
        b = KernelBuilder("constants", 1)
        y = b.buffer("y", dtype, Access.READ_WRITE)
        for k, value in enumerate(values):
            y[k] = b.const(float(np.float32(value)) if dtype is F32 else value, dtype)
        (got,) = written(device, b.finish(), [np.full(len(values), 9, dtype.numpy)], 1)
        expected = np.array(values, dtype.numpy)
        np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))

    def test_operations_of_constants(self, device: KernelDevice) -> None:
        """An overflow of constants wraps, and a constant divisor of zero behind a guard harms nobody."""
        b = KernelBuilder("constant_operations", 1)
        y = b.buffer("y", I32, Access.READ_WRITE)
        top = b.const(2147483647, I32)
        y[0] = b.emit("add", top, b.const(1, I32))
        y[1] = b.emit("mul", top, top)
        y[2] = b.emit("shl", b.const(1, I32), b.const(31, I32))
        y[3] = b.emit("neg", b.const(-2147483648, I32))
        y[4] = b.cast(b.emit("exp", b.const(100.0, F32)) > 1e38, I32)
        with b.if_(y[5] != 0):
            y[5] = b.emit("div", top, b.const(0, I32))
        (got,) = written(device, b.finish(), [np.zeros(6, np.int32)], 1)
        np.testing.assert_array_equal(got, [-2147483648, 1, -2147483648, -2147483648, 1, 0])

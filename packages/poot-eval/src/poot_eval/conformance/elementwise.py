"""Every elementwise primitive, at every dtype that it takes, over awkward shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pytest

from poot_eval.conformance.inputs import SHAPES, Array, Recorder, Rng, anything, floats, integers
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.conformance.session import open_session
from poot_eval.graph import eval
from poot_executor.device import Device
from poot_executor.dtype import BOOL, DType
from poot_executor.errors import GraphError
from poot_executor.graph.graph import TensorType
from poot_executor.graph.op_row import OpKind
from poot_executor.graph.ops import OPS

Sample = Callable[[Rng, tuple[int, ...], DType], Array]


def _between(low: float, high: float) -> Sample:
    return lambda rng, shape, dtype: floats(rng, shape, dtype, low, high)


def _steps(rng: Rng, shape: tuple[int, ...], dtype: DType) -> Array:
    """Few distinct values, so that many are equal; zeros of both signs among floats."""
    whole = rng.integers(-2, 3, shape)
    if not dtype.is_float:
        return np.asarray(np.abs(whole) if dtype is DType.U32 else whole).astype(dtype.numpy)
    signed = np.where(whole == 0, rng.choice([0.0, -0.0], shape), whole * 0.5)
    return np.asarray(signed, np.float32).astype(dtype.numpy)


def _numbers(rng: Rng, shape: tuple[int, ...], dtype: DType) -> Array:
    """Floats of moderate size, halves and zeros among them; any integer."""
    if not dtype.is_float:
        return anything(rng, shape, dtype)
    return np.where(rng.random(shape) < 0.2, _steps(rng, shape, dtype), floats(rng, shape, dtype, -40, 40))


def _divisor(rng: Rng, shape: tuple[int, ...], dtype: DType) -> Array:
    sign = rng.choice([-1, 1], shape)
    if dtype.is_float:
        return (floats(rng, shape, dtype, 0.125, 20) * sign).astype(dtype.numpy)
    size = np.left_shift(1, rng.integers(0, 31, shape)) - rng.integers(0, 2, shape)
    whole = np.maximum(size, 1) * (sign if dtype is DType.I32 else 1)
    # Not -1: the lowest integer by it overflows, which no target defines.
    return np.asarray(np.where(whole == -1, 3, whole)).astype(dtype.numpy)


def _count(rng: Rng, shape: tuple[int, ...], dtype: DType) -> Array:
    return integers(rng, shape, dtype, 0, 63)


_SAMPLES: Mapping[str, tuple[Sample, ...]] = MappingProxyType(
    {
        "exp": (_between(-8, 8),), "log": (_between(0.01, 60),), "sqrt": (_between(0, 60),),
        "recip": (_divisor,), "sin": (_between(-30, 30),), "cos": (_between(-30, 30),),
        "tanh": (_between(-6, 6),), "erf": (_between(-4, 4),), "pow": (_between(0.05, 6), _between(-3, 3)),
        "div": (_numbers, _divisor), "rem": (_numbers, _divisor), "shl": (_numbers, _count), "shr": (_numbers, _count),
        **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "max", "min"), (_steps, _steps)),
    }
)  # fmt: skip
"""Operands of operations that are not defined everywhere, or not interesting everywhere."""


def _takes(op: str, dtype: DType) -> bool:
    row = OPS[op]
    try:
        row.infer([TensorType((2,), dtype)] * (row.arity or 1), {})
    except GraphError:
        return False
    return True


NOT_SAMPLED = frozenset(("select", "cast", "bitcast"))
"""Elementwise primitives whose operands differ in dtype or that have params: they have tests of
their own."""

CASES = [
    pytest.param(op, dtype, id=f"{op}-{dtype}")
    for op, row in OPS.items()
    if row.kind is OpKind.ELEMENTWISE and op not in NOT_SAMPLED
    for dtype in DType
    if _takes(op, dtype)
]


def castable(rng: Rng, shape: tuple[int, ...], source: DType, target: DType) -> Array:
    """Values of `source` that every target converts alike: floats within the range of an
    integer."""
    if not source.is_float or not target.is_int:
        return _steps(rng, shape, source) if target is BOOL and source.is_float else anything(rng, shape, source)
    info = np.iinfo(target.numpy)
    low, high = max(info.min, -30000), min(info.max, 30000)
    return floats(rng, shape, source, low + 0.75 if low < 0 else 0.0, high - 130 if high > 300 else high - 1)


class ElementwiseConformance:
    """Elementwise primitives against the oracle."""

    @pytest.mark.parametrize(("op", "dtype"), CASES)
    def test_elementwise(self, device: Device, rng: Rng, op: str, dtype: DType) -> None:
        """One operation over every shape."""
        g = Recorder(op, rng)
        samples = _SAMPLES.get(op, (_numbers,) * (OPS[op].arity or 1))
        for shape in SHAPES:
            if dtype is BOOL:
                operands = [g.slot(anything(rng, shape, dtype), dtype) for _ in samples]
            else:
                operands = [g.slot(sample(rng, shape, dtype), dtype) for sample in samples]
            g.output(g.builder.apply(op, *operands))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("dtype", list(DType), ids=str)
    def test_select(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Bits of one choice or the other: NaN in the one that is not chosen does not show."""
        g = Recorder("select", rng)
        for shape in SHAPES:
            condition, a, b = (anything(rng, shape, d) for d in (BOOL, dtype, dtype))
            if dtype.is_float:
                a, b = np.where(condition, a, np.nan), np.where(condition, np.nan, b)
                a, b = a.astype(dtype.numpy), b.astype(dtype.numpy)
            traced = g.slot(condition, BOOL), g.slot(a, dtype), g.slot(b, dtype)
            g.output(g.builder.apply("select", *traced))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("target", list(DType), ids=str)
    @pytest.mark.parametrize("source", list(DType), ids=str)
    def test_cast(self, device: Device, rng: Rng, source: DType, target: DType) -> None:
        """Every dtype to every other."""
        g = Recorder("cast", rng)
        for shape in ((), (7,), (3, 66)):
            x = g.slot(castable(rng, shape, source, target), source)
            g.output(g.builder.apply("cast", x, dtype=target))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("source", [d for d in DType if d is not BOOL], ids=str)
    def test_bitcast(self, device: Device, rng: Rng, source: DType) -> None:
        """Every dtype to those of its size, through numbers only: no bits of a NaN."""
        g = Recorder("bitcast", rng)
        for target in (d for d in DType if d is not BOOL and d.size == source.size):
            for shape in ((), (7,), (3, 66)):
                g.output(
                    g.builder.apply("bitcast", g.slot(_both_numbers(rng, shape, source, target), source), dtype=target)
                )
        assert_device_matches(device, g.builder.build(), g.given())

    def test_denormals_infinities_and_nan(self, device: Device, rng: Rng) -> None:
        """Movement and integer work on their bits keep them. A target that flushes denormals may have a zero for one,
        with its sign or without, and nothing else anywhere.
        """
        g = Recorder("special", rng)
        special = np.asarray([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, -1e-45, 3e38, 1.5], np.float32)
        x = g.slot(special, DType.F32)
        word = g.builder.apply("bitcast", x, dtype=DType.U32)
        g.output(word)
        exponent = g.builder.apply("and", word, g.builder.splat(0x7F800000, word.type))
        g.output(g.builder.apply("eq", exponent, g.builder.splat(0x7F800000, word.type)))
        g.output(g.builder.apply("neg", word))
        g.output(g.builder.apply("transpose", g.builder.apply("reshape", x, shape=(3, 3)), permutation=(1, 0)))
        graph, (key,) = g.builder.build(), g.given()
        may_be = [special]
        if device.target.caps.flushes_denormals:
            small = np.abs(special) < np.finfo(np.float32).tiny
            may_be += [np.where(small, np.copysign(np.float32(0), special), special), np.where(small, 0, special)]
        oracles = [eval(graph, {key: values.astype(np.float32)}) for values in may_be]
        with open_session(device, graph, {key: special}) as session:
            result = session.run(session.lower())
        for name, got in result.outputs.items():
            same = [_same(got, oracle.outputs[name]) for oracle in oracles]
            assert np.logical_or.reduce(same).all(), f"{name}: {got}, not {oracles[0].outputs[name]}"


def _same(a: Array, b: Array) -> Array:
    """Where two arrays agree in every bit, or are both NaN."""
    if a.dtype.kind != "f":
        return a == b
    return (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))


def _both_numbers(rng: Rng, shape: tuple[int, ...], source: DType, target: DType) -> Array:
    """Bits that are finite normal numbers in both dtypes."""
    if not source.is_float and not target.is_float:
        return anything(rng, shape, source)
    if source.size == 2:
        # Exponents that f16 and bf16 both have: bf16 bits of numbers in [2, 4) are f16 numbers near 2.
        sign = rng.choice([-1, 1], shape)
        return (floats(rng, shape, source, 2.0, 3.9) * sign).astype(source.numpy)
    values = floats(rng, shape, DType.F32, -50, 50)
    return np.asarray(values).view(source.numpy) if shape else values.reshape(1).view(source.numpy).reshape(())

"""Every operation of the kernel IR, in small kernels written by hand: elementwise ones here.

The interpreter is the oracle. What is exact must be equal; floats keep within the ULP that the
target states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.compare import assert_matches
from poot_eval.conformance.inputs import Rng, floats, integers
from poot_eval.conformance.launching import interpreted, kernel_device, launch
from poot_executor.compile.target import Caps
from poot_executor.device import Device
from poot_executor.dtype import BOOL, F32, I32, U32, DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import KERNEL_OPS, Access, Kernel

Array = NDArray[Any]

SIZE = 64
COUNT = 150
"""Elements: more than two groups, and the last of them not full."""

_NUMBERS = (F32, I32, U32)
_INTS = (I32, U32)

OPERANDS: Mapping[str, tuple[int, tuple[DType, ...]]] = MappingProxyType(
    {
        "neg": (1, _NUMBERS), "abs": (1, _NUMBERS), "not": (1, _INTS),
        **dict.fromkeys(("exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "round"), (1, (F32,))),
        **dict.fromkeys(("add", "sub", "mul", "div", "min", "max"), (2, _NUMBERS)),
        **dict.fromkeys(("rem", "and", "or", "xor", "shl", "shr"), (2, _INTS)),
        "pow": (2, (F32,)), "mulhi": (2, (U32,)), "fma": (3, (F32,)), "dot4": (3, (U32,)),
        **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), (2, _NUMBERS)),
        "half_to_float": (1, (U32,)), "float_to_half": (1, (F32,)),
    }
)  # fmt: skip
"""Elementwise operations: how many operands, and their dtypes."""

ELSEWHERE = frozenset(
    "const group_id thread_id lane_id subgroup_id subgroup_size length select cast bitcast vector extract load store "
    "shared_load shared_store atomic barrier subgroup_sum subgroup_max subgroup_min subgroup_shuffle "
    "subgroup_shuffle_xor group_sum group_max group_min check for if while yield pack_bf16 packed_fma mma "
    "fragment_zero fragment_load fragment_store fragment_mma fragment_fma shared_copy copy_commit "
    "copy_wait warpgroup_mma".split()
)
"""Operations that the other kernels of the suite are made of."""

CASES = [pytest.param(op, dtype, id=f"{op}-{dtype}") for op, (_, dtypes) in OPERANDS.items() for dtype in dtypes]

_RESULTS: Mapping[str, DType] = MappingProxyType(
    {**dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "float_to_half"), U32), "half_to_float": F32, "dot4": I32}
)
"""What a kernel stores where it is not the operands' dtype; a bool as 0 or 1."""

_EXACT_FLOATS = frozenset("neg abs floor round add sub mul min max fma half_to_float".split())


def sample(rng: Rng, op: str, dtype: DType, place: int) -> Array:
    """Operand number `place` of an operation, COUNT elements, where the operation is defined."""
    if dtype is not F32:
        values = integers(rng, (COUNT,), dtype)
        if place == 1 and op in ("div", "rem"):
            values = np.where(
                (values == 0) | (values == -1), 7, values >> rng.integers(0, 28, COUNT).astype(values.dtype)
            )
            values = np.where((values == 0) | (values == -1), 5, values).astype(dtype.numpy)
        if op == "half_to_float":
            values = (values & 0xFFFF).astype(np.uint32)
            # No NaN, whose payload a target may change.
            values = np.where((values & 0x7C00) == 0x7C00, values & 0xFC00, values).astype(np.uint32)
        return values
    positive = op in ("log", "sqrt", "rsqrt") or (op == "pow" and place == 0)
    low, high = (0.01, 40.0) if positive else (-9.0, 9.0)
    values = floats(rng, (COUNT,), F32, low, high)
    if op == "div" and place == 1:
        values = np.where(np.abs(values) < 0.1, np.float32(0.5), values)
    if op == "pow" and place == 1:
        values = values / np.float32(3)
    if op in ("eq", "ne", "lt", "le", "gt", "ge", "floor", "round"):
        values = np.rint(values * np.float32(2)) / np.float32(2)
    if op == "float_to_half":
        values = values * np.float32(10.0) ** rng.integers(-8, 5, COUNT).astype(np.float32)
    return np.asarray(values, np.float32)


def float_bound(op: str, operands: list[Array], result: Array, caps: Caps) -> Array:
    """How far a float result may be from the interpreter's: the target's error and its own."""
    ulp = np.spacing(np.abs(result)).astype(np.float64)
    if op == "fma" and (caps.contracts or caps.errors.get("fma", 0.0) > 0.0):
        # WGSL and Vulkan let fma round the product first, which cancellation then shows.
        return ulp + 2.0**-24 * np.abs(operands[0].astype(np.float64) * operands[1])[: result.size]
    stated = caps.errors.get(op, 0.5)
    if op in _EXACT_FLOATS or (stated <= 0.5 and op in ("div", "sqrt")):
        return np.zeros(result.shape)
    return (stated + 0.5) * ulp


def guarded(b: KernelBuilder) -> Handle:
    """This thread's place in the grid."""
    return b.group_id() * SIZE + b.thread_id()


class KernelConformance:
    """Elementwise operations of the kernel IR."""

    @pytest.mark.parametrize(("op", "dtype"), CASES)
    def test_kernel_operation(self, device: Device, rng: Rng, op: str, dtype: DType) -> None:
        """One operation, scalar by scalar, and as a vector of 4."""
        target = kernel_device(device)
        caps = target.target.caps
        needs = KERNEL_OPS[op].needs
        if needs is not None and needs not in caps.features:
            pytest.skip(f"{target.target.kind} has no {needs}")
        arrays = [sample(rng, op, dtype, place) for place in range(OPERANDS[op][0])]
        if op == "dot4":
            arrays[2] = integers(rng, (COUNT,), I32, -1000, 1000)
        kernel, result = self._kernel(op, [dtype, dtype, I32] if op == "dot4" else [dtype] * len(arrays))
        arrays.append(np.full(COUNT, np.uint32(0x7FD5A5A5)).view(result.numpy))
        if op != "dot4":
            arrays.append(arrays[-1].copy()[: COUNT // 4 * 4])
        groups = (-(-COUNT // SIZE), 1, 1)
        expected = interpreted(kernel, arrays, groups, caps)
        got = launch(target, kernel, arrays, groups)
        for mine, theirs, param in zip(got, expected, kernel.params, strict=True):
            if param.access is Access.READ:
                assert np.array_equal(mine.view(np.uint32), theirs.view(np.uint32))
                continue
            bound = float_bound(op, arrays, theirs, caps) if result is F32 else 0.0
            assert_matches(mine, theirs, bound, f"{op} {param.name}")

    @staticmethod
    def _kernel(op: str, dtypes: list[DType]) -> tuple[Kernel, DType]:
        result = _RESULTS.get(op, dtypes[0])
        b = KernelBuilder(op, SIZE)
        inputs = [b.buffer(f"in{i}", dtype, Access.READ) for i, dtype in enumerate(dtypes)]
        i, out = guarded(b), b.buffer("out", result, Access.READ_WRITE)
        with b.if_(i < COUNT):
            out[i] = b.cast(_apply(b, op, [x[i] for x in inputs]), result)
        if op != "dot4":
            wide = b.buffer("wide", result, Access.READ_WRITE)
            with b.if_(i < COUNT // 4):
                wide.store(i * 4, b.cast(_apply(b, op, [x.load(i * 4, 4) for x in inputs]), result))
        return b.finish(), result

    @pytest.mark.parametrize("target", [F32, I32, U32, BOOL], ids=str)
    @pytest.mark.parametrize("source", [F32, I32, U32], ids=str)
    def test_casts_and_bits(self, device: Device, rng: Rng, source: DType, target: DType) -> None:
        """Number conversion within range, and the same bits as another dtype."""
        runner = kernel_device(device)
        x = integers(rng, (COUNT,), source) if source is not F32 else floats(rng, (COUNT,), F32, -3e4, 3e4)
        if source is F32 and target is U32:
            x = np.abs(x)
        x[:6] = 0
        result = U32 if target is BOOL else target
        b = KernelBuilder("cast", SIZE)
        given, out = b.buffer("x", source, Access.READ), b.buffer("y", result, Access.READ_WRITE)
        bits = b.buffer("bits", result, Access.READ_WRITE)
        i = guarded(b)
        with b.if_(i < COUNT):
            out[i] = b.cast(b.cast(given[i], target), result)
            bits[i] = b.bitcast(given[i], result)
        kernel = b.finish()
        if result is F32 and source is not F32:
            x = np.where((x.view(np.uint32) & 0x7F800000) == 0x7F800000, x & 0x3FFFFFFF, x).astype(x.dtype)  # no NaN
        arrays = [x, np.zeros(COUNT, result.numpy), np.zeros(COUNT, result.numpy)]
        groups = (-(-COUNT // SIZE), 1, 1)
        expected = interpreted(kernel, arrays, groups, runner.target.caps)
        got = launch(runner, kernel, arrays, groups)
        assert_matches(got[1], expected[1], 0.0, "cast")
        if not (runner.target.caps.flushes_denormals and F32 in (source, result)):
            assert np.array_equal(got[2].view(np.uint32), expected[2].view(np.uint32))


def _apply(b: KernelBuilder, op: str, operands: list[Handle]) -> Handle:
    named: dict[str, Callable[..., Handle]] = {"half_to_float": b.half_to_float, "float_to_half": b.float_to_half}
    if op in named:
        return named[op](*operands)
    return b.dot4(*operands) if op == "dot4" else b.apply(op, *operands)

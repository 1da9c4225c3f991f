"""What tests of the op table share."""

import numpy as np
import pytest

from poot_executor.dtype import DType
from poot_executor.graph.graph import TensorType
from poot_executor.graph.numerics import ORACLE, narrow
from poot_executor.graph.ops import OPS


@pytest.fixture
def run():
    """run(op, (array, dtype) ..., how=arithmetic, **params): the result of a rule, whose type is checked."""

    def call(op, *operands, how=ORACLE, **params):
        arrays = [np.asarray(a, d.numpy) for a, d in operands]
        row = OPS[op]
        out = row.infer([TensorType(a.shape, d) for a, (_, d) in zip(arrays, operands, strict=True)], params)
        before = [a.copy() for a in arrays]
        result = row.evaluate(arrays, params, out, how)
        assert isinstance(result, np.ndarray)
        assert result.shape == out.shape and result.dtype == out.dtype.numpy
        for a, b in zip(arrays, before, strict=True):
            assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), "a rule changed its operand"
        return result

    return call


@pytest.fixture
def draw(rng):
    """draw(shape, dtype): values of both signs, never zeros alone."""

    def values(shape, dtype: DType):
        if dtype.is_float:
            return narrow(np.asarray(rng.standard_normal(shape) * 3, np.float32), dtype)
        if dtype.is_int:
            info = np.iinfo(dtype.numpy)
            return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
        return rng.integers(0, 2, shape).astype(np.bool_)

    return values

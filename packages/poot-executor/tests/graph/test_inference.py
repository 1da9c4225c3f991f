"""The table itself, and refusals: every one names the operation and its types."""

import re

import pytest

from poot_executor.dtype import BF16, BOOL, F16, F32, I8, I32, U8, U32
from poot_executor.errors import GraphError
from poot_executor.graph import primitives
from poot_executor.graph.graph import TensorType
from poot_executor.graph.ops import OPS, op_named


def t(dtype, *shape):
    return TensorType(shape, dtype)


REFUSED = [
    ("add", [t(F32, 2), t(F32, 3)], {}, "one type"),
    ("add", [t(F32, 2), t(F16, 2)], {}, "one type"),
    ("add", [t(F32, 2)], {}, "takes 2 operands, not 1"),
    ("add", [t(BOOL, 2)] * 2, {}, "dtype"),
    ("add", [t(I8, 2)] * 2, {}, "dtype"),
    ("exp", [t(I32, 2)], {}, "dtype"),
    ("exp", [t(F32, 2)], {"axis": 0}, "takes params"),
    ("pow", [t(I32, 2)] * 2, {}, "dtype"),
    ("and", [t(F32, 2)] * 2, {}, "dtype"),
    ("shl", [t(BOOL, 2)] * 2, {}, "dtype"),
    ("eq", [t(BOOL, 2)] * 2, {}, "dtype"),
    ("select", [t(I32, 2), t(F32, 2), t(F32, 2)], {}, "condition"),
    ("select", [t(BOOL, 1), t(F32, 2), t(F32, 2)], {}, "condition"),
    ("select", [t(BOOL, 2), t(F32, 2), t(I32, 2)], {}, "one type"),
    ("cast", [t(F32, 2)], {"dtype": "f16"}, "param dtype"),
    ("bitcast", [t(F32, 2)], {"dtype": F16}, "differ in size"),
    ("bitcast", [t(BOOL, 2)], {"dtype": U32}, "bool"),
    ("sum", [t(F32, 2, 3)], {"axis": 2}, "axis 2"),
    ("sum", [t(F32, 2, 3)], {"axis": -1}, "axis -1"),
    ("sum", [t(F32, 2, 3)], {"axis": True}, "param axis"),
    ("argmax", [t(BOOL, 2)], {"axis": 0}, "dtype"),
    ("matmul", [t(F32, 2, 3), t(F32, 4, 5)], {"dtype": F32}, "contracted"),
    ("matmul", [t(F32, 1, 2, 3), t(F32, 2, 3, 5)], {"dtype": F32}, "leading"),
    ("matmul", [t(F32, 3), t(F32, 3, 5)], {"dtype": F32}, "rank"),
    ("matmul", [t(F32, 2, 3), t(F32, 3, 5)], {"dtype": BF16}, "result is f32"),
    ("matmul", [t(I32, 2, 3), t(F32, 3, 5)], {"dtype": F32}, "dtype"),
    ("indexed_matmul", [t(F32, 2, 3), t(F32, 4, 3, 5), t(I32, 3)], {}, "index"),
    ("indexed_matmul", [t(F32, 2, 3), t(F32, 4, 2, 5), t(I32, 2)], {}, "contracted"),
    ("reshape", [t(F32, 2, 3)], {"shape": (5,)}, "5 elements"),
    ("reshape", [t(F32, 2, 3)], {"shape": (6, 0)}, "below 1"),
    ("reshape", [t(F32, 2, 3)], {"shape": [6]}, "param shape"),
    ("transpose", [t(F32, 2, 3)], {"permutation": (0, 0)}, "permutation"),
    ("broadcast", [t(F32, 2)], {"shape": (2, 2)}, "rank"),
    ("broadcast", [t(F32, 2)], {"shape": (4,)}, "only 1 grows"),
    ("slice", [t(F32, 4)], {"start": (0,), "stop": (5,), "step": (1,)}, "outside"),
    ("slice", [t(F32, 4)], {"start": (2,), "stop": (2,), "step": (1,)}, "empty"),
    ("slice", [t(F32, 4)], {"start": (0,), "stop": (4,), "step": (0,)}, "step"),
    ("slice", [t(F32, 4)], {"start": (0, 0), "stop": (4,), "step": (1,)}, "an axis"),
    ("concat", [], {"axis": 0}, "1 or more"),
    ("concat", [t(F32, 2, 3), t(F32, 2, 4)], {"axis": 0}, "differ"),
    ("concat", [t(F32, 2), t(I32, 2)], {"axis": 0}, "differ"),
    ("concat", [t(F32, 2), t(F32, 2, 2)], {"axis": 0}, "differ"),
    ("pad", [t(U8, 2)], {"low": (0,), "high": (1,), "value": 256}, "does not fit"),
    ("pad", [t(F32, 2)], {"low": (-1,), "high": (1,), "value": 0.0}, "negative"),
    ("pad", [t(BOOL, 2)], {"low": (0,), "high": (1,), "value": 0}, "bool"),
    ("iota", [], {"shape": (4,), "axis": 0, "dtype": F16}, "dtype"),
    ("iota", [], {"shape": (2**24 + 1,), "axis": 0, "dtype": F32}, "exactly"),
    ("gather", [t(F32, 4), t(U32, 2)], {}, "index"),
    ("gather", [t(F32), t(I32, 2)], {}, "first axis"),
    ("scatter_update", [t(F32, 4, 2), t(I32, 3), t(F32, 3, 3)], {}, "updates"),
    ("scatter_update", [t(F32, 4, 2), t(I32, 3, 1), t(F32, 3, 2)], {}, "i32"),
    ("dynamic_update_slice", [t(F32, 4), t(F32, 5), t(I32)], {"axis": 0}, "larger"),
    ("dynamic_update_slice", [t(F32, 4), t(F32, 2), t(I32, 1)], {"axis": 0}, "start"),
    ("arg_top_k", [t(F32, 4)], {"k": 5}, "k = 5"),
    ("packed_dequant", [t(U8, 2, 35)], {"format": "q8_0"}, "whole blocks of 34"),
    ("packed_dequant", [t(U8, 2, 34)], {"format": "q9_9"}, "q9_9"),
    ("packed_dequant", [t(U8, 2, 34)], {"format": "f16"}, "dense"),
    ("random_bits", [t(U32, 2, 3), t(I32, 2)], {"count": 4}, "seed"),
    ("random_bits", [t(U32, 2, 2), t(I32, 2)], {"count": 0}, "count"),
    (
        "sample_token",
        [t(F32, 2, 9), t(U32, 2, 2), t(I32, 2), t(F32, 2, 3), t(I32, 2)],
        {"rule": "sampled"},
        "parameters must be",
    ),
    (
        "sample_token",
        [t(F32, 2, 9), t(U32, 2, 2), t(I32, 2), t(F32, 2, 4), t(I32, 2)],
        {"rule": "beam"},
        "no sampling rule 'beam'",
    ),
]


@pytest.mark.parametrize(("op", "types", "params", "reason"), REFUSED)
def test_refusals_name_the_operation_and_its_types(op, types, params, reason):
    with pytest.raises(GraphError) as refusal:
        OPS[op].infer(types, params)
    text = str(refusal.value)
    assert text.startswith(f"{op}({', '.join(map(str, types))}") and reason in text


def test_every_operation_with_params_is_tried():
    others = {"reduce_max"}  # shares the rule of sum
    assert {n for n, row in OPS.items() if row.params} <= {row[0] for row in REFUSED} | others


def test_an_unknown_operation_is_refused():
    with pytest.raises(GraphError, match="no primitive 'conv'"):
        op_named("conv")


def test_rows_are_complete():
    for name, row in OPS.items():
        assert row.name == name and row.doc and "->" in row.signature and "->" in row.dtypes
        operands = row.signature.split("->")[0].strip()
        groups = re.findall(r"\[[^\]]*\]", operands)
        assert row.arity is None or row.arity == len(groups), name


def test_every_operation_has_a_function():
    names = {"max": "maximum", "min": "minimum"}
    for op in OPS:
        spelled = [names.get(op, op), op + "_"]
        assert any(hasattr(primitives, s) for s in spelled), op

"""Each pass as text before and after. `before` is a function of a builder and its inputs."""

import pytest

from poot_executor.compile.passes.canonicalize import canonicalize
from poot_executor.compile.passes.fold_constants import fold_constants
from poot_executor.compile.passes.merge_equal import merge_equal
from poot_executor.compile.passes.remove_dead import remove_dead
from poot_executor.dtype import BF16, BOOL, F16, F32, I8, I32, U8, U32
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.graph.verify import verify
from poot_executor.weights import WeightKey


def trace(function, **types):
    """A graph of function(builder, x=..., ...) with a slot for each type; its results are outputs."""
    b = Builder()
    handles = {n: b.slot(SlotKey(SlotKind.INPUT, n), t) for n, t in types.items()}
    results = function(b, **handles)
    for place, x in enumerate(results if isinstance(results, tuple) else (results,)):
        b.output(str(place), x)
    return b.build()


def body(graph):
    """The text without the graph's name and its slots."""
    lines = str(verify(graph)).splitlines()[1:]
    return [line.strip() for line in lines if "= slot" not in line]


def t(dtype, *shape):
    return TensorType(shape, dtype)


def full(b, value, x):
    return b.splat(value, x.type)


# name: inputs, function, what canonical form makes of it and of what it no longer needs
CANONICAL = {
    "reshape to its own shape": ({"x": t(F32, 2, 3)}, lambda b, x: p.reshape(x, (2, 3)), ["output 0: %0"]),
    "reshape of reshape": (
        {"x": t(F32, 2, 3)},
        lambda b, x: p.reshape(p.reshape(x, (6,)), (3, 2)),
        ["%1: f32[3, 2] = reshape(%0, shape=[3, 2])", "output 0: %1"],
    ),
    "reshape there and back": (
        {"x": t(F32, 2, 3)},
        lambda b, x: p.reshape(p.reshape(x, (6,)), (2, 3)),
        ["output 0: %0"],
    ),
    "transpose by nothing": ({"x": t(F32, 2, 3)}, lambda b, x: p.transpose(x, (0, 1)), ["output 0: %0"]),
    "transpose of transpose": (
        {"x": t(F32, 2, 3, 4)},
        lambda b, x: p.transpose(p.transpose(x, (1, 2, 0)), (0, 2, 1)),
        ["%1: f32[3, 2, 4] = transpose(%0, permutation=[1, 0, 2])", "output 0: %1"],
    ),
    "transpose there and back": (
        {"x": t(F32, 2, 3, 4)},
        lambda b, x: p.transpose(p.transpose(x, (1, 2, 0)), (2, 0, 1)),
        ["output 0: %0"],
    ),
    "transpose of ones": (
        {"x": t(F32, 2, 1, 4)},
        lambda b, x: p.transpose(x, (1, 0, 2)),
        ["%1: f32[1, 2, 4] = reshape(%0, shape=[1, 2, 4])", "output 0: %1"],
    ),
    "broadcast to its own shape": ({"x": t(F32, 2, 1)}, lambda b, x: p.broadcast(x, (2, 1)), ["output 0: %0"]),
    "broadcast of broadcast": (
        {"x": t(F32, 1, 1)},
        lambda b, x: p.broadcast(p.broadcast(x, (2, 1)), (2, 3)),
        ["%1: f32[2, 3] = broadcast(%0, shape=[2, 3])", "output 0: %1"],
    ),
    "movement of one repeated element": (
        {"x": t(F32, 1, 1)},
        lambda b, x: p.transpose(p.reshape(p.broadcast(x, (4, 3)), (2, 3, 2)), (1, 0, 2)),
        [
            "%1: f32[1, 1, 1] = reshape(%0, shape=[1, 1, 1])",
            "%2: f32[3, 2, 2] = broadcast(%1, shape=[3, 2, 2])",
            "output 0: %2",
        ],
    ),
    "a slice of everything": ({"x": t(F32, 3)}, lambda b, x: p.slice_(x, (0,), (3,)), ["output 0: %0"]),
    "slice of slice": (
        {"x": t(F32, 20)},
        lambda b, x: p.slice_(p.slice_(x, (3,), (19,), (2,)), (1,), (8,), (3,)),
        ["%1: f32[3] = slice(%0, start=[5], step=[6], stop=[18])", "output 0: %1"],
    ),
    "concat of one": ({"x": t(F32, 3)}, lambda b, x: p.concat([x], 0), ["output 0: %0"]),
    "no padding": ({"x": t(F32, 3)}, lambda b, x: p.pad(x, (0,), (0,)), ["output 0: %0"]),
    "cast to its own dtype": (
        {"x": t(F32, 3)},
        lambda b, x: b.apply("cast", x, dtype=F32),
        ["output 0: %0"],
    ),
    "a wider dtype on the way": (
        {"x": t(BF16, 3), "y": t(U8, 3)},
        lambda b, x, y: (p.cast(p.cast(x, F32), BF16), p.cast(p.cast(y, I32), F16)),
        ["%2: f16[3] = cast(%1, dtype=f16)", "output 0: %0", "output 1: %2"],
    ),
    "a narrower dtype on the way stays": (
        {"x": t(F32, 3), "y": t(I32, 3)},
        lambda b, x, y: (p.cast(p.cast(x, BF16), F32), p.cast(p.cast(y, F32), I32)),
        [
            "%2: bf16[3] = cast(%0, dtype=bf16)",
            "%3: f32[3] = cast(%2, dtype=f32)",
            "%4: f32[3] = cast(%1, dtype=f32)",
            "%5: i32[3] = cast(%4, dtype=i32)",
            "output 0: %3",
            "output 1: %5",
        ],
    ),
    "bitcast there and back": (
        {"x": t(F32, 3)},
        lambda b, x: p.bitcast(p.bitcast(x, U32), F32),
        ["output 0: %0"],
    ),
    "what undoes itself": (
        {"x": t(F32, 3), "y": t(BOOL, 3)},
        lambda b, x, y: (p.neg(p.neg(x)), ~~y, p.abs_(-x), p.abs_(p.abs_(x))),
        [
            "%2: f32[3] = abs(%0)",
            "%3: f32[3] = abs(%0)",
            "output 0: %0",
            "output 1: %1",
            "output 2: %2",
            "output 3: %3",
        ],
    ),
    "neutral numbers": (
        {"x": t(F32, 2), "i": t(I32, 2)},
        lambda b, x, i: (x * 1, 1 * x, x / 1, x - 0.0, x + -0.0, i + 0, 0 + i, i * 1, i & -1, i | 0, i ^ 0, i << 0),
        [f"output {n}: %{0 if n < 5 else 1}" for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)],
    ),
    "neutral and absorbing truth": (
        {"x": t(BOOL, 2)},
        lambda b, x: (x & True, False | x, x ^ False, x & x, x | x),
        [f"output {n}: %0" for n in range(5)],
    ),
    "maximum of one": (
        {"x": t(F32, 2)},
        lambda b, x: (p.maximum(x, x), p.minimum(x, x)),
        ["output 0: %0", "output 1: %0"],
    ),
    "the order of operands": (
        {"x": t(F32, 2), "y": t(F32, 2)},
        lambda b, x, y: (p.add(y, x), p.mul(x, y), p.eq(y, x), p.gt(x, y), p.ge(x, y), p.sub(y, x), p.maximum(y, x)),
        [
            "%2: f32[2] = add(%0, %1)",
            "%3: f32[2] = mul(%0, %1)",
            "%4: bool[2] = eq(%0, %1)",
            "%5: bool[2] = lt(%1, %0)",
            "%6: bool[2] = le(%1, %0)",
            "%7: f32[2] = sub(%1, %0)",
            "%8: f32[2] = max(%1, %0)",
            *(f"output {n}: %{n + 2}" for n in range(7)),
        ],
    ),
    "select of what is known": (
        {"c": t(BOOL, 2), "x": t(F32, 2), "y": t(F32, 2)},
        lambda b, c, x, y: (
            p.select(full(b, True, c), x, y),
            p.select(full(b, False, c), x, y),
            p.select(c, y, y),
            p.select(~c, x, y),
        ),
        ["%3: f32[2] = select(%0, %2, %1)", "output 0: %1", "output 1: %2", "output 2: %2", "output 3: %3"],
    ),
    "abs of u32": (
        {"x": t(U32, 2)},
        lambda b, x: p.abs_(p.neg(x)),
        ["%1: u32[2] = neg(%0)", "output 0: %1"],
    ),
    "the sum of one": (
        {"x": t(F32, 2, 1)},
        lambda b, x: p.sum_(x, 1),
        ["%1: f32[2] = reshape(%0, shape=[2])", "output 0: %1"],
    ),
    "the greatest of one": (
        {"x": t(U32, 1, 2)},
        lambda b, x: p.reduce_max(x, 0),
        ["%1: u32[2] = reshape(%0, shape=[2])", "output 0: %1"],
    ),
}


@pytest.mark.parametrize("name", CANONICAL)
def test_canonical_form(name):
    types, function, expected = CANONICAL[name]
    graph = trace(function, **types)
    result = remove_dead(canonicalize(graph))
    assert body(result) == expected
    assert canonicalize(result) is result, "canonical form is canonical"


def test_a_constant_comes_last():
    graph = canonicalize(trace(lambda b, x: (2.0 * x, 3.0 + x, b.splat(4.0, x.type) == x), x=t(F32, 2)))
    calls = [e for e in graph.equations if e.op in ("mul", "add", "eq")]
    assert all(e.inputs[0] == graph.inputs[0].value for e in calls) and len(calls) == 3


KEPT = {
    "x + 0 of a float": ({"x": t(F32, 2)}, lambda b, x: x + 0.0),
    "x - (-0)": ({"x": t(F32, 2)}, lambda b, x: x - -0.0),
    "x * 0 of a float": ({"x": t(F32, 2)}, lambda b, x: x * 0.0),
    "0 - x of an integer": ({"x": t(I32, 2)}, lambda b, x: 0 - x),
    "1 / x": ({"x": t(F32, 2)}, lambda b, x: 1 / x),
    "x - x": ({"x": t(F32, 2)}, lambda b, x: p.sub(x, x)),
    "maximum over one element": ({"x": t(F32, 2, 1)}, lambda b, x: p.reduce_max(x, 1)),
    "a transpose that moves data": ({"x": t(F32, 2, 1, 3)}, lambda b, x: p.transpose(x, (2, 1, 0))),
    "a cast that rounds": ({"x": t(I8, 2)}, lambda b, x: p.cast(p.cast(x, F16), BF16)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_would_change_a_bit_is_kept(name):
    types, function = KEPT[name]
    graph = trace(function, **types)
    assert canonicalize(graph) is graph


def test_equal_equations_become_one():
    graph = merge_equal(
        trace(
            lambda b, x: (p.exp(x), p.exp(x), p.sum_(x, 0), p.sum_(x, 1), p.exp(p.exp(x)), p.exp(p.exp(x))),
            x=t(F32, 2, 2),
        )
    )
    assert body(graph) == [
        "%1: f32[2, 2] = exp(%0)",
        "%2: f32[2] = sum(%0, axis=0)",
        "%3: f32[2] = sum(%0, axis=1)",
        "%4: f32[2, 2] = exp(%1)",
        *(f"output {place}: %{value}" for place, value in enumerate((1, 1, 2, 3, 4, 4))),
    ]
    assert merge_equal(graph) is graph


def test_equal_constants_become_one_and_zeros_keep_their_sign():
    def function(b):
        zero, minus = b.computed([0.0, 1.0], F32), b.computed([-0.0, 1.0], F32)
        again = b.computed([0.0, 1.0], F32)
        x = p.pad(zero, (1,), (0,), 0.0)
        return x, p.pad(again, (1,), (0,), 0.0), p.pad(zero, (1,), (0,), -0.0), p.neg(minus)

    graph = merge_equal(trace(function))
    assert len(graph.inputs) == 2
    outputs = list(graph.outputs.values())
    assert outputs[0] == outputs[1] != outputs[2]


def test_constants_fold_to_splats():
    graph = trace(lambda b, x: x * (b.splat(2.0, x.type) + 1.5), x=t(F32, 300, 300))
    assert body(remove_dead(fold_constants(graph))) == [
        "%1: f32[1, 1] = computed splat 3.5",
        "%2: f32[300, 300] = broadcast(%1, shape=[300, 300])",
        "%3: f32[300, 300] = mul(%0, %2)",
        "output 0: %3",
    ]


def test_a_constant_that_is_the_same_everywhere_is_stored_once():
    graph = fold_constants(trace(lambda b: b.computed([[7, 7, 7]] * 5, I32)))
    assert body(graph) == [
        "%0: i32[1, 1] = computed splat 7",
        "%1: i32[5, 3] = broadcast(%0, shape=[5, 3])",
        "output 0: %1",
    ]
    assert fold_constants(graph) is graph


def test_constants_fold_to_constants():
    def function(b):
        table = b.computed([1.0, 2.0, 4.0], F32)
        return p.exp(table) * table, p.gather(table, b.computed([2, 0], I32))

    graph = remove_dead(fold_constants(trace(function)))
    assert [e.op for e in graph.equations] == []
    values = {name: graph.input(v).data.tolist() for name, v in graph.outputs.items()}
    assert values["1"] == [4.0, 1.0]
    assert values["0"] == pytest.approx([2.718281828, 14.7781122, 218.3926001], rel=1e-6)


def test_counting_stays():
    def function(b):
        return p.iota(b, (3, 4), 1, I32) * 5 + 2, p.iota(b, (1, 4), 0, I32), p.iota(b, (4,), 0, I32) < 9

    graph = remove_dead(fold_constants(trace(function)))
    assert [e.op for e in graph.equations] == ["iota", "broadcast", "mul", "broadcast", "add", "broadcast", "broadcast"]
    assert graph.input(graph.equation(graph.outputs["1"]).inputs[0]).data.tolist() == [[0]]
    assert graph.input(graph.equation(graph.outputs["2"]).inputs[0]).data.tolist() == [True]


def test_repetition_stays_and_large_results_are_not_stored():
    def function(b):
        row = p.reshape(b.computed([[1.0, 2.0]], F32), (1, 2))
        return (p.exp(p.broadcast(row, (10_000, 2))),)

    graph = fold_constants(trace(function))
    assert [e.op for e in graph.equations][-2:] == ["broadcast", "exp"]


def test_a_constant_fault_is_left_to_the_device():
    def function(b):
        return p.gather(b.computed([1.0, 2.0], F32), b.computed([3], I32))

    assert [e.op for e in fold_constants(trace(function)).equations] == ["gather"]


def test_dead_code_goes_and_the_schema_stays():
    b = Builder()
    x = b.slot(SlotKey(SlotKind.POS), t(I32, 2))
    unused = b.slot(SlotKey(SlotKind.LAST), t(I32, 2))
    b.weight(WeightKey(0, "unused"), t(F32, 2))
    b.computed([1.0], F32)
    pool = b.state(StateKey(0, "k"), t(I32, 2))
    b.state(StateKey(0, "v"), t(I32, 2))
    p.exp(p.cast(unused, F32))
    b.next_state(StateKey(0, "k"), pool + x)
    b.check(p.reduce_max(x, 0))
    graph = remove_dead(b.build())
    assert body(graph) == [
        "%2: i32[2] = state 0.k",
        "%3: i32[2] = state 0.v",
        "%4: i32[2] = add(%2, %0)",
        "%5: i32[] = reduce_max(%0, axis=0)",
        "state 0.k: %2 -> %4",
        "state 0.v: %3 -> %3",
        "check %5",
    ]
    assert {str(i.key) for i in graph.inputs} == {"pos", "last", "0.k", "0.v"}
    assert remove_dead(graph) is graph

"""The language: what source means as IR."""

from __future__ import annotations

import ast
import inspect
import math
from pathlib import Path

import pytest

from poot_executor.dtype import BF16, F16, F32, DType
from poot_executor.errors import KernelError
from poot_executor.kernel import Access, Kernel, KernelBuilder
from poot_executor.kernel.lang import (
    Hook,
    In,
    InOut,
    Local,
    Out,
    Shared,
    barrier,
    bitcast,
    check,
    device,
    exp,
    f16,
    f32,
    fma,
    group_id,
    group_size,
    i32,
    kernel,
    loop,
    select,
    static,
    thread_id,
    u32,
    vector,
)  # fmt: skip

SCALE = 3.0


def kinds(made: Kernel, *names: str) -> list[str]:
    return [op.kind for op in made.body.walk() if not names or op.kind in names]


def built(make) -> Kernel:
    b = KernelBuilder("same")
    make(b, b.buffer("x", F32, Access.READ), b.buffer("y", F32, Access.READ_WRITE))
    return b.finish()


def same(source, make, **constants) -> None:
    """That source means what the builder is told."""
    assert str(source.specialize(name="same", **constants)) == str(built(make))


def test_statements_mean_what_the_builder_makes_of_them():
    @kernel
    def source(x: In[f32], y: Out[f32], *, factor: float):
        """Scale x into y."""
        i = group_id() * group_size() + thread_id()
        if i < y.length():
            y[i] = x[i] * factor * SCALE
            y[i] += 1.0

    def make(b, x, y):
        i = b.group_id() * 64 + b.thread_id()
        with b.if_(i < y.length()):
            y[i] = x[i] * 0.5 * 3.0
            y[i] = y[i] + 1.0

    same(source, make, factor=0.5)


def test_loops_carry_the_names_that_they_set():
    @kernel
    def source(x: In[f32], y: Out[f32]):
        total = 0.0
        for i in loop(thread_id(), x.length(), 64, unroll=4):
            total += x[i]
            if total > 5.0:
                total = total * 0.5
        y[0] = total

    made = source.specialize()
    (made,) = [op for op in made.body.walk() if op.kind == "for"]
    assert dict(made.attrs) == {"unroll": 4}
    assert [value.hint for value in made.results] == ["total"]


def test_a_while_with_two_names():
    @kernel
    def source(x: In[f32], y: Out[f32]):
        a = thread_id()
        n = 0
        while a > 1 and n < 30:
            a, n = a // 2, n + 1
        y[n] = f32(a)

    (made,) = [op for op in source.specialize().body.walk() if op.kind == "while"]
    assert [value.hint for value in made.results] == ["a", "n"]


def test_a_compile_time_condition_selects_a_branch():
    @kernel
    def source(x: In[f32], y: Out[f32], *, mode: str, pairs: tuple = ((0, 1), (2, 3))):
        if mode == "copy":
            y[0] = x[0]
        elif mode in ("sum", "all"):
            total = x[0]
            for a, b in static(pairs):
                total = total + x[a * 10 + b]
            y[0] = total
        else:
            assert mode == "none", "one of three"

    assert kinds(source.specialize(mode="copy"), "load", "add") == ["load"]
    assert kinds(source.specialize(mode="sum"), "load", "add") == ["load", "load", "add", "load", "add"]
    assert kinds(source.specialize(mode="none")) == []
    with pytest.raises(KernelError, match=r"test_language\.py:\d+: assert mode == 'none' does not hold: one of three"):
        source.specialize(mode="other")


def test_a_runtime_conditional_expression_is_a_select_and_min_and_max_are_operations():
    @kernel
    def source(x: In[f32], y: Out[f32]):
        i = thread_id()
        v = x[i]
        y[i] = (v if v > 0.5 else 0.25) + max(v, 1.0, x[0]) + min(v, 2.0) + abs(v) + round(v) + pow(abs(v), 2.0)

    looked_for = ("select", "max", "min", "abs", "round", "pow", "if")
    want = ["select", "max", "max", "min", "abs", "round", "abs", "pow"]
    assert kinds(source.specialize(), *looked_for) == want


def test_chained_and_joined_conditions():
    @kernel
    def source(x: In[f32], y: Out[f32], *, on: bool):
        i = thread_id()
        if 0 <= i < 5 and on and not (i == 3 or i == 4):  # noqa: PLR1714
            y[i] = x[i]

    assert kinds(source.specialize(on=True), "ge", "lt", "and", "or", "not", "eq") == [
        "ge", "lt", "and", "eq", "eq", "or", "not", "and",
    ]  # fmt: skip
    assert kinds(source.specialize(on=False), "store") == []


def test_local_arrays_are_variables_with_compile_time_indices():
    @kernel
    def source(x: In[f32], y: Out[f32], *, rows: int):
        acc = Local(f32, rows)
        for i in range(x.length()):
            for r in static(range(rows)):
                if r != 1:
                    acc[r] = fma(x[i], float(r), acc[r])
        y[0] = sum(acc)
        assert len(acc) == rows

    (made,) = [op for op in source.specialize(rows=3).body.walk() if op.kind == "for"]
    assert len(made.results) == 2  # acc[1] is never set


def test_shared_arrays_and_vectors():
    @kernel
    def source(x: In[f32], y: Out[f32]):
        tile = Shared(f32, group_size())
        t = thread_id()
        v = x.load(t * 4, 4)
        tile[t] = v.x + v[1]
        barrier()
        y.store(t * 2, vector(tile[t], tile[63 - t]))

    made = source.specialize()
    assert [(a.dtype, a.count) for a in made.shared] == [(F32, 64)]
    assert kinds(made, "extract", "vector", "barrier") == ["extract", "extract", "barrier", "vector"]


def test_device_functions_are_inlined_and_take_what_python_functions_take():
    @device
    def silu(v):
        return v / (1.0 + exp(-v))

    @device
    def apply(function, v, *, twice=False):
        if twice:
            return function(function(v))
        return function(v)

    @kernel
    def source(x: In[f32], y: Out[f32], *, twice: bool):
        y[0] = apply(silu, x[0], twice=twice)

    assert kinds(source.specialize(twice=True), "exp") == ["exp", "exp"]
    assert kinds(source.specialize(twice=False), "exp") == ["exp"]


def test_a_device_function_may_be_the_compile_time_argument():
    @device
    def double(v):
        return v * 2.0

    @kernel
    def source(x: In[f32], y: Out[f32], *, prepare=None):
        v = x[0]
        if prepare is not None:
            v = prepare(v)
        y[0] = v

    assert kinds(source.specialize(prepare=double), "mul") == ["mul"]
    assert kinds(source.specialize(), "mul") == []


def test_buffers_may_be_of_a_compile_time_dtype():
    @kernel
    def source(x: In[dtype], y: Out[f32], *, dtype: DType):  # noqa: F821
        y[0] = x[1] * (2.0 if dtype == f16 else 3.0)

    assert kinds(source.specialize(dtype=F16), "half_to_float") == ["half_to_float"]
    made = source.specialize(dtype=BF16)
    assert kinds(made, "bitcast") == ["bitcast"]
    assert any(op.attrs.get("value") == 3.0 for op in made.body.walk())


def test_hooks_add_their_buffers_in_the_order_of_the_parameters():
    def weight(b, buffers, row):
        return buffers[0][row]

    def store(b, buffers, row, value):
        buffers[1][row] = value * buffers[0][row]

    @kernel
    def source(x: In[f32], *, rows: int, weights: tuple, store: Hook):
        total = x[0]
        for w in static(weights):
            total += w(rows)
        store(rows, total)

    one = Hook((("data", F16, Access.READ),), weight)
    made = source.specialize(
        store=Hook((("gain", F32, Access.READ), ("out", F32, Access.READ_WRITE)), store),
        weights=(one, one), rows=4,
    )  # fmt: skip
    names = [param.name for param in made.params]
    assert names == ["x", "weights0_data", "weights1_data", "store_gain", "store_out"]
    (stored,) = [op for op in made.body.walk() if op.kind == "store"]
    assert stored.attrs["buffer"] == 4


def test_casts_and_bit_casts():
    @kernel
    def source(x: In[f32], y: InOut[f32]):
        t = thread_id()
        y[t] = f32(u32(t) >> 1) + bitcast(bitcast(x[t], u32) | 1, f32) + f32(bool(t))
        y[i32(x[0])] = select(t > 3, 1.0, x[0])
        check(t < 5, 7)

    assert kinds(source.specialize(), "cast", "bitcast", "check", "select") == [
        "cast", "cast", "bitcast", "bitcast", "cast", "cast", "select", "cast", "check",
    ]  # fmt: skip


def test_compile_time_python_is_pythons():
    table = [math.sqrt(v) for v in (1.0, 4.0)]

    @kernel
    def source(x: In[f32], y: Out[f32]):
        values = [x[i] * table[i] for i in range(2) if table[i] != 1.0]
        (only,) = values if len(table) < 5 else (1.0,)
        y[0] = only + round(2.6) * table[-1]

    made = source.specialize()
    assert kinds(made, "load") == ["load"]
    assert any(op.attrs.get("value") == 6.0 for op in made.body.walk())


def test_equal_arguments_give_equal_kernels_and_specialize_checks_them():
    @kernel
    def source(x: In[f32], y: Out[f32], *, n: int, m: int = 2):
        y[n] = x[m]

    assert str(source.specialize(n=1)) == str(source.specialize(m=2, n=1))
    assert source.specialize(n=1).digest() != source.specialize(n=2).digest()
    with pytest.raises(KernelError, match="kernel source has no compile-time parameter k"):
        source.specialize(n=1, k=3)
    with pytest.raises(KernelError, match="kernel source needs compile-time parameters n"):
        source.specialize()


def test_a_name_that_holds_a_python_number_becomes_a_variable_where_a_branch_sets_it():
    @kernel
    def source(x: In[f32], y: Out[f32]):
        scale = 1.0
        if x[0] > 0.0:
            scale = 2.0
        y[0] = scale

    (branch,) = [op for op in source.specialize().body.walk() if op.kind == "if"]
    assert [v.type.dtype for v in branch.results] == [F32]


def test_operations_know_their_line():
    @kernel
    def source(x: In[f32], y: Out[f32]):
        y[0] = exp(x[0])  # here

    (op,) = [op for op in source.specialize().body.walk() if op.kind == "exp"]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marked = next(n for n, line in enumerate(lines, 1) if line.endswith("exp(x[0])  # here"))
    assert op.line == f"test_language.py:{marked}"


def test_intrinsics_and_kernels_are_not_called_from_python():
    with pytest.raises(KernelError, match="exp is called in the source of a kernel"):
        exp(1.0)
    with pytest.raises(KernelError, match="f32 is called in the source"):
        f32(1)

    @kernel
    def source(x: In[f32]):
        pass

    with pytest.raises(KernelError, match="source is a kernel: specialize it"):
        source(None)


def test_the_source_is_parsed_once(monkeypatch):
    calls = []
    real = inspect.getsourcelines
    monkeypatch.setattr(inspect, "getsourcelines", lambda f: calls.append(f) or real(f))

    @kernel
    def source(x: In[f32], y: Out[f32], *, n: int):
        y[0] = x[n]

    for n in range(3):
        source.specialize(n=n)
    assert len(calls) == 1
    assert isinstance(source.source.tree, ast.FunctionDef)


def test_a_hook_gives_handles():
    @kernel
    def source(x: In[f32], y: Out[f32], *, store: Hook):
        store(x[0])

    with pytest.raises(KernelError, match="a hook gives handles or None, not 3"):
        source.specialize(store=Hook((), lambda b, buffers, v: 3))

"""The builder: SSA construction, operators, sub-word buffers, and the text that it all shows as."""

from __future__ import annotations

import textwrap

import pytest

from poot_executor.dtype import BF16, BOOL, F16, F32, I8, I32, U8, U32
from poot_executor.errors import KernelError
from poot_executor.kernel import Access, Kernel, KernelBuilder, show

READ, WRITE = Access.READ, Access.READ_WRITE


def body(kernel: Kernel) -> str:
    """The text of the operations alone."""
    lines = str(kernel).splitlines()
    first = next(i for i, line in enumerate(lines[1:], 1) if not line.lstrip().startswith(("param", "shared ")))
    return textwrap.dedent("\n".join(lines[first:])) + "\n"


def text(expected: str) -> str:
    return textwrap.dedent(expected).lstrip("\n")


def test_text_of_a_small_kernel():
    b = KernelBuilder("scale", group_size=64)
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    b.shared("tile", F32, 8)
    i = b.group_id(1) * 64 + b.thread_id()
    with b.if_(i < y.length()):
        y[i] = x[i] * 0.1
    assert str(b.finish()) == text("""
        kernel scale group_size=64
          param 0 x: f32 read
          param 1 y: f32 read_write
          shared 0 tile: f32[8]
          %0 = group_id axis=1: i32
          %1 = const value=64: i32
          %2 = mul %0, %1: i32
          %3 = thread_id: i32
          %4 = add %2, %3: i32
          %5 = length buffer=1: i32
          %6 = lt %4, %5: bool
          if %6
          {
            %7 = load %4 buffer=0 width=1: f32
            %8 = const value=0.10000000149011612: f32
            %9 = mul %7, %8: f32
            store %4, %9 buffer=1
            yield
          }
          {
            yield
          }
        """)


def build_sum(hint: str = "sum") -> Kernel:
    b = KernelBuilder("total")
    x, y = b.buffer("x", F32, READ), b.buffer("y", F32, WRITE)
    total, unused = b.var(0.0, name=hint), b.var(7, name="unused")
    with b.range(0, x.length()) as i:
        total.set(total.get() + x[i + unused.get()])
    y[unused.get()] = total.get()
    return b.finish()


def test_a_loop_carries_only_what_its_body_sets():
    assert body(build_sum()) == text("""
        %0 = length buffer=0: i32
        %1 = const value=0: i32
        %2 = const value=1: i32
        %3 = const value=7: i32
        %4 = const value=0.0: f32
        for %1, %0, %2, %4
        (%5: i32, %6: f32) {
          %7 = add %5, %3: i32
          %8 = load %7 buffer=0 width=1: f32
          %9 = add %6, %8: f32
          yield %9
        }
        -> %10: f32
        store %3, %10 buffer=1
        """)


def test_equal_calls_give_equal_kernels_and_hints_and_lines_are_no_part_of_them():
    first, second = build_sum(), build_sum("other")
    assert str(first) == str(second)
    assert first.digest() == second.digest()
    assert show(first, hints=True) != show(second, hints=True)
    assert "test_builder.py:" in show(first, lines=True)


def test_an_argument_of_nested_loops_that_nothing_sets_is_pruned_through_both():
    b = KernelBuilder("nested")
    y = b.buffer("y", I32, WRITE)
    start = b.thread_id()
    still, moving = b.var(start), b.var(start)
    with b.range(3) as i, b.range(4) as j:
        y[still.get()] = i + j
        moving.set(moving.get() + 1)
    y[still.get()] = moving.get()
    kernel = b.finish()
    outer, inner = [op for op in kernel.body.walk() if op.kind == "for"]
    assert [len(outer.results), len(inner.results)] == [1, 1]
    stores = [op for op in kernel.body.walk() if op.kind == "store"]
    assert all(op.operands[0] is start.val for op in stores)


def test_a_variable_may_be_set_to_one_that_the_loop_does_not_set():
    b = KernelBuilder("copies")
    y = b.buffer("y", I32, WRITE)
    source, copy = b.var(b.thread_id()), b.var(0)
    with b.range(3):
        copy.set(source.get())
    y[0] = copy.get()
    (loop,) = [op for op in b.finish().body.walk() if op.kind == "for"]
    assert loop.blocks[0].ops[-1].operands == (source.get().val,)


def test_a_variable_set_in_one_branch_is_the_results_of_the_if():
    b = KernelBuilder("one_branch")
    y = b.buffer("y", I32, WRITE)
    t = b.thread_id()
    v, kept = b.var(t), b.var(5)
    with b.if_(t > 3):
        v.set(1)
    y[kept.get()] = v.get()
    assert body(b.finish()) == text("""
        %0 = thread_id: i32
        %1 = const value=3: i32
        %2 = gt %0, %1: bool
        if %2
        {
          %3 = const value=1: i32
          yield %3
        }
        {
          yield %0
        }
        -> %4: i32
        %5 = const value=5: i32
        store %5, %4 buffer=0
        """)


def test_if_and_else_set_a_variable_that_was_unset():
    b = KernelBuilder("both")
    y = b.buffer("y", I32, WRITE)
    t = b.thread_id()
    v = b.var(name="v")
    with b.if_(t > 3):
        v.set(1)
    with b.else_():
        v.set(t)
    y[0] = v.get()
    (branch,) = [op for op in b.finish().body.walk() if op.kind == "if"]
    assert [len(block.ops[-1].operands) for block in branch.blocks] == [1, 1]


def test_a_variable_set_on_one_path_only_cannot_be_read():
    b = KernelBuilder("unset")
    v = b.var(name="v")
    with b.if_(b.thread_id() > 3):
        v.set(1)
    with pytest.raises(KernelError, match="v is not set on every path to here"):
        v.get()
    with b.range(4) as i:
        v.set(i)
    with pytest.raises(KernelError, match="v is not set"):
        v.get()


def test_a_variable_ends_with_its_scope():
    b = KernelBuilder("scope")
    with b.range(4):
        v = b.var(0, name="inner")
        v.set(1)
    with pytest.raises(KernelError, match="inner was declared in a scope that has ended"):
        v.get()


def test_while_reads_its_condition_from_the_carried_values():
    b = KernelBuilder("halve")
    y = b.buffer("y", I32, WRITE)
    v = b.var(b.thread_id(), name="v")
    with b.while_(lambda: v.get() > 1):
        v.set(v.get() // 2)
    y[0] = v.get()
    assert body(b.finish()) == text("""
        %0 = thread_id: i32
        while %0
        (%1: i32) {
          %2 = const value=1: i32
          %3 = gt %1, %2: bool
          yield %3
        }
        (%4: i32) {
          %5 = const value=2: i32
          %6 = div %4, %5 nonnegative=True: i32
          yield %6
        }
        -> %7: i32
        %8 = const value=0: i32
        store %8, %7 buffer=0
        """)


def test_a_while_condition_sets_nothing():
    b = KernelBuilder("sets")
    v = b.var(0)

    def condition():
        v.set(v.get() + 1)
        return v.get() < 3

    with pytest.raises(KernelError, match="sets no variable"), b.while_(condition):
        pass


def test_an_else_follows_its_if():
    b = KernelBuilder("order")
    v = b.var(0)
    with b.if_(b.thread_id() > 3):
        v.set(1)
    v.get()
    with pytest.raises(KernelError, match="nothing between"), b.else_():
        pass


def test_index_arithmetic_folds_as_it_is_written():
    b = KernelBuilder("folds")
    y = b.buffer("y", F32, WRITE)
    i = b.thread_id()
    zero = b.const(0, I32)
    assert (i * 1 + 0).same_value(i)
    assert (zero * i).constant == 0
    assert (b.const(3, I32) * 4 + 5).constant == 17
    assert (b.const(7, U32) << 30).constant == 7 << 30 & 0xFFFFFFFF
    assert (b.const(-7, I32) // 2).constant == -3
    y[i * 1 + 0] = b.const(1.5, F32) * 2.0
    assert [op.kind for op in b.finish().body.ops] == ["thread_id", "const", "store"]


def test_a_float_plus_zero_is_kept_because_of_minus_zero():
    b = KernelBuilder("zero")
    x = b.buffer("x", F32, READ)[0]
    assert not (x + 0.0).same_value(x)
    assert (x - 0.0).same_value(x)
    assert (x + -0.0).same_value(x)
    assert (x * 1.0).same_value(x)
    assert (x * 0.0).constant is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda b, x, i: x[i] + i, "operands of f32 and i32 do not mix"),
        (lambda b, x, i: i + 1.5, "1.5 is not an integer of i32"),
        (lambda b, x, i: i / 2, "/ takes floats, not i32"),
        (lambda b, x, i: x[i] // 2, "// takes integers, not f32"),
        (lambda b, x, i: x[b.cast(i, U32)], "indices and bounds are i32, not u32"),
        (lambda b, x, i: b.cast(i, U32) + -1, "-1 does not fit u32"),
        (lambda b, x, i: i + (1 << 31), "does not fit i32"),
        (lambda b, x, i: b.exp(i), "exp takes f32, not i32"),
        (lambda b, x, i: x.load(i, 3), "load of width 3"),
        (lambda b, x, i: x.load(i * 4, 4)[4], "lane 4"),
        (lambda b, x, i: x.store(i, 1.0), "store to x, which is read only"),
        (lambda b, x, i: b.check(i < 3, 0), "check has a code of 1 to 255"),
        (lambda b, x, i: b.group_id(3), "axes 0, 1 and 2"),
        (lambda b, x, i: b.select(i, 1, 2), "select takes a bool condition"),
        (lambda b, x, i: b.var(0).set(1.5), "1.5 is not an integer of i32"),
        (lambda b, x, i: b.var(0).set(x[i]), "is i32 and is set to f32"),
        (lambda b, x, i: bool(i < 3), "not known while the kernel is made"),
        (lambda b, x, i: [10, 20][i], "a compile-time integer is needed"),
        (lambda b, x, i: x.atomic("add", i, 1), "atomic works on i32 and u32, and x is f32"),
        (lambda b, x, i: b.buffer("x", F32, READ), "two buffers named x"),
        (lambda b, x, i: KernelBuilder("other").thread_id() + i, "a value of another kernel"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make, message):
    b = KernelBuilder("bad")
    x = b.buffer("x", F32, READ)
    i = b.thread_id()
    with pytest.raises(KernelError) as caught:
        make(b, x, i)
    assert message in str(caught.value)


def test_emission_errors_name_file_and_line():
    b = KernelBuilder("where")
    with pytest.raises(KernelError, match=r"^test_builder\.py:\d+: kernel where: group_id"):
        b.group_id(7)


@pytest.mark.parametrize("dtype", [F16, BF16, I8, U8])
def test_a_store_of_a_part_of_a_word_is_refused(dtype):
    b = KernelBuilder("narrow")
    y = b.buffer("y", dtype, WRITE)
    with pytest.raises(KernelError, match="sub-word stores are whole words"):
        y[0] = 1
    y.store_word(0, 0xFFFFFFFF)
    assert b.finish().params[0].dtype is U32


def test_bool_buffers_hold_words():
    b = KernelBuilder("flags")
    x, y = b.buffer("x", BOOL, READ), b.buffer("y", BOOL, WRITE)
    i = b.thread_id()
    y[i] = ~x[i] & (i < 3)
    assert x[i].dtype is BOOL
    kinds = [op.kind for op in b.finish().body.walk()]
    assert kinds[-2:] != ["store", "store"]
    assert "cast" in kinds


def test_a_kernel_is_not_finished_inside_a_scope():
    b = KernelBuilder("inside")
    with b.range(3), pytest.raises(KernelError, match="inside a scope"):
        b.finish()

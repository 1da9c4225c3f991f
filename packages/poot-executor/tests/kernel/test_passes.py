"""Each pass on a small kernel, as the text of its operations before and after."""

from __future__ import annotations

import textwrap

import pytest

from poot_executor.dtype import F32, I32, U32
from poot_executor.errors import KernelError
from poot_executor.kernel import Access, Block, Kernel, KernelBuilder, Op, show, verify
from poot_executor.kernel.passes import (
    fold_constants,
    hoist_invariants,
    lower_group_reductions,
    optimize,
    pipeline,
    reduce_strength,
    remove_dead,
    share_subexpressions,
    unroll_loops,
)  # fmt: skip


def new(group_size: int = 64):
    b = KernelBuilder("k", group_size)
    return b, b.buffer("x", F32, Access.READ), b.buffer("y", F32, Access.READ_WRITE)


def shows(kernel: Kernel, expected: str) -> None:
    verify(kernel)
    body = [line[2:] for line in show(kernel).splitlines() if not line.startswith(("kernel", "  param", "  shared "))]
    assert "\n".join(body) == textwrap.dedent(expected).strip("\n")


def kinds(kernel: Kernel, *names: str) -> list[str]:
    return [op.kind for op in kernel.body.walk() if not names or op.kind in names]


def without_folding(monkeypatch) -> None:
    """Let the builder emit what it would fold, so that the passes have something to do."""
    monkeypatch.setattr("poot_executor.kernel.operations.fold", lambda *args: None)


def test_fold_constants_and_known_branches(monkeypatch):
    without_folding(monkeypatch)
    b, x, y = new()
    i = b.thread_id()
    v = b.var(i * 1)
    with b.if_(b.const(3, I32) < 4):
        v.set(i + 0 + b.const(2, I32) * 3)
    with b.range(5, 5):
        v.set(0)
    with b.if_(i > 3):
        y[7] = 1.0
    b.check(b.const(1, I32) == 1, 9)
    y[v.get()] = x[i]
    shows(
        remove_dead(fold_constants(b.finish())),
        """
        %0 = thread_id: i32
        %1 = const value=3: i32
        %2 = const value=6: i32
        %3 = add %0, %2: i32
        %4 = gt %0, %1: bool
        if %4
        {
          %5 = const value=7: i32
          %6 = const value=1.0: f32
          store %5, %6 buffer=1
          yield
        }
        {
          yield
        }
        %7 = load %0 buffer=0 width=1: f32
        store %3, %7 buffer=1
        """,
    )


def test_fold_drops_what_a_loop_carries_unchanged():
    b, x, y = new()
    i = b.thread_id()
    v, total = b.var(i), b.var(0.0)
    with b.range(4) as j:
        v.set(v.get() + 0 * j)
        total.set(total.get() + x[v.get()])
    y[v.get()] = total.get()
    (loop,) = [op for op in fold_constants(b.finish()).body.walk() if op.kind == "for"]
    assert len(loop.results) == 1


def test_fold_takes_scalars_out_of_vectors():
    b, x, y = new()
    v = b.vector(x[0], x[1])
    y[0] = v[1]
    assert kinds(remove_dead(fold_constants(b.finish())), "load", "vector", "extract") == ["load"]


def test_share_subexpressions_follows_scopes():
    b, x, y = new()
    i = b.thread_id()
    with b.if_(i > 3):
        y[i + 1] = x[i] * 2.0
    with b.else_():
        y[1 + b.thread_id()] = x[i] * 3.0
    y[i] = x[i] * 2.0 + y[i] + y[i]
    after = share_subexpressions(b.finish())
    # Neither branch encloses the other, nor what follows; a buffer that is written is read each time.
    assert kinds(after, "thread_id", "load", "add") == [
        "thread_id", "load", "add", "load", "add", "load", "load", "add", "load", "add",
    ]  # fmt: skip


def test_share_subexpressions_knows_that_integer_sums_commute():
    b, x, y = new()
    i, j = b.thread_id(), b.group_id()
    y[i + j] = x[j + i]
    assert kinds(share_subexpressions(b.finish()), "add") == ["add"]


def test_minus_zero_is_not_zero():
    b, _, y = new()
    y[0], y[1] = 0.0, -0.0
    assert len([op for op in share_subexpressions(b.finish()).body.walk() if op.attrs.get("value") == 0.0 and
                op.result.dtype is F32]) == 2  # fmt: skip


def test_remove_dead_keeps_effects_and_what_they_need():
    b, x, y = new()
    i = b.thread_id()
    x[i] * 2.0
    unused, used = b.var(0), b.var(0.0)
    with b.range(8) as j:
        unused.set(unused.get() + j)
        used.set(used.get() + x[j])
    with b.range(8) as j:
        unused.set(unused.get() * 3)
    with b.if_(i > 3):
        unused.set(5)
    y[i] = used.get()
    shows(
        remove_dead(b.finish()),
        """
        %0 = thread_id: i32
        %1 = const value=0: i32
        %2 = const value=8: i32
        %3 = const value=1: i32
        %4 = const value=0.0: f32
        for %1, %2, %3, %4
        (%5: i32, %6: f32) {
          %7 = load %5 buffer=0 width=1: f32
          %8 = add %6, %7: f32
          yield %8
        }
        -> %9: f32
        store %0, %9 buffer=1
        """,
    )


def test_remove_dead_keeps_a_value_that_only_the_next_round_reads():
    b, x, y = new()
    last, total = b.var(0.0), b.var(0.0)
    with b.range(8) as j:
        total.set(total.get() + last.get())
        last.set(x[j])
    y[0] = total.get()
    (loop,) = [op for op in remove_dead(b.finish()).body.walk() if op.kind == "for"]
    assert len(loop.results) == 2


def test_hoist_invariants_and_loads_only_from_loops_that_run():
    b, x, y = new()
    i, n = b.thread_id(), x.length()
    with b.range(4) as j:
        y[i * 7 + j] = x[i]
    with b.range(n) as j:
        y[i * 9 + j] = x[i] + b.cast((i + 1) // n, F32)
    shows(
        hoist_invariants(share_subexpressions(b.finish())),
        """
        %0 = thread_id: i32
        %1 = length buffer=0: i32
        %2 = const value=0: i32
        %3 = const value=4: i32
        %4 = const value=1: i32
        %5 = load %0 buffer=0 width=1: f32
        %6 = const value=7: i32
        %7 = mul %0, %6: i32
        for %2, %3, %4
        (%8: i32) {
          %9 = add %7, %8: i32
          store %9, %5 buffer=1
          yield
        }
        %10 = add %0, %4: i32
        %11 = const value=9: i32
        %12 = mul %0, %11: i32
        for %2, %1, %4
        (%13: i32) {
          %14 = load %0 buffer=0 width=1: f32
          %15 = div %10, %1 nonnegative=True: i32
          %16 = cast %15: f32
          %17 = add %14, %16: f32
          %18 = add %12, %13: i32
          store %18, %17 buffer=1
          yield
        }
        """,
    )


def test_hoist_passes_through_nested_loops_and_leaves_branches_alone():
    b, x, y = new()
    i = b.thread_id()
    with b.range(x.length()) as j, b.range(x.length()) as k:
        with b.if_(k > 3):
            y[i * 5] = x[i]
        y[i * 7 + k] = b.cast(j, F32)
    after = hoist_invariants(b.finish())
    assert "mul" in [op.kind for op in after.body.ops]
    (branch,) = [op for op in after.body.walk() if op.kind == "if"]
    assert "mul" in [op.kind for op in branch.blocks[0].ops]


def test_reduce_strength_of_powers_of_two():
    b, x, y = new()
    t = b.thread_id()
    u = b.bitcast(x.load(t), U32)
    signed = b.bitcast(u, I32)
    y[0] = b.bitcast(u // 8, F32)
    y[1] = b.bitcast(u % 8, F32)
    y[2] = b.bitcast(b.apply("div", signed, b.const(8, I32)), F32)
    y[3] = b.bitcast(signed // 8, F32)
    y[4] = b.bitcast(b.apply("rem", t, b.const(8, I32)), F32)
    y[5] = b.bitcast(signed * 16, F32)
    y[6] = b.bitcast(t // 64, F32)
    y[7] = b.bitcast(t % 64, F32)
    after = kinds(remove_dead(reduce_strength(b.finish())), "div", "rem", "shr", "shl", "and", "mul")
    assert after == ["shr", "and", "div", "shr", "and", "shl"]


def test_reduce_strength_joins_constants_and_decides_by_ranges():
    b, x, y = new()
    t = b.thread_id()
    i = t * 3 * 5 + 2 + 4
    with b.range(0, 10) as j, b.if_((t < 64) & (j >= 0) & (j < 9)):
        y[b.min(i, 2000) + b.max(j, 0)] = x[(t * 4) * 8]
    shows(
        remove_dead(share_subexpressions(fold_constants(reduce_strength(b.finish())))),
        """
        %0 = thread_id: i32
        %1 = const value=5: i32
        %2 = const value=15: i32
        %3 = mul %0, %2: i32
        %4 = const value=6: i32
        %5 = add %3, %4: i32
        %6 = const value=0: i32
        %7 = const value=10: i32
        %8 = const value=1: i32
        for %6, %7, %8
        (%9: i32) {
          %10 = const value=9: i32
          %11 = lt %9, %10: bool
          if %11
          {
            %12 = shl %0, %1: i32
            %13 = load %12 buffer=0 width=1: f32
            %14 = add %5, %9: i32
            store %14, %13 buffer=1
            yield
          }
          {
            yield
          }
          yield
        }
        """,
    )


def test_reduce_strength_keeps_whole_multiples_and_moves_constants_outwards():
    b, x, y = new()
    t, g = b.thread_id(), b.group_id() * 64
    unit = t + 128
    word = unit // 4 * 4 + unit % 4  # unit
    near = (g + t) - g  # t
    y[(word * 8 + 3) + t] = x[word * 8 // 4 * 4] + x[near]
    shows(
        remove_dead(share_subexpressions(fold_constants(reduce_strength(b.finish())))),
        """
        %0 = thread_id: i32
        %1 = const value=3: i32
        %2 = shl %0, %1: i32
        %3 = const value=1024: i32
        %4 = add %2, %3: i32
        %5 = load %4 buffer=0 width=1: f32
        %6 = load %0 buffer=0 width=1: f32
        %7 = add %5, %6: f32
        %8 = const value=1027: i32
        %9 = add %2, %0: i32
        %10 = add %9, %8: i32
        store %10, %7 buffer=1
        """,
    )


def unrolled(low, high, step, unroll) -> Kernel:
    b, x, y = new()
    total = b.var(0.0)
    bounds = [bound(b, x) if callable(bound) else bound for bound in (low, high)]
    with b.range(*bounds, step, unroll=unroll) as i:
        total.set(total.get() + x[i])
    y[0] = total.get()
    kernel = unroll_loops(b.finish())
    verify(kernel)
    assert not any("unroll" in op.attrs for op in kernel.body.walk())
    return kernel


@pytest.mark.parametrize(
    ("low", "high", "step", "unroll", "loops", "loads"),
    [
        (0, 4, 1, 4, 0, 4),
        (0, 4, 1, 8, 0, 4),
        (2, 11, 3, 4, 0, 3),
        (0, 8, 1, 4, 1, 4),
        (0, 11, 1, 4, 1, 4 + 3),
        (0, 4, 1, 1, 1, 1),
        (lambda b, x: b.thread_id(), 256, 64, 4, 0, 4),
        (lambda b, x: b.thread_id(), 512, 64, 4, 1, 4),
        (lambda b, x: b.thread_id(), 250, 64, 4, 2, 4 + 1),
        (0, lambda b, x: x.length(), 1, 4, 2, 4 + 1),
    ],
)
def test_unroll(low, high, step, unroll, loops, loads):
    kernel = unrolled(low, high, step, unroll)
    assert kinds(kernel, "for", "load").count("for") == loops
    assert kinds(kernel, "load").count("load") == loads


def test_unroll_of_an_unknown_count_carries_where_it_stopped():
    shows(
        share_subexpressions(unrolled(0, lambda b, x: x.length(), 1, 2)),
        """
        %0 = length buffer=0: i32
        %1 = const value=0: i32
        %2 = const value=1: i32
        %3 = const value=0.0: f32
        %4 = const value=-1: i32
        %5 = add %0, %4: i32
        %6 = const value=2: i32
        for %1, %5, %6, %1, %3
        (%7: i32, %8: i32, %9: f32) {
          %10 = load %7 buffer=0 width=1: f32
          %11 = add %9, %10: f32
          %12 = add %7, %2: i32
          %13 = load %12 buffer=0 width=1: f32
          %14 = add %11, %13: f32
          %15 = add %7, %6: i32
          yield %15, %14
        }
        -> %16: i32, %17: f32
        for %16, %0, %2, %17
        (%18: i32, %19: f32) {
          %20 = load %18 buffer=0 width=1: f32
          %21 = add %19, %20: f32
          yield %21
        }
        -> %22: f32
        store %1, %22 buffer=1
        """,
    )


def reducing(group_size: int, times: int = 1, nested: bool = False) -> Kernel:
    b, x, y = new(group_size)
    t = b.thread_id()
    for _ in range(times):
        y[t] = b.group_sum(x[t])
    if nested:
        with b.range(3) as i:
            y[i] = b.group_max(x[t])
    return b.finish()


def test_a_group_of_one_subgroup_needs_no_shared_memory():
    after = lower_group_reductions(reducing(32), subgroup=True, subgroup_width=32)
    assert after.shared == ()
    assert kinds(after, "subgroup_sum", "barrier") == ["subgroup_sum"]


def test_subgroups_leave_their_sums_in_shared_memory():
    after = lower_group_reductions(reducing(64), subgroup=True, subgroup_width=32)
    shows(
        after,
        """
        %0 = thread_id: i32
        %1 = load %0 buffer=0 width=1: f32
        %2 = subgroup_sum %1: f32
        %3 = lane_id: i32
        %4 = const value=0: i32
        %5 = eq %3, %4: bool
        %6 = subgroup_id: i32
        if %5
        {
          shared_store %6, %2 array=0
          yield
        }
        {
          yield
        }
        barrier
        %7 = const value=0: i32
        %8 = shared_load %7 array=0: f32
        %9 = const value=1: i32
        %10 = shared_load %9 array=0: f32
        %11 = add %8, %10: f32
        store %0, %11 buffer=1
        """,
    )
    assert [(array.name, array.count) for array in after.shared] == [("group_f32_0", 2)]


def test_without_subgroups_a_tree_and_two_arrays_in_turn():
    after = lower_group_reductions(reducing(6, 3, nested=True), subgroup=False, subgroup_width=None)
    names = [(array.name, array.count) for array in after.shared]
    assert names == [("group_f32_0", 6), ("group_f32_1", 6), ("group_f32_nested", 6)]
    stored = [op.attrs["array"] for op in after.body.walk() if op.kind == "shared_store"]
    assert stored == [0] * 4 + [1] * 4 + [0] * 4 + [2] * 4
    # Four barriers a reduction, and one more after the reading in the loop.
    assert kinds(after).count("barrier") == 4 * 4 + 1


def test_subgroups_of_unknown_width_are_not_relied_on():
    after = lower_group_reductions(reducing(64), subgroup=True, subgroup_width=None)
    assert kinds(after, "subgroup_sum", "lane_id") == []


def test_optimize_with_check_names_the_pass_that_breaks_a_kernel(monkeypatch):
    def breaks(kernel: Kernel) -> Kernel:
        return Kernel("k", kernel.params, kernel.shared, 64, Block((), (*kernel.body.ops, Op("yield"))))

    monkeypatch.setattr(pipeline, "PASSES", (remove_dead, breaks))
    with pytest.raises(KernelError, match="after breaks: kernel k"):
        optimize(reducing(64), subgroup=True, subgroup_width=32, check=True)


def test_optimize_is_deterministic_and_settles():
    first, second = (optimize(reducing(64, 2, True), subgroup=True, subgroup_width=32) for _ in range(2))
    assert str(first) == str(second)

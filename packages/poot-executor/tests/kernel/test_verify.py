"""The verifier: each thing that a kernel must hold to, broken by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poot_executor.dtype import BOOL, F16, F32, I32, U32
from poot_executor.errors import KernelError
from poot_executor.kernel import (
    Access,
    Block,
    Kernel,
    KernelBuilder,
    KType,
    Op,
    Param,
    SharedArray,
    Val,
    verify,
)  # fmt: skip


def const(value: int = 0) -> Op:
    return Op("const", (), (Val(KType(I32)),), {"value": value}, (), "here.py:3")


def yields(*values: Val) -> Op:
    return Op("yield", values)


def kernel(*ops: Op, shared: tuple[SharedArray, ...] = (), group_size: int = 64) -> Kernel:
    params = (Param("x", F32, Access.READ), Param("y", F32, Access.READ_WRITE))
    return Kernel("k", params, shared, group_size, Block((), ops))


def refused(broken: Kernel, message: str) -> None:
    with pytest.raises(KernelError) as caught:
        verify(broken)
    assert message in str(caught.value)


def test_a_use_before_its_definition():
    c = const()
    negated = Op("neg", (c.result,), (Val(KType(I32)),), {}, (), "here.py:4")
    refused(kernel(negated, c), "kernel k, here.py:4: neg: operand 0 (i32) is not defined before")


def test_a_use_outside_the_block_that_defines_it():
    c, inner = const(), const()
    flag = Op("eq", (c.result, c.result), (Val(KType(BOOL)),))
    branch = Op("if", (flag.result,), (), {}, (Block((), (inner, yields())), Block((), (yields(),))))
    after = Op("neg", (inner.result,), (Val(KType(I32)),))
    refused(kernel(c, flag, branch, after), "operand 0 (i32) is not visible here")


def test_two_definitions_of_a_value():
    c = const()
    refused(kernel(c, c), "already defined")


def test_wrong_result_types():
    c = const()
    wrong = Op("add", (c.result, c.result), (Val(KType(F32)),))
    refused(kernel(c, wrong), "add: gives (i32), not (f32)")


def test_an_unknown_operation():
    refused(kernel(Op("frobnicate")), "there is no such operation")


@pytest.mark.parametrize("value", [1.0, True, 1 << 31])
def test_a_constant_of_the_wrong_kind(value):
    refused(kernel(replace(const(), attrs={"value": value})), "const")


def test_a_store_to_a_buffer_that_is_only_read():
    c = const()
    number = Op("const", (), (Val(KType(F32)),), {"value": 1.0})
    store = Op("store", (c.result, number.result), (), {"buffer": 0})
    refused(kernel(c, number, store), "store to x, which is read only")


def test_a_buffer_that_is_not_there():
    c = const()
    load = Op("load", (c.result,), (Val(KType(F32)),), {"buffer": 2, "width": 1})
    refused(kernel(c, load), "buffer 2 is none of the 2 parameters")


def test_a_vector_access_off_its_multiple():
    c = const(2)
    load = Op("load", (c.result,), (Val(KType(F32, 4)),), {"buffer": 0, "width": 4})
    refused(kernel(c, load), "width 4 at index 2, no multiple of it")


@pytest.mark.parametrize("index", [-1, 4])
def test_a_constant_index_outside_a_shared_array(index):
    c = const(index)
    load = Op("shared_load", (c.result,), (Val(KType(F32)),), {"array": 0})
    refused(kernel(c, load, shared=(SharedArray("s", F32, 4),)), f"index {index} is outside")


@pytest.mark.parametrize(
    ("shared", "group_size", "message"),
    [
        ((SharedArray("s", F32, 0),), 64, "has 0 elements"),
        ((SharedArray("s", F16, 4),), 64, "has f16 elements"),
        ((SharedArray("s", F32, 4), SharedArray("s", U32, 4)), 64, "two shared arrays of one name"),
        ((), 0, "1 to 1024 threads, not 0"),
        ((), 1025, "1 to 1024 threads, not 1025"),
    ],
)
def test_declarations(shared, group_size, message):
    refused(kernel(shared=shared, group_size=group_size), message)


def test_loops_match_what_they_carry():
    low, high, step = const(0), const(3), const(1)
    bounds = (low.result, high.result, step.result)
    index = Val(KType(I32))
    fits = Op("for", bounds, (), {}, (Block((index,), (yields(),)),))
    verify(kernel(low, high, step, fits))
    no_end = replace(fits, blocks=(Block((index,), ()),))
    refused(kernel(low, high, step, no_end), "a nested block ends in yield")
    yielding = replace(fits, blocks=(Block((index,), (yields(index),)),))
    refused(kernel(low, high, step, yielding), "values are (i32), where () belong")
    early = replace(fits, blocks=(Block((index,), (yields(), yields())),))
    refused(kernel(low, high, step, early), "operations follow it")
    resulting = replace(fits, results=(Val(KType(I32)),))
    refused(kernel(low, high, step, resulting), "results are (i32), where () belong")
    still = const(0)
    refused(kernel(low, high, still, replace(fits, operands=(low.result, high.result, still.result))),
            "step 0 is not positive")  # fmt: skip


def test_a_kernels_body_has_no_yield():
    refused(kernel(yields()), "a kernel's body has none")


# Uniform control flow


def collective(make) -> None:
    b = KernelBuilder("k")
    x, y = b.buffer("x", I32, Access.READ), b.buffer("y", I32, Access.READ_WRITE)
    make(b, x, y, b.shared("s", I32, 64))
    b.finish()


def under(condition):
    """A barrier under a condition."""

    def make(b, x, y, s):
        with b.if_(condition(b, x, y, s)):
            b.barrier()

    return make


def carried(set_to, bound=lambda b: b.const(3, I32)):
    """A barrier under a condition on what a loop carries."""

    def make(b, x, y, s):
        v = b.var(0)
        with b.range(bound(b)) as i:
            v.set(set_to(b, v, i))
        with b.if_(v.get() > 1):
            b.barrier()

    return make


def late(b, x, y, s):
    """A value that varies from the loop's second round on."""
    v, w = b.var(0), b.var(0)
    with b.range(4):
        with b.if_(w.get() > 1):
            b.barrier()
        w.set(v.get())
        v.set(b.thread_id())


def varying_while(b, x, y, s):
    v = b.var(b.thread_id())
    with b.while_(lambda: v.get() > 0):
        v.set(v.get() - 1)
        b.barrier()


UNIFORM = [
    under(lambda b, x, y, s: b.group_id() > 1),
    under(lambda b, x, y, s: x[b.group_id()] > 1),
    under(lambda b, x, y, s: y[3] > 1),
    under(lambda b, x, y, s: s[3] > 1),
    under(lambda b, x, y, s: x.length() > 1),
    under(lambda b, x, y, s: b.group_sum(b.thread_id()) > 1),
    carried(lambda b, v, i: v.get() + i),
]
VARYING = [
    under(lambda b, x, y, s: b.thread_id() > 1),
    under(lambda b, x, y, s: x[b.thread_id()] > 1),
    under(lambda b, x, y, s: y.atomic("add", 0, 1) > 1),
    under(lambda b, x, y, s: b.subgroup_sum(b.thread_id()) > 1),
    under(lambda b, x, y, s: b.lane_id() > 1),
    carried(lambda b, v, i: v.get() + b.thread_id()),
    carried(lambda b, v, i: v.get() + 1, bound=lambda b: b.thread_id()),
    late,
    varying_while,
]


@pytest.mark.parametrize("make", UNIFORM)
def test_a_barrier_in_uniform_control_flow(make):
    collective(make)


@pytest.mark.parametrize("make", VARYING)
def test_a_barrier_in_varying_control_flow_is_refused(make):
    with pytest.raises(KernelError, match=r"test_verify\.py:\d+: barrier: is in control flow that"):
        collective(make)


@pytest.mark.parametrize("kind", ["group_sum", "subgroup_max", "subgroup_shuffle_xor"])
def test_collectives_are_held_to_it_too(kind):
    def make(b, x, y, s):
        with b.if_(b.thread_id() > 1):
            b.emit(kind, x[0], **({"mask": 1} if kind.endswith("xor") else {}))

    with pytest.raises(KernelError, match=f"{kind}: is in control flow"):
        collective(make)


def test_a_subgroup_that_is_the_group_reduces_uniformly():
    b = KernelBuilder("k", group_size=32)
    with b.if_(b.subgroup_sum(b.thread_id()) > 1):
        b.barrier()
    with pytest.raises(KernelError, match="is in control flow"):
        b.finish()
    loose = KernelBuilder("k", group_size=32)
    total = loose.subgroup_sum(loose.thread_id())
    kernel = loose.finish()
    ops = (*kernel.body.ops, const(1))
    flag = Op("gt", (total.val, ops[-1].result), (Val(KType(BOOL)),))
    branch = Op("if", (flag.result,), (), {}, (Block((), (Op("barrier"), yields())), Block((), (yields(),))))
    whole = replace(kernel, body=Block((), (*ops, flag, branch)))
    verify(whole, subgroup_width=32)
    with pytest.raises(KernelError, match="is in control flow"):
        verify(whole, subgroup_width=8)

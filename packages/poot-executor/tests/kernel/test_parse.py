"""Kernels from text: what `show` writes is read back, and nothing else is."""

import pytest

from poot_executor.compile import Caps, Target, compile
from poot_executor.dtype import F32, I32
from poot_executor.errors import KernelError
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.kernel.parse import parse
from poot_executor.kernel.verify import verify
from poot_executor.weights import WeightKey


def kernels(caps):
    """Kernels with every kind of control flow: loops, conditions, subgroups, checks."""
    b = Builder("several")
    x = b.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((3, 64), F32))
    at = b.slot(SlotKey(SlotKind.POS), TensorType((3,), I32))
    y = p.matmul(x, p.transpose(b.weight(WeightKey(None, "w"), TensorType((96, 64), F32)), (1, 0)))
    b.output("best", p.argmax(y, 1))
    b.output("row", p.gather(y, at))
    b.output("sum", p.sum_(p.tanh(y), 1))
    return {d.kernel for d in compile(b.build(), Target("paper", caps)).dispatches}


@pytest.mark.parametrize("caps", [Caps(), Caps(subgroup_width=32, features=frozenset({"subgroup"}))])
def test_the_text_of_a_kernel_is_read_back(caps):
    found = kernels(caps)
    assert {op.kind for k in found for op in k.body.walk()} >= {"for", "if", "yield", "barrier", "const", "check"}
    for kernel in found:
        read = parse(str(kernel))
        assert str(read) == str(kernel)
        assert read.digest() == kernel.digest()
        assert (read.params, read.shared, read.group_size, read.groups, read.resident) == (
            kernel.params, kernel.shared, kernel.group_size, kernel.groups, kernel.resident
        )  # fmt: skip
        verify(read, caps.subgroup_width)
        for mine, theirs in zip(read.body.walk(), kernel.body.walk(), strict=True):
            assert {k: (type(v), v) for k, v in mine.attrs.items()} == {
                k: (type(v), v) for k, v in theirs.attrs.items()
            }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kernel",
        "kernel k group_size=x\n",
        "kernel k group_size=32 groups=1x2\n",
        "kernel k group_size=32\n  param 1 a: f32[4] read\n",
        "kernel k group_size=32\n  param 0 a: f33[4] read\n",
        "kernel k group_size=32\n  param 0 a: f32[4] written\n",
        "kernel k group_size=32\n  %1 = thread_id: i32\n",
        "kernel k group_size=32\n  %0 = thread_id: i32\n  %0 = thread_id: i32\n",
        "kernel k group_size=32\n  %0 = neg %1: i32\n",
        "kernel k group_size=32\n  %0 = thread_id\n",
        "kernel k group_size=32\n  barrier now\n",
        "kernel k group_size=32\n  %0 = const value=True: bool\n  if %0\n  {\n    yield\n",
        "kernel k group_size=32\n  }\n",
        "kernel k group_size=32\n  barrier\n  }\n  barrier\n",
    ],
)
def test_what_is_no_kernel_is_refused(text):
    with pytest.raises(KernelError, match="cannot be read"):
        parse(text)

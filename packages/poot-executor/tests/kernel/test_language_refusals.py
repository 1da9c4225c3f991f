"""What the language refuses: each names the file, the line and what is not expressible."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from poot_executor.errors import KernelError
from poot_executor.kernel.lang import In, Local, Out, barrier, device, f16, f32, group_sum, kernel, thread_id

# The line that is at fault ends in the mark.


@device
def recursive(v):
    return recursive(v)  # mark


@device
def returns_early(v):
    if v > 0.0:
        return v  # mark
    return -v


def helper(v):
    return v


@kernel
def breaks(x: In[f32], y: Out[f32]):
    for i in range(4):
        if x[i] > 0.0:
            break  # mark


@kernel
def tries(x: In[f32], y: Out[f32]):
    try:  # mark
        y[0] = x[0]
    finally:
        pass


@kernel
def undefined(x: In[f32], y: Out[f32]):
    y[0] = nowhere  # noqa: F821 # mark


@kernel
def mixes(x: In[f32], y: Out[f32]):
    v = x[0]
    y[0] = v + thread_id()  # mark


@kernel
def returns(x: In[f32], y: Out[f32]):
    if x[0] > 0.0:
        return  # mark


@kernel
def middle(x: In[f32], y: Out[f32]):
    return  # mark
    y[0] = x[0]


@kernel
def one_branch(x: In[f32], y: Out[f32]):
    if x[0] > 0.0:
        v = 1.0
    y[0] = v  # mark


@kernel
def loop_only(x: In[f32], y: Out[f32]):
    for i in range(4):
        v = x[i]
    y[0] = v  # mark


@kernel
def retyped(x: In[f32], y: Out[f32]):
    total = 0
    for i in range(4):  # mark
        total = total + x[i]


@kernel
def runtime_index(x: In[f32], y: Out[f32]):
    acc = Local(f32, 4)
    for i in range(4):
        acc[i] = 1.0  # mark


@kernel
def runtime_list(x: In[f32], y: Out[f32]):
    y[0] = [1.0, 2.0][thread_id()]  # mark


@kernel
def over_buffer(x: In[f32], y: Out[f32]):
    for v in x:  # mark
        y[0] = v


@kernel
def calls_python(x: In[f32], y: Out[f32]):
    y[0] = helper(x[0])  # mark


@kernel
def recurses(x: In[f32], y: Out[f32]):
    y[0] = recursive(x[0])


@kernel
def early(x: In[f32], y: Out[f32]):
    y[0] = returns_early(x[0])


@kernel
def comprehends(x: In[f32], y: Out[f32]):
    y[0] = sum([v for v in x])  # noqa: C416 # mark


@kernel
def tuple_in_loop(x: In[f32], y: Out[f32]):
    pair = (1.0, 2.0)
    for i in range(4):
        y[i] = pair[0]  # mark
        pair = (2.0, 1.0)


@kernel
def endless(x: In[f32], y: Out[f32]):
    while True:  # mark
        y[0] = 1.0


@kernel
def asserts(x: In[f32], y: Out[f32]):
    assert x[0] > 0.0  # mark


@kernel
def divides_by_zero(x: In[f32], y: Out[f32], *, n: int = 0):
    y[0] = x[4 // n]  # mark


@kernel
def stores_short(x: In[f16], y: Out[f16]):
    y[0] = x[0]  # mark


@kernel
def stores_constant(x: In[f32], y: In[f32]):
    y[0] = x[0]  # mark


@kernel
def lambdas(x: In[f32], y: Out[f32]):
    y[0] = (lambda v: v)(x[0])  # noqa: PLC3002 # mark


@kernel
def barrier_in_branch(x: In[f32], y: Out[f32]):
    if thread_id() > 3:
        barrier()  # mark


@kernel
def sums_in_branch(x: In[f32], y: Out[f32]):
    if thread_id() > 3:
        y[0] = group_sum(x[0])  # mark


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (breaks, "break cannot be expressed in a kernel"),
        (tries, "try cannot be expressed in a kernel"),
        (undefined, "nowhere is not defined"),
        (mixes, "operands of f32 and i32 do not mix"),
        (returns, "a return within a runtime loop or branch"),
        (middle, "a return is the last statement"),
        (one_branch, "v is not set on every path to here"),
        (loop_only, "v is set only inside a loop, which may not run"),
        (retyped, "i32 and f32 do not mix"),
        (runtime_index, "compile-time indices"),
        (runtime_list, "is known at compile time and its index is not"),
        (over_buffer, "a for goes over range(...), or over static(...)"),
        (calls_python, "helper is Python and cannot take runtime values"),
        (recurses, "recursive: device functions cannot be recursive"),
        (early, "a return within a runtime loop or branch"),
        (comprehends, "x is not known at compile time"),
        (tuple_in_loop, "pair is set by a runtime loop, and was no number before it"),
        (endless, "always true does not end"),
        (asserts, "an assert is about compile-time values"),
        (divides_by_zero, "4 // n: integer division or modulo by zero"),
        (stores_short, "sub-word stores are whole words"),
        (stores_constant, "store to y, which is read only"),
        (lambdas, "a lambda cannot be expressed in a kernel"),
        (barrier_in_branch, "barrier: is in control flow"),
        (sums_in_branch, "group_sum: is in control flow"),
    ],
)
def test_a_refusal_names_the_line_and_what_is_not_expressible(source, message):
    with pytest.raises(KernelError) as caught:
        source.specialize()
    assert message in str(caught.value)
    where = re.search(r"test_language_refusals\.py:(\d+)", str(caught.value))
    assert where is not None
    line = Path(__file__).read_text(encoding="utf-8").splitlines()[int(where[1]) - 1]
    assert line.endswith("# mark") or source is retyped, line


@pytest.mark.parametrize("annotation", ["float", "f32", "In"])
def test_a_buffer_parameter_is_annotated(annotation, tmp_path):
    path = tmp_path / "annotated.py"
    path.write_text(
        "from __future__ import annotations\n"
        "from poot_executor.kernel.lang import *\n"
        f"@kernel\ndef wrong(x: {annotation}):\n    pass\n",
        encoding="utf-8",
    )
    names: dict = {}
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), names)
    with pytest.raises(KernelError, match=r"annotated\.py:4: .*x is annotated In"):
        names["wrong"].specialize()

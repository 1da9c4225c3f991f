"""Matrix fragments in kernel IR: what they are made of, what is refused, and their text."""

from __future__ import annotations

import pytest

from poot_executor.dtype import BF16, F16, F32, I8, I32, U32, DType
from poot_executor.errors import KernelError
from poot_executor.kernel import Access, KernelBuilder, verify
from poot_executor.kernel.fragments import FragmentShape, FragmentType, Use
from poot_executor.kernel.parse import parse
from poot_executor.kernel.passes import optimize
from poot_executor.known_fragments import fragment_case

HALF = FragmentShape(16, 16, 16, F16, F32)


@pytest.fixture
def b():
    return KernelBuilder("fragments", 32)


def factors(b, shape=HALF, words=256):
    memory = b.shared("memory", U32, words)
    return memory.load_fragment(0, shape.a, 8), memory.load_fragment(0, shape.b, 8, "column")


@pytest.mark.parametrize("element", [F16, BF16, I8], ids=str)
def test_the_text_of_a_kernel_with_fragments_is_read_back(element):
    sums = I32 if element is I8 else F32
    kernel = fragment_case(FragmentShape(16, 8, 16, element, sums), 32).kernel
    assert f"{element}_b_16x8" in str(kernel) and f"{sums}_sum_16x8" in str(kernel)
    read = parse(str(kernel))
    assert read.digest() == kernel.digest()
    verify(read, 32)


def test_passes_keep_what_is_stored():
    kernel = fragment_case(HALF, 32).kernel
    kept = optimize(kernel, subgroup=True, subgroup_width=32, check=True)
    kinds = [op.kind for op in kept.body.walk()]
    assert kinds.count("fragment_store") == 1 and kinds.count("fragment_mma") >= 1


@pytest.mark.parametrize(
    ("dtype", "use", "rows", "columns", "problem"),
    [
        (F32, Use.A, 16, 16, "no fragment f32 of 16 by 16 for a"),
        (F16, Use.SUM, 16, 16, "no fragment f16 of 16 by 16 for sum"),
        (F16, Use.A, 12, 16, "no fragment f16 of 12 by 16"),
        (F16, Use.A, 16, 1, "lines 8 words apart"),
    ],
)
def test_types_that_no_fragment_has(b, dtype: DType, use, rows, columns, problem):
    memory = b.shared("memory", U32, 64)
    with pytest.raises(KernelError, match=problem):
        memory.load_fragment(0, FragmentType(dtype, 0, use, rows, columns), 8)


def test_factors_and_sums_must_fit(b):
    x, y = factors(b)
    zero = b.fragment_zero(HALF.sum)
    b.fragment_mma(x, y, zero)
    with pytest.raises(KernelError, match=r"f16_b_16x16 times f16_a_16x16 is not added to f32_sum_16x16"):
        b.fragment_mma(y, x, zero)
    with pytest.raises(KernelError, match="is not added to i32_sum"):
        b.fragment_mma(x, y, b.fragment_zero(FragmentShape(16, 16, 16, I8, I32).sum))
    with pytest.raises(KernelError, match="three fragments"):
        b.fragment_mma(x, y, b.const(0.0, F32))
    with pytest.raises(KernelError, match="has fragments of sums"):
        b.fragment_fma(x, x, x)


def test_no_other_operation_takes_a_fragment(b):
    zero = b.fragment_zero(HALF.sum)
    for kind in ("add", "neg", "exp"):
        with pytest.raises(KernelError, match=f"{kind} takes no fragments"):
            b.emit(kind, zero) if kind != "add" else b.emit(kind, zero, zero)
    with pytest.raises(KernelError, match="takes no fragments"):
        b.select(b.thread_id() < 1, zero, zero)


def test_memory_has_words_for_factors_and_elements_for_sums(b):
    zero = b.fragment_zero(HALF.sum)
    words, floats = b.shared("words", U32, 512), b.shared("floats", F32, 512)
    with pytest.raises(KernelError, match="floats is f32"):
        floats.load_fragment(0, HALF.a, 8)
    with pytest.raises(KernelError, match="words is u32"):
        words.store_fragment(0, zero, 16)
    with pytest.raises(KernelError, match="lines 8 words apart overlap"):
        floats.store_fragment(0, zero, 8)
    given = b.buffer("given", F32, Access.READ)
    with pytest.raises(KernelError, match="read only"):
        given.store_fragment(0, zero, 16)
    with pytest.raises(KernelError, match="a row or a column"):
        floats.load_fragment(0, HALF.sum, 0, "diagonal")


def test_fragments_are_in_uniform_control_flow(b):
    with b.if_(b.thread_id() < 16):
        factors(b)
    with pytest.raises(KernelError, match="fragment_load: is in control flow that threads of a group may not share"):
        b.finish()

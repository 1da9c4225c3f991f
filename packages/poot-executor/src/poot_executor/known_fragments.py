"""Known answers of opaque matrix fragments: a kernel for each product that a target says it has.

The kernel does what contractions do with fragments. Factors come from shared memory, padded, in lines of either kind;
sums are carried by a loop; a fragment whose lines are all one (a stride of 0) scales them; they are stored by rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.fragments import FragmentShape
from poot_executor.kernel.ir import Access
from poot_executor.known_answers import Case, Words

GROUP = 128
"""Threads of a group: whole subgroups of any width."""
GROUPS = 6
"""Groups that have numbers of their own; further ones begin again."""
ROUNDS = 2
"""Products that a loop adds up."""
PAD = 4
"""Words between lines."""


def fragment_case(shape: FragmentShape, width: int) -> Case:
    """A product of that shape on a device whose subgroups have so many threads.

    Each subgroup of a group multiplies the same a by a b of its own, `ROUNDS` times, adds 1 and multiplies row r by r +
    1. The numbers are small integers, whose sums are exact in f32 and i32 and not in f16.
    """
    b = KernelBuilder(f"known_answer_{shape}".replace(" ", "_"), GROUP)
    source = b.buffer("source", DType.U32, Access.READ)
    target = b.buffer("target", shape.sums, Access.READ_WRITE)
    subgroups, count = GROUP // width, shape.rows * shape.columns
    held = shape.depth // shape.a.per_word
    line, left_words, right_words = held + PAD, shape.rows * held, shape.columns * held
    left = b.shared("left", DType.U32, shape.rows * line)
    right = b.shared("right", DType.U32, subgroups * shape.columns * line)
    scale = b.shared("scale", shape.sums, shape.rows)
    results = b.shared("results", shape.sums, subgroups * count)
    thread, first = b.thread_id(), b.group_id() % GROUPS * (left_words + subgroups * right_words)
    with b.range(thread, left_words, GROUP) as i:
        left[i // held * line + i % held] = source[first + i]
    with b.range(thread, subgroups * right_words, GROUP) as i:
        right[i // held * line + i % held] = source[first + (left_words + i)]
    with b.range(thread, shape.rows, GROUP) as i:
        scale[i] = b.cast(i + 1, shape.sums)
    b.barrier()
    place = b.subgroup_id()
    total = b.var(b.fragment_zero(shape.sum), name="sums")
    with b.range(ROUNDS):
        x = left.load_fragment(0, shape.a, line)
        y = right.load_fragment(place * (shape.columns * line), shape.b, line, "column")
        total.set(b.fragment_mma(x, y, total.get()))
    rows = scale.load_fragment(0, shape.sum, 0, "column")
    results.store_fragment(place * count, b.fragment_fma(total.get(), rows, rows), shape.columns)
    b.barrier()
    with b.range(thread, subgroups * count, GROUP) as i:
        target[b.group_id() * (subgroups * count) + i] = results[i]

    numbers = _numbers(GROUPS * (left_words + subgroups * right_words) * shape.a.per_word)
    given = _packed(numbers, shape.element)
    groups = -(-given.size // GROUP)
    answer = _answer(shape, numbers.reshape(GROUPS, -1).astype(np.int64), subgroups)
    expected = np.resize(answer, (groups, subgroups * count)).reshape(-1).view(np.uint32)

    def wrong(_given: Words, got: Words) -> str | None:
        return None if np.array_equal(got, expected) else f"products {shape} are wrong"

    # As many words as the groups have threads, so that each is launched.
    return Case(str(shape), b.finish(), np.resize(given, groups * GROUP), count // width, wrong)


def _numbers(count: int) -> NDArray[np.int8]:
    """Integers from −64 to 63, which do not repeat soon."""
    return ((np.arange(count, dtype=np.int64) * 2654435761 >> 9) % 128 - 64).astype(np.int8)


def _packed(numbers: NDArray[np.int8], element: DType) -> Words:
    """Words of the numbers as elements."""
    if element is DType.I8:
        return numbers.view(np.uint32)
    if element is DType.F16:
        return numbers.astype(np.float16).view(np.uint32)
    return (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint32)


def _answer(shape: FragmentShape, numbers: NDArray[np.int64], subgroups: int) -> NDArray[np.generic]:
    """What each group's subgroups store, by its row of numbers: a by rows, then the columns of each b."""
    held = shape.rows * shape.depth
    left = numbers[:, :held].reshape(GROUPS, 1, shape.rows, shape.depth)
    right = numbers[:, held:].reshape(GROUPS, subgroups, shape.columns, shape.depth)
    scale = np.arange(1, shape.rows + 1)[:, None]
    total = (ROUNDS * (left @ right.transpose(0, 1, 3, 2)) + 1) * scale
    return total.astype(shape.sums.numpy)

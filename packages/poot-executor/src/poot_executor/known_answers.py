"""Known answers: a kernel for each optional feature of a target, run when a device is opened. A wrong answer switches
the feature off.

Which of the cases a device tries, and by what name its emitter asks for them, is the device's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_executor.device import BoundArg, BufferKind, BufferSlice, Dispatch
from poot_executor.dtype import DType
from poot_executor.errors import Poisoned
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel_device import KernelDevice

GROUP = 64
"""Threads of a group in most cases."""

SUBGROUP = "subgroup"
DOT4 = "dot4"
"""Features of the kernel operation table."""

PACK_HALF = "pack_half"
"""The target's own conversion of f32 to f16 rounds to nearest even, overflows to infinity, keeps denormals and NaN."""

UNPACK_HALF = "unpack_half"
"""The target's own conversion of f16 to f32 is exact, denormals, infinities and NaN included."""

UNBOUNDED_LOOPS = "unbounded_loops"
"""Loops run for as long as they are told to. Mesa's llvmpipe ends those of a thread after `LOOP_LIMIT` rounds,
silently.
"""

LOOP_LIMIT = 65_535
"""Rounds of all loops of one thread together, nested ones multiplied (LP_MAX_TGSI_LOOP_ITERATIONS in Mesa's
gallivm).
"""

Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Case:
    """`kernel` maps each word of `given` to `per_thread` words, a thread each; `wrong` says what is wrong with them,
    None where nothing is.
    """

    feature: str
    kernel: Kernel
    given: Words
    per_thread: int
    wrong: Callable[[Words, Words], str | None]


def make_case(
    feature: str,
    given: Words,
    body: Callable[[KernelBuilder, Handle], Sequence[Handle]],
    count: int,
    wrong: Callable[[Words, Words], str | None],
) -> Case:
    """A case whose kernel maps a word to `count` words by `body`."""
    b = KernelBuilder(f"known_answer_{feature}", GROUP)
    source = b.buffer("source", DType.U32, Access.READ)
    target = b.buffer("target", DType.U32, Access.READ_WRITE)
    i = b.group_id() * GROUP + b.thread_id()
    for k, value in enumerate(body(b, source[i])):
        target[i * count + k] = value
    return Case(feature, b.finish(), given, count, wrong)


def answer_of(device: KernelDevice, case: Case) -> Words:
    """What the case's kernel gives on a device. Raises what the device raises, having given everything back that a
    device which is still there takes.
    """
    given = device.allocate(BufferKind.STAGING, case.given.nbytes)
    answer = device.allocate(BufferKind.STAGING, case.given.nbytes * case.per_thread)
    args = tuple(BoundArg(BufferSlice(b, 0, b.nbytes), b.nbytes // 4) for b in (given, answer))
    try:
        dispatch = Dispatch(device.loaded(case.kernel), args, (case.given.size // case.kernel.group_size, 1, 1), 1)
        device.write(given, case.given)
        recording = device.record([dispatch], BufferSlice(answer, 0, answer.nbytes))
        device.replay(recording)
        device.synchronize()
        out = np.empty(answer.nbytes // 4, np.uint32)
        device.read(answer, out)
        device.release(recording)
        return out
    finally:
        # A device that was lost takes nothing back, and the first error is the one to see.
        with suppress(Poisoned):
            device.free(given)
            device.free(answer)


def cases() -> tuple[Case, ...]:
    """The features that a device may have, each with its kernel and answers."""
    halves = _halves()
    mixed = mixed_words()
    return (
        make_case(SUBGROUP, mixed, _subgroup, 8, _wrong_subgroup),
        make_case(DOT4, mixed, _dot4, 1, _wrong_dot4),
        make_case(UNPACK_HALF, halves, _unpack, 1, _wrong_unpack),
        make_case(PACK_HALF, _around(halves), _pack, 2, _wrong_pack),
        make_case(UNBOUNDED_LOOPS, np.full(GROUP, LOOP_LIMIT + 1000, np.uint32), _loop, 1, _wrong_loop),
    )


def mixed_words() -> Words:
    """Words of all kinds of bits, a few thousand."""
    return np.arange(4096, dtype=np.uint32) * np.uint32(2654435761)


# Subgroups


def subgroup_width(answer: Words) -> int:
    """The width that the subgroup case's threads report; 0 where they disagree."""
    sizes = answer.reshape(-1, 8)[:, 0]
    return int(sizes[0]) if (sizes == sizes[0]).all() else 0


def _subgroup(b: KernelBuilder, word: Handle) -> list[Handle]:
    lane, size = b.lane_id(), b.subgroup_size()
    signed, number = b.bitcast(word, DType.I32), b.cast(word >> 20, DType.F32)
    return [
        b.bitcast(size, DType.U32),
        b.bitcast(b.subgroup_id() * 256 + lane, DType.U32),
        b.subgroup_sum(word),
        b.bitcast(b.subgroup_max(signed), DType.U32),
        b.subgroup_min(word),
        b.bitcast(b.subgroup_sum(number), DType.U32),
        b.subgroup_shuffle(word, (lane * 3 + 1) % size),
        b.subgroup_shuffle(word, 1) ^ b.subgroup_shuffle_xor(word, 2),
    ]


def _wrong_subgroup(given: Words, answer: Words) -> str | None:
    width = subgroup_width(answer)
    if width < 4 or GROUP % width:
        return f"subgroups of {width} threads"
    lanes = np.arange(width)
    rows = given.reshape(-1, width)
    thread = np.arange(given.size) % GROUP
    numbers = (rows >> np.uint32(20)).astype(np.float32).sum(axis=1)  # exact: integers below 2^19
    expected = (
        thread // width * 256 + thread % width,
        np.repeat(rows.sum(axis=1, dtype=np.uint32), width),
        np.repeat(rows.view(np.int32).max(axis=1).view(np.uint32), width),
        np.repeat(rows.min(axis=1), width),
        np.repeat(numbers.view(np.uint32), width),
        rows[:, (lanes * 3 + 1) % width].ravel(),
        (rows[:, 1:2] ^ rows[:, lanes ^ 2]).ravel(),
    )
    names = ("lane and subgroup ids", "sum", "max", "min", "sum of floats", "shuffle", "shuffle by xor")
    for k, (name, values) in enumerate(zip(names, expected, strict=True)):
        if not np.array_equal(answer.reshape(-1, 8)[:, k + 1], values):
            return f"subgroup {name} is wrong"
    return None


# Dot products of bytes


def _dot4(b: KernelBuilder, word: Handle) -> list[Handle]:
    return [b.bitcast(b.dot4(word, word * 2654435769, b.bitcast(word >> 3, DType.I32)), DType.U32)]


def _wrong_dot4(given: Words, answer: Words) -> str | None:
    def signed(words: Words) -> NDArray[np.int64]:
        return words.view(np.int8).reshape(-1, 4).astype(np.int64)

    total = (signed(given) * signed(given * np.uint32(2654435769))).sum(axis=1) + (given >> np.uint32(3))
    return None if np.array_equal(answer, total.astype(np.uint32)) else "dot products of bytes are wrong"


# Half conversions


def _halves() -> Words:
    """Halves of both signs: all near zero, the least normal one, one and infinity, and every thirty-second."""
    edges = np.concatenate([np.arange(64), 0x3E0 + np.arange(64), 0x3BE0 + np.arange(64), 0x7BC0 + np.arange(128)])
    both = np.concatenate([edges, edges + 0x8000, np.arange(0, 0x10000, 32)])
    return np.resize(both, -(-both.size // GROUP) * GROUP).astype(np.uint32)


def _around(halves: Words) -> Words:
    """Floats at halves, at the ties between neighbours, and one unit to each side of a tie."""
    half = (halves & np.uint32(0x7FFF)).astype(np.uint16)
    above = np.minimum(half + np.uint16(1), np.uint16(0x7C00))
    # The neighbour above the greatest half is where infinity would be, were it a number.
    below, next_ = (
        np.where(h == 0x7C00, np.float32(65536), h.view(np.float16).astype(np.float32)) for h in (half, above)
    )
    with np.errstate(invalid="ignore"):  # NaN halves
        tie = (below + next_) / np.float32(2)
    bits = tie.view(np.uint32) + np.resize(np.array([0, 1, -1, 0], np.int32), tie.size).view(np.uint32)
    exact = halves.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    return np.where(np.arange(tie.size) % 7 == 0, exact, bits | halves >> np.uint32(15) << np.uint32(31))


def _unpack(b: KernelBuilder, word: Handle) -> list[Handle]:
    return [b.bitcast(b.half_to_float(word), DType.U32)]


def _wrong_unpack(given: Words, answer: Words) -> str | None:
    expected = given.astype(np.uint16).view(np.float16).astype(np.float32)
    return differ("conversions of halves", answer.view(np.float32), expected)


def _pack(b: KernelBuilder, word: Handle) -> list[Handle]:
    half = b.float_to_half(b.bitcast(word, DType.F32))
    # A compiler may take a number for what it was before it was rounded; NVIDIA's does.
    return [half, b.bitcast(b.half_to_float(half), DType.U32)]


def _wrong_pack(given: Words, answer: Words) -> str | None:
    with np.errstate(over="ignore", invalid="ignore"):
        expected = given.view(np.float32).astype(np.float16)
    packed, back = np.ascontiguousarray(answer.reshape(-1, 2).T)
    return differ("conversions to halves", packed.astype(np.uint16).view(np.float16), expected) or differ(
        "conversions to halves and back", back.view(np.float32), expected.astype(np.float32)
    )


# Loops


def _loop(b: KernelBuilder, word: Handle) -> list[Handle]:
    total = b.var(0, DType.U32)
    with b.range(b.bitcast(word, DType.I32)):
        total.set((total.get() ^ word) + 1)
    return [total.get()]


def _wrong_loop(given: Words, answer: Words) -> str | None:
    word, total = int(given[0]), 0
    for _ in range(word):
        total = (total ^ word) + 1 & 0xFFFFFFFF
    return None if (answer == total).all() else f"loops end before {word:,} rounds"


def differ(what: str, got: NDArray[np.floating], expected: NDArray[np.floating]) -> str | None:
    """Values must agree in every bit; one NaN is as good as another."""
    kind = np.uint32 if expected.dtype == np.float32 else np.uint16
    same = (got.view(kind) == expected.view(kind)) | (np.isnan(got) & np.isnan(expected))
    return None if same.all() else f"{int((~same).sum())} of {same.size} {what} are wrong"

"""Passes keep results bit for bit: kernels run in the interpreter before and after them.

Random kernels come from hypothesis, which prints the one that fails and how to repeat it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poot_eval.kernel_ir import run_kernel
from poot_executor.compile.elementwise import narrowed
from poot_executor.dtype import BF16, F16, F32, I8, I32, U8, U32, round_bf16
from poot_executor.kernel import Access, Handle, Kernel, KernelBuilder
from poot_executor.kernel.packing import to_bf16
from poot_executor.kernel.passes import PASSES, fold_constants, lower_group_reductions, optimize

READ, WRITE = Access.READ, Access.READ_WRITE
THREADS = 8
WORDS = 64


class Maker:
    """Makes a kernel of choices: i32, u32 and f32 values, loops, branches, loads and stores.

    `tape` holds the choices; where it ends the first option is taken. Each thread stores into its own slots of `y`,
    so that no two threads race.
    """

    def __init__(self, tape: list[int]) -> None:
        self.tape = iter(tape)
        self.b = KernelBuilder("random", THREADS)
        self.x = self.b.buffer("x", U32, READ)
        self.y = self.b.buffer("y", U32, WRITE)
        self.thread = self.b.thread_id()
        self.ints: list[Handle] = [self.thread, self.x.length() * 3, self.b.group_id()]
        self.words: list[Handle] = [self.x[self.thread]]
        self.floats: list[Handle] = [self.b.cast(self.thread, F32) * 0.3]
        self.vars = [self.b.var(self.thread), self.b.var(0), self.b.var(7)]
        self.slots = 0

    def pick(self, options):
        return options[next(self.tape, 0) % len(options)]

    def number(self) -> int:
        return self.pick([0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 100, -1, -3, -8, 1 << 30])

    def int(self) -> Handle:
        return self.b.const(self.number(), I32) if self.pick([False, True]) else self.pick(self.ints)

    def step(self, depth: int) -> None:
        choices = ["int", "int", "int", "word", "float", "load", "store", "var", "get"]
        if depth:
            choices += ["if", "for", "for", "while"]
        getattr(self, "_" + self.pick(choices))(depth)

    def block(self, depth: int) -> None:
        kept = len(self.ints), len(self.words), len(self.floats)
        for _ in range(self.pick([1, 2, 3, 4])):
            self.step(depth)
        del self.ints[kept[0] :], self.words[kept[1] :], self.floats[kept[2] :]

    def _int(self, depth: int) -> None:
        a, c = self.int(), self.int()
        kind = self.pick(
            "add sub mul and or xor shl shr min max div rem // % select cast".split()
        )  # fmt: skip
        match kind:
            case "div" | "rem":
                self.ints.append(self.b.apply(kind, a, (c & 7) + 1))
            case "//":
                self.ints.append((a & 0xFFFF) // ((c & 7) + 1))
            case "%":
                self.ints.append((a & 0xFFFF) % ((c & 7) + 1))
            case "select":
                self.ints.append(self.b.select((a < c) & (c != 3), a, c + 1))
            case "cast":
                self.ints.append(self.b.cast(a > c, I32) + self.b.bitcast(self.b.bitcast(c, U32), I32))
            case _:
                self.ints.append(self.b.apply(kind, a, c))

    def _word(self, depth: int) -> None:
        a, c = self.pick(self.words), self.b.bitcast(self.int(), U32)
        divisor = self.pick([1, 2, 3, 8, 64, 1 << 31])
        word = self.pick([a * c, a // divisor, a % divisor, a ^ (c << 3), self.b.mulhi(a, c)])
        self.words.append(word)

    def _float(self, depth: int) -> None:
        a, c = self.pick(self.floats), self.b.cast(self.int(), F32)
        self.floats.append(self.pick(
            [a + 0.0, a * 1.0, a - c, a * c, self.b.fma(a, c, a), self.b.exp(a), self.b.max(a, 0.0), -a]
        ))  # fmt: skip

    def _load(self, depth: int) -> None:
        if self.pick([False, True]):
            self.words.append(self.x[self.int() & (WORDS - 1)])
        else:
            self.words.append(self.x.load((self.int() & 15) * 4, 4)[self.pick([0, 1, 2, 3])])

    def _store(self, depth: int) -> None:
        value = self.pick([
            self.b.bitcast(self.int(), U32), self.pick(self.words), self.b.bitcast(self.pick(self.floats), U32),
        ])  # fmt: skip
        self.y[(self.b.group_id() * 64 + self.slots) * THREADS + self.thread] = value
        self.slots += 1

    def _var(self, depth: int) -> None:
        self.pick(self.vars).set(self.int())

    def _get(self, depth: int) -> None:
        self.ints.append(self.pick(self.vars).get())

    def _if(self, depth: int) -> None:
        with self.b.if_(self.int() < self.int()):
            self.block(depth - 1)
        if self.pick([False, True]):
            with self.b.else_():
                self.block(depth - 1)

    def _for(self, depth: int) -> None:
        low = self.pick([0, 2, self.thread, self.int() & 7])
        high = self.pick([0, 3, 8, 11, 16, self.int() & 15])
        unroll = self.pick([None, 1, 2, 4])
        with self.b.range(low, high, self.pick([1, 3, 8]), unroll=unroll) as i:
            self.ints.append(i)
            self.block(depth - 1)
            del self.ints[-1]

    def _while(self, depth: int) -> None:
        left = self.b.var(self.int() & 3)
        with self.b.while_(lambda: left.get() > 0):
            self.block(depth - 1)
            left.set(left.get() - 1)

    def finish(self) -> Kernel:
        for value in (*self.ints[-3:], *(var.get() for var in self.vars)):
            self.y[(self.b.group_id() * 64 + self.slots) * THREADS + self.thread] = self.b.bitcast(value, U32)
            self.slots += 1
        return self.b.finish()


def make(tape: list[int]) -> Kernel:
    maker = Maker(tape)
    for _ in range(1 + maker.pick(range(8))):
        maker.step(2)
    return maker.finish()


tapes = st.lists(st.integers(0, 1 << 12), min_size=60, max_size=400)


def run(kernel: Kernel) -> np.ndarray:
    x = np.random.default_rng(7).integers(0, 1 << 32, WORDS, np.uint32)
    y = np.full(2 * 64 * THREADS, 0xDEADBEEF, np.uint32)
    run_kernel(kernel, [x, y], (2, 1, 1), timeout=240)
    return y


@settings(max_examples=50, deadline=None)
@given(tapes)
def test_every_pass_and_all_of_them_keep_the_bits(tape):
    kernel = make(tape)
    with np.errstate(all="ignore"):
        want = run(kernel)
        for change in dict.fromkeys(PASSES):
            np.testing.assert_array_equal(run(change(kernel)), want, change.__name__)
        whole = optimize(kernel, subgroup=True, subgroup_width=8, check=True)
        np.testing.assert_array_equal(run(whole), want)


@settings(max_examples=50, deadline=None)
@given(tapes)
def test_what_the_builder_folds_is_what_the_interpreter_computes(tape):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("poot_executor.kernel.operations.fold", lambda *args: None)
        literal = make(tape)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(make(tape)), run(literal))
        np.testing.assert_array_equal(run(fold_constants(literal)), run(literal))


@pytest.mark.parametrize("high", [-(1 << 31), -(1 << 31) + 3, -1, 0, 3, 4, 9])
@pytest.mark.parametrize("step", [1, 3])
def test_unrolling_to_a_bound_that_is_only_known_when_it_runs(high, step):
    b = KernelBuilder("bound", 1)
    x, y = b.buffer("x", I32, READ), b.buffer("y", I32, WRITE)
    count = b.var(0)
    with b.range(0, x[0], step, unroll=4) as i:
        count.set(count.get() * 10 + i + 1)
    y[0] = count.get()
    kernel = b.finish()
    results = []
    for candidate in (kernel, optimize(kernel, subgroup=False, subgroup_width=None, check=True)):
        got = np.zeros(1, np.int32)
        run_kernel(candidate, [np.array([high], np.int32), got], (1, 1, 1), timeout=240)
        results.append(int(got[0]))
    assert results[1] == results[0]
    assert (results[0] == 0) == (high <= 0)


def reduction(group_size: int, kind: str, dtype, place: str) -> Kernel:
    b = KernelBuilder("reduce", group_size)
    x, y = b.buffer("x", dtype, READ), b.buffer("y", dtype, WRITE)
    t = b.thread_id()
    at = b.group_id() * (group_size * 4) + t
    reduce = getattr(b, kind)
    if place == "outermost":
        for k in range(4):
            y[at + k * group_size] = reduce(x[at + k * group_size])
    elif place == "loop":
        with b.range(4) as k:
            y[at + k * group_size] = reduce(x[at + k * group_size])
    else:
        # A loop that may not run stands between reductions that take turns.
        for k in range(3):
            y[at + k * group_size] = reduce(x[at + k * group_size])
            with b.range(0, b.group_id()), b.if_(b.group_id() > 0):
                y[at + 3 * group_size] = reduce(x[at + 3 * group_size])
                y[at + 3 * group_size] = reduce(x[at + 3 * group_size])
    return b.finish()


@pytest.mark.parametrize("place", ["outermost", "loop", "mixed"])
@pytest.mark.parametrize(("subgroup", "width"), [(False, None), (True, 4), (True, 8), (True, 32)])
@pytest.mark.parametrize("group_size", [1, 6, 8, 32, 33])
@pytest.mark.parametrize(("kind", "dtype"), [("group_sum", I32), ("group_max", F32), ("group_min", U32)])
def test_group_reductions_without_races(kind, dtype, group_size, subgroup, width, place):
    kernel = reduction(group_size, kind, dtype, place)
    lowered = lower_group_reductions(kernel, subgroup=subgroup, subgroup_width=width)
    whole = optimize(kernel, subgroup=subgroup, subgroup_width=width, check=True)
    assert not any(op.kind.startswith("group_") and op.kind != "group_id" for op in whole.body.walk())
    rng = np.random.default_rng(group_size)
    x = rng.integers(-1000, 1000, group_size * 4 * 3).astype(dtype.numpy)
    results = []
    for candidate in (kernel, lowered, whole):
        y = np.zeros_like(x)
        run_kernel(candidate, [x, y], (3, 1, 1), subgroup_width=width or 8, detect_races=True)
        results.append(y)
    assert results[0].any()
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("dtype", [F16, BF16, I8, U8])
def test_narrow_elements_are_read_out_of_their_words(dtype, width):
    b = KernelBuilder("narrow", 32)
    x, y = b.buffer("x", dtype, READ), b.buffer("y", x_dtype := x_value(dtype), WRITE)
    at = (b.group_id() * 32 + b.thread_id()) * width
    y.store(at, x.load(at, width))
    words = np.random.default_rng(3).integers(0, 1 << 32, 64 * width * dtype.size // 4, np.uint32)
    if dtype is F16:
        words &= np.uint32(0xFBFFFBFF)  # finite
    elif dtype is BF16:
        words &= np.uint32(0xFF7FFF7F)
    got = np.zeros(64 * width, x_dtype.numpy)
    kernel = b.finish()
    run_kernel(kernel, [words, got], (2, 1, 1), strict=True)
    raw = {F16: np.float16, BF16: np.uint16, I8: np.int8, U8: np.uint8}[dtype]
    want = words.view(raw)
    want = (want.astype(np.uint32) << 16).view(np.float32) if dtype is BF16 else want.astype(got.dtype)
    np.testing.assert_array_equal(got, want)
    again = np.zeros_like(got)
    run_kernel(optimize(kernel, subgroup=False, subgroup_width=None), [words, again], (2, 1, 1))
    np.testing.assert_array_equal(again, want)


def x_value(dtype):
    return F32 if dtype in (F16, BF16) else I32


@pytest.mark.parametrize("packs", [False, True], ids=["operations", "one operation"])
def test_packing_rounds_as_the_formats_do(packs: bool):
    values = np.array(
        [0.0, -0.0, 1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 1 + 2**-11, 65504.0, 65520.0, 1e-7, 2**-24, np.inf, -np.inf,
         3.4e38, np.nan, -np.nan, *np.random.default_rng(5).standard_normal(17) * 1000],
        np.float32,
    )  # fmt: skip
    values = np.concatenate([values, np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)])
    values = values[: len(values) // 2 * 2]
    b = KernelBuilder("pack", len(values) // 2, packs_bf16=packs)
    x, h, f = b.buffer("x", F32, READ), b.buffer("h", F16, WRITE), b.buffer("f", BF16, WRITE)
    single, both = b.buffer("single", U32, WRITE), b.buffer("both", F32, WRITE)
    t = b.thread_id()
    h.store_word(t, b.pack_half2(x[t * 2], x[t * 2 + 1]))
    f.store_word(t, b.pack_bf16x2(x[t * 2], x[t * 2 + 1]))
    single[t] = to_bf16(x[t * 2])
    pair = narrowed(b, b.vector(x[t * 2], x[t * 2 + 1]), BF16)
    both[t * 2], both[t * 2 + 1] = pair[0], narrowed(b, x[t * 2 + 1], BF16)
    halves, bf16s, singles = np.zeros((3, len(values) // 2), np.uint32)
    rounded = np.zeros(len(values), np.float32)
    kernel = b.finish()
    assert ("pack_bf16" in {op.kind for op in kernel.body.walk()}) == packs
    run_kernel(kernel, [values, halves, bf16s, singles, rounded], (1, 1, 1))
    expected, nan = round_bf16(values), np.isnan(values)
    found = (bf16s.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found, expected, "words of two")
    np.testing.assert_array_equal((singles << 16).view(np.float32), expected[::2], "one alone")
    np.testing.assert_array_equal(rounded, expected, "as f32")
    if not packs:
        # The operations keep a NaN's sign and the top of its payload, as the reference does.
        np.testing.assert_array_equal(found[nan].view(np.uint32), expected[nan].view(np.uint32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(halves.view(np.float16), values.astype(np.float16))


def test_packed_bytes_come_back():
    b = KernelBuilder("bytes", 4)
    x, y, z = b.buffer("x", I32, READ), b.buffer("y", I8, WRITE), b.buffer("z", I32, WRITE)
    t = b.thread_id()
    word = b.pack_bytes4(*(x[t * 4 + k] for k in range(4)))
    y.store_word(t, word)
    for k in range(4):
        z[t * 4 + k] = b.unpack_byte(word, 8 * k, signed=True)
    values = np.random.default_rng(9).integers(-128, 128, 16, np.int32)
    bytes_, back = np.zeros(4, np.uint32), np.zeros(16, np.int32)
    run_kernel(b.finish(), [values, bytes_, back], (1, 1, 1))
    np.testing.assert_array_equal(bytes_.view(np.int8), values)
    np.testing.assert_array_equal(back, values)

"""Known answers of products of warpgroups: a kernel that does what contractions do with them.

Two warpgroups of a group multiply, through stages that copies fill while products run; the stages are more than a
kernel may declare where launches have to give shared memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import DType
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel.warpgroups import COLUMNS, DEPTH, LINE, ROWS, THREADS, VECTOR, swizzled
from poot_executor.known_answers import Case, Words

WARPGROUPS, TOKENS, CHUNKS, STAGES, BEHIND = 2, 32, 5, 3, 1
GROUP, LINES = WARPGROUPS * THREADS, WARPGROUPS * ROWS + TOKENS
VECTORS = LINE // VECTOR
RESULTS = WARPGROUPS * ROWS * TOKENS
PERIOD, LINE_STEP, CHUNK_STEP = 2048, 36, 52
"""Words of the source, and how far on in it the next line and the next chunk of a line begin: lines all differ."""


def warpgroup_case(half: DType) -> Case:
    """Every group multiplies the same 128 rows by 32 columns of small integers, whose sums are exact in f32."""
    numbers = ((np.arange(2 * PERIOD, dtype=np.int64) * 2654435761 >> 9) % 128 - 64).astype(np.float32)
    line, chunk, vector = np.ogrid[:LINES, :CHUNKS, :VECTORS]
    first = (line * LINE_STEP + chunk * CHUNK_STEP + vector * VECTOR) % PERIOD
    factors = numbers[2 * first[..., None] + np.arange(2 * VECTOR)].reshape(LINES, CHUNKS * DEPTH).astype(np.float64)
    rows, columns = factors[: WARPGROUPS * ROWS], factors[WARPGROUPS * ROWS :]
    answer = (columns @ rows.T).astype(np.float32).reshape(-1).view(np.uint32)

    def wrong(given: Words, got: Words) -> str | None:
        expected = np.tile(answer, given.size // GROUP)
        return None if np.array_equal(got, expected) else f"products of warpgroups in {half} are wrong"

    return Case(f"warpgroups in {half}", _kernel(half), _packed(numbers, half), RESULTS // GROUP, wrong)


def _kernel(half: DType) -> Kernel:
    b = KernelBuilder(f"known_answer_warpgroups_{half}", GROUP)
    source, target = b.buffer("source", DType.U32, Access.READ), b.buffer("target", DType.F32, Access.READ_WRITE)
    stages = b.shared("stages", DType.U32, STAGES * LINES * LINE)
    thread = b.thread_id()
    line, vector = thread // VECTORS, thread % VECTORS
    apart = GROUP // VECTORS

    def fetch(chunk: Handle) -> None:
        place = swizzled(line, vector) + chunk % STAGES * (LINES * LINE)
        word = line * LINE_STEP + chunk * CHUNK_STEP + vector * VECTOR
        for first in range(0, LINES, apart):
            stages.copy_from(place + first * LINE, source, (word + first * LINE_STEP) % PERIOD)

    ahead = STAGES - 1 - BEHIND
    for first in range(ahead):
        fetch(b.const(first, DType.I32))
        b.copy_commit()
    zero = b.vector(*(b.const(0.0, DType.F32) for _ in range(4)))
    sums = [b.var(zero, name="sums") for _ in range(TOKENS // COLUMNS)]
    with b.range(CHUNKS) as chunk:
        b.copy_wait(ahead - 1)
        b.barrier()
        stage = chunk % STAGES * (LINES * LINE)
        mine = stage + thread // THREADS * (ROWS * LINE)
        columns = stage + WARPGROUPS * ROWS * LINE
        values = stages.multiply(mine, columns, [total.get() for total in sums], half, BEHIND)
        for total, value in zip(sums, values, strict=True):
            total.set(value)
        with b.if_(chunk + ahead < CHUNKS):
            fetch(chunk + ahead)
        b.copy_commit()
    lane = b.lane_id()
    row = b.subgroup_id() * 16 + lane // 4
    for n, total in enumerate(sums):
        for k in range(4):
            token = lane % 4 * 2 + (n * COLUMNS + k % 2)
            target[b.group_id() * RESULTS + token * (WARPGROUPS * ROWS) + (row + k // 2 * 8)] = total.get()[k]
    return b.finish()


def _packed(numbers: NDArray[np.float32], half: DType) -> Words:
    if half is DType.F16:
        return numbers.astype(np.float16).view(np.uint32)
    return (numbers.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint32)

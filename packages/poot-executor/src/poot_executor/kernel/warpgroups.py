"""Products of warpgroups: 128 threads multiply matrices of halves in shared memory, and have the sums in registers.

Matrices come there by asynchronous copies. `shared_copy` begins one, of four words; `copy_commit` ends a set of them;
`copy_wait` waits until at most `pending` of the thread's latest sets are not there. What a thread waited for, others
see behind the next barrier. A kernel never writes a buffer that it copies from.

A factor is a tile of lines, `LINE` words of `DEPTH` halves each, a line behind the other from a multiple of `TILE`
words on. Vectors of four words are swizzled, so that eight lines fill every bank once: vector v of line r lies at place
v xor (r mod 8) of its line. A product takes `ROWS` lines of a and `columns` lines of b, which are columns, for each
warpgroup:

    sums[i, j] += Σₖ a[i, k] · b[j, k]

Lane 4g + t of subgroup w of the warpgroup has of the sums, in the n-th of its columns / 8 vectors, rows 16w + g and
16w + g + 8 of columns 8n + 2t and 8n + 2t + 1, in the order of `mma`. The product may read shared memory until its
results are used, and for as long as no more than `behind` barriers came after it: nobody writes there before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.ir import KType, Param, SharedArray

if TYPE_CHECKING:
    from poot_executor.kernel.handle import Handle

FEATURE = "warpgroup"
"""The capability that these operations need."""
SHARED_BYTES = 224 << 10
"""Shared memory that a group may have where there is the feature: `Caps.most_shared_bytes`."""
THREADS, SUBGROUP = 128, 32
"""Threads of a warpgroup, and of its subgroups."""
ROWS, DEPTH = 64, 64
"""Rows of a product, and halves of a line: its depth."""
LINE, TILE = 32, 256
"""Words of a line, and what a tile's first word is a multiple of: eight lines."""
VECTOR = 4
"""Words of a copy."""
COLUMNS = 8
"""Columns of a vector of sums; a product has a multiple of them, up to `COLUMNS_MOST`."""
COLUMNS_MOST = 256
LAGS = (0, 1)
"""What `behind` may be."""
OPERATIONS = frozenset({"shared_copy", "copy_commit", "copy_wait", "warpgroup_mma"})

I32, SUM = KType(DType.I32), KType(DType.F32, 4)


def swizzled(line: Handle, vector: Handle | int) -> Handle:
    """The word of a tile where a vector of a line begins."""
    return line * LINE + ((line % 8) ^ vector) * VECTOR


def warpgroup_results(
    kind: str,
    operands: Sequence[KType],
    attrs: Mapping[str, Any],
    params: Sequence[Param],
    shared: Sequence[SharedArray],
) -> tuple[KType, ...]:
    """The result types of these operations, as `signatures.result_types` gives those of the others.

    Raises KernelError where operands or attributes do not fit.
    """
    match kind:
        case "shared_copy":
            _takes(kind, operands, I32, I32)
            source, target = _of(kind, "buffer", attrs, params), _of(kind, "array", attrs, shared)
            if source.dtype is not target.dtype:
                raise KernelError(f"{kind} from {source.name}, {source.dtype}, to {target.name}, {target.dtype}")
            return ()
        case "copy_commit":
            _takes(kind, operands)
            return ()
        case "copy_wait":
            _takes(kind, operands)
            if type(attrs.get("pending")) is not int or attrs["pending"] < 0:
                raise KernelError(f"{kind} leaves a number of sets pending, not {attrs.get('pending')!r}")
            return ()
    return _product(kind, operands, attrs, shared)


def _product(
    kind: str, operands: Sequence[KType], attrs: Mapping[str, Any], shared: Sequence[SharedArray]
) -> tuple[KType, ...]:
    sums = len(operands) - 2
    if not 0 < sums <= COLUMNS_MOST // COLUMNS:
        raise KernelError(f"{kind} has 1 to {COLUMNS_MOST // COLUMNS} vectors of sums, not {sums}")
    _takes(kind, operands, I32, I32, *[SUM] * sums)
    if attrs.get("half") not in ("bf16", "f16"):
        raise KernelError(f"{kind} has halves of bf16 or f16, not {attrs.get('half')}")
    if attrs.get("behind") not in LAGS:
        raise KernelError(f"{kind} is behind by 0 or 1 barriers, not {attrs.get('behind')!r}")
    tiles = _of(kind, "array", attrs, shared)
    if tiles.dtype is not DType.U32:
        raise KernelError(f"{kind} has tiles of u32 words, and {tiles.name} is {tiles.dtype}")
    return (SUM,) * sums


def _of(kind: str, name: str, attrs: Mapping[str, Any], places: Sequence[Any]) -> Any:
    place = attrs.get(name)
    if type(place) is not int or not 0 <= place < len(places):
        raise KernelError(f"{kind}: there is no {name} {place}")
    return places[place]


def _takes(kind: str, operands: Sequence[KType], *expected: KType) -> None:
    if tuple(operands) != expected:
        have, want = (", ".join(map(str, types)) or "nothing" for types in (operands, expected))
        raise KernelError(f"{kind} takes ({want}), not ({have})")

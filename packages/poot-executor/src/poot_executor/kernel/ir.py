"""Kernel IR: one kernel as structured, typed SSA. Importer, passes, verifier, emitters and interpreter share it.

A kernel runs as a grid of groups of threads. Its body is a block: a list of operations, each with operands, attributes,
results and, for control flow, nested blocks. Values are visible in their block and the blocks nested in it. Buffers are
parameters of 32-bit elements (f32, i32, u32); narrower types are lowered to whole words by a pass before any emitter
sees them.

Control flow carries values explicitly. `for` has operands (low, high, step, *initial), a block with arguments
(index, *carried) that ends in `yield`, and one result a carried value. `if` has operands (condition,) and two blocks
ending in `yield`. `while` has operands (*initial), a condition block with arguments (*carried) ending in `yield
condition`, and a body block with the same arguments ending in `yield *next`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from poot_executor.dtype import DType


@dataclass(frozen=True, slots=True)
class KType:
    """The type of a kernel value: a scalar (`width` 1) or a short vector of 2 or 4."""

    dtype: DType
    width: int = 1

    def __str__(self) -> str:
        return str(self.dtype) if self.width == 1 else f"{self.dtype}x{self.width}"


class Val:
    """An SSA value. Identity is the value; `hint` is the source name, for readable output only."""

    __slots__ = ("hint", "type")

    def __init__(self, type: KType, hint: str = "") -> None:
        self.type = type
        self.hint = hint

    @property
    def dtype(self) -> DType:
        """The type's element type."""
        return self.type.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """`results = kind(*operands, **attrs)` with nested `blocks`. `line` is where it came from ("file:line")."""

    kind: str
    operands: tuple[Val, ...] = ()
    results: tuple[Val, ...] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()
    line: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.attrs, MappingProxyType):
            object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def having(self, operands: tuple[Val, ...], blocks: tuple[Block, ...]) -> Op:
        """The operation with other operands and blocks; itself where they are the same. Passes make many."""
        if operands == self.operands and blocks == self.blocks:  # equal is identical, of values and of blocks
            return self
        return Op(self.kind, operands, self.results, self.attrs, blocks, self.line)

    @property
    def result(self) -> Val:
        """The one result. Raises ValueError where there is not exactly one."""
        (only,) = self.results
        return only


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Arguments and operations. A block nested in control flow ends in one `yield`; a kernel's body has none."""

    args: tuple[Val, ...]
    ops: tuple[Op, ...]

    def walk(self) -> Iterator[Op]:
        """Every operation, outer before inner, in order."""
        for op in self.ops:
            yield op
            for block in op.blocks:
                yield from block.walk()


class Access(Enum):
    """READ: no dispatch ever writes the buffer (weights, slots, tables). READ_WRITE: everything else, read or
    written."""

    READ = "read"
    READ_WRITE = "read_write"


@dataclass(frozen=True, slots=True)
class Param:
    """A buffer parameter: `dtype` of its elements. Its element count comes with each dispatch; `count`, where it is
    known, is the least that any binds."""

    name: str
    dtype: DType
    access: Access
    count: int | None = None


@dataclass(frozen=True, slots=True)
class SharedArray:
    """Shared memory of a group: `count` elements of a 32-bit dtype. Zeroed only by the kernel itself."""

    name: str
    dtype: DType
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A specialized kernel. `group_size` threads a group, one axis. `groups`, where it is known, is the largest grid
    that it is launched over. `resident` says that all its groups should be on the device at once, where that leaves a
    thread enough registers. `checks` says that it has a `check` operation."""

    name: str
    params: tuple[Param, ...]
    shared: tuple[SharedArray, ...]
    group_size: int
    body: Block
    groups: tuple[int, int, int] | None = None
    resident: bool = False
    _digest: list[bytes] = field(default_factory=list, init=False, repr=False)

    @property
    def checks(self) -> bool:
        """Whether it has a `check` operation, which may fault."""
        return any(op.kind == "check" for op in self.body.walk())

    def launched(self, counts: Sequence[int], groups: tuple[int, int, int]) -> Kernel:
        """The kernel as it is launched over `groups` groups, with at least `counts` elements bound: what an emitter may
        rely on."""
        params = tuple(replace(p, count=n) for p, n in zip(self.params, counts, strict=True))
        return Kernel(self.name, params, self.shared, self.group_size, self.body, groups, self.resident)

    @property
    def identity(self) -> int:
        """24 bits of the content's hash: what a fault word names the kernel by."""
        return int.from_bytes(self.digest()[:3], "big")

    def digest(self) -> bytes:
        """A hash of everything but hints and lines: equal kernels have equal digests. Computed once."""
        if not self._digest:
            self._digest.append(hashlib.sha256(str(self).encode()).digest())
        return self._digest[0]

    def __str__(self) -> str:
        from poot_executor.kernel.show import show

        return show(self)


@dataclass(frozen=True, slots=True)
class OpRow:
    """A row of the operation table: operand and result types in words, what the operation does, the capability it
    needs."""

    name: str
    operands: str
    result: str
    doc: str
    needs: str | None = None
    pure: bool = True


def _rows(*rows: OpRow) -> dict[str, OpRow]:
    return {row.name: row for row in rows}


KERNEL_OPS: Mapping[str, OpRow] = MappingProxyType(
    _rows(
        # Values. T is any scalar or vector type; elementwise operations take vectors of one width.
        OpRow(
            "const", "", "T", "attr value: a Python number or bool; a float const is exact in its dtype; scalar only"
        ),
        OpRow("group_id", "", "i32", "attr axis 0..2: the group's place in the grid"),
        OpRow("thread_id", "", "i32", "the thread's place in its group"),
        OpRow("lane_id", "", "i32", "the thread's place in its subgroup", "subgroup"),
        OpRow("subgroup_id", "", "i32", "the subgroup's place in its group", "subgroup"),
        OpRow("subgroup_size", "", "i32", "threads of a subgroup", "subgroup"),
        OpRow("length", "", "i32", "attr buffer (param index): its element count, as bound at the dispatch"),
        # Arithmetic. Integers wrap; integer div and rem by zero are undefined: guard them. Shifts use the low 5 bits of
        # the count.
        OpRow("neg", "T", "T", "−a"),
        OpRow("abs", "T", "T", "|a|"),
        OpRow("not", "int or bool", "same", "bitwise, logical for bool"),
        OpRow("exp", "f32", "f32", "eᵃ"),
        OpRow("log", "f32", "f32", "natural logarithm"),
        OpRow("sqrt", "f32", "f32", "square root"),
        OpRow("rsqrt", "f32", "f32", "1/√a"),
        OpRow("sin", "f32", "f32", "a in radians"),
        OpRow("cos", "f32", "f32", "a in radians"),
        OpRow("tanh", "f32", "f32", ""),
        OpRow("erf", "f32", "f32", ""),
        OpRow("floor", "f32", "f32", "towards −inf"),
        OpRow("round", "f32", "f32", "to nearest, ties to even"),
        OpRow("add", "T, T", "T", ""),
        OpRow("sub", "T, T", "T", ""),
        OpRow("mul", "T, T", "T", ""),
        OpRow("div", "T, T", "T", "f32: IEEE where the target has it; i32 truncates towards zero"),
        OpRow("rem", "int, int", "int", "sign of the dividend"),
        OpRow("min", "T, T", "T", "numbers; NaN handling is unspecified"),
        OpRow("max", "T, T", "T", "numbers; NaN handling is unspecified"),
        OpRow("pow", "f32, f32", "f32", "a raised to b, a ≥ 0"),
        OpRow("and", "int or bool", "same", ""),
        OpRow("or", "int or bool", "same", ""),
        OpRow("xor", "int or bool", "same", ""),
        OpRow("shl", "int, int", "int", ""),
        OpRow("shr", "int, int", "int", "arithmetic on i32, logical on u32"),
        OpRow("mulhi", "u32, u32", "u32", "high word of the 64-bit product"),
        OpRow("eq", "T, T", "bool", ""),
        OpRow("ne", "T, T", "bool", ""),
        OpRow("lt", "T, T", "bool", ""),
        OpRow("le", "T, T", "bool", ""),
        OpRow("gt", "T, T", "bool", ""),
        OpRow("ge", "T, T", "bool", ""),
        OpRow("fma", "f32, f32, f32", "f32", "a·b + c, rounded once where the target has it"),
        OpRow("select", "bool, T, T", "T", "operand 1 where true, else operand 2; both are evaluated"),
        OpRow(
            "cast",
            "T",
            "U",
            "number conversion: f32 to int truncates, int to f32 rounds to nearest, bool is 0 or 1, to bool is x != 0",
        ),
        OpRow("bitcast", "T", "U", "the same 32 bits"),
        OpRow("half_to_float", "u32", "f32", "the f16 in the low 16 bits, exactly (denormals, inf, NaN too)"),
        OpRow("float_to_half", "f32", "u32", "to f16 bits in the low 16, nearest even; overflow is inf"),
        OpRow("dot4", "u32, u32, i32", "i32", "Σ of 4 products of signed bytes, plus operand 2", "dot4"),
        OpRow(
            "pack_bf16",
            "f32, f32",
            "u32",
            "both as bf16, nearest even, operand 0 in the low half; NaN stays NaN",
            "packed_half",
        ),
        OpRow(
            "packed_fma",
            "u32, u32, u32",
            "u32",
            "attr half bf16|f16: a·b + c of both halves of the words, each rounded once",
            "packed_half",
        ),
        OpRow("vector", "T × width", "T×width", "scalars to a vector"),
        OpRow("extract", "T×width", "T", "attr lane"),
        # Memory. Indices are i32 element indices; a vector access covers `width` elements from a multiple of `width`.
        OpRow("load", "i32", "T", "attr buffer (param index), width", pure=False),
        OpRow("store", "i32, T", "", "attr buffer (param index)", pure=False),
        OpRow("shared_load", "i32", "T", "attr array (shared index), width (1 unless given)", pure=False),
        OpRow("shared_store", "i32, T", "", "attr array (shared index)", pure=False),
        OpRow(
            "atomic",
            "i32, T",
            "T",
            "attrs buffer or array (index), operation add|min|max|or; the old value; i32 and u32",
            pure=False,
        ),
        OpRow(
            "barrier",
            "",
            "",
            "all threads of the group; shared and buffer memory; uniform control flow only",
            pure=False,
        ),
        # Across threads, in uniform control flow.
        OpRow("subgroup_sum", "T", "T", "", "subgroup", pure=False),
        OpRow("subgroup_max", "T", "T", "", "subgroup", pure=False),
        OpRow("subgroup_min", "T", "T", "", "subgroup", pure=False),
        OpRow("subgroup_shuffle", "T, i32", "T", "the value of lane operand 1", "subgroup", pure=False),
        OpRow("subgroup_shuffle_xor", "T", "T", "attr mask: the value of lane (lane xor mask)", "subgroup", pure=False),
        OpRow(
            "mma",
            "u32x4 a, u32x2 b, f32x4 c",
            "f32x4",
            "a·b + c by a subgroup of 32, attr half bf16|f16 of a [16, 16] and b [16, 8], c f32 [16, 8]. Lane 4g + t "
            "has a[g, 2t..], a[g + 8, 2t..], a[g, 2t + 8..], a[g + 8, 2t + 8..]; b[2t.., g], b[2t + 8.., g], two a "
            "word, the first low; c[g, 2t], c[g, 2t + 1], c[g + 8, 2t], c[g + 8, 2t + 1]. Products are exact; their "
            "sum is taken in an order and with roundings of the target's, within 2⁻²² of the magnitudes summed",
            "mma",
            pure=False,
        ),
        # Matrices that a subgroup holds together: see `fragments`. Indices are of 32-bit elements and the same in a
        # subgroup.
        OpRow("fragment_zero", "", "sum", "attrs element, use, rows, columns: zeros", "fragments"),
        OpRow(
            "fragment_load",
            "i32",
            "fragment",
            "attrs buffer or array (index), stride, major, element, use, rows, columns",
            "fragments",
            pure=False,
        ),
        OpRow(
            "fragment_store", "i32, sum", "", "attrs buffer or array (index), stride, major", "fragments", pure=False
        ),
        OpRow(
            "fragment_mma",
            "a, b, sum",
            "sum",
            "a·b + c. Products of floats are exact; their sum is taken in an order and with roundings of the target's, "
            "within its error `fragment_mma`, in ULP of all magnitudes for each term (0.5: as one after another). i32 "
            "wraps",
            "fragments",
        ),
        # Matrices that 128 threads multiply from shared memory: see `warpgroups`.
        OpRow(
            "shared_copy",
            "i32, i32",
            "",
            "attrs array, buffer: begin to copy four words to operand 0 from operand 1",
            "warpgroup",
            pure=False,
        ),
        OpRow("copy_commit", "", "", "end a set of the thread's copies", "warpgroup", pure=False),
        OpRow("copy_wait", "", "", "attr pending: until so many sets at most are not there", "warpgroup", pure=False),
        OpRow(
            "warpgroup_mma",
            "i32 a, i32 b, *f32x4",
            "*f32x4",
            "attrs array, half, behind: the sums with the product of two tiles, rounded as `mma`",
            "warpgroup",
            pure=False,
        ),
        OpRow("fragment_fma", "sum, sum, sum", "sum", "a·b + c by element, rounded once or twice", "fragments"),
        OpRow(
            "group_sum", "T", "T", "over the group, every thread gets it; a pass lowers it before emission", pure=False
        ),
        OpRow("group_max", "T", "T", "likewise", pure=False),
        OpRow("group_min", "T", "T", "likewise", pure=False),
        OpRow(
            "check",
            "bool",
            "",
            "attr code 1..255: a fault where false. The kernel clamps the index that it guards itself",
            pure=False,
        ),
        # Structure.
        OpRow("for", "i32 low, i32 high, i32 step, *carried", "*carried", "step > 0", pure=False),
        OpRow("if", "bool", "*carried", "two blocks", pure=False),
        OpRow("while", "*carried", "*carried", "condition block, body block", pure=False),
        OpRow("yield", "*carried", "", "ends a nested block", pure=False),
    )
)
"""The operation table. An emitter has a rule for each name but `group_*`, which a pass lowers; a missing rule is
Unsupported."""

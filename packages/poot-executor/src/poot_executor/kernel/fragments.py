"""Opaque matrix fragments: small matrices that a subgroup holds together, in a way that is the target's own.

A fragment has a use. `a` [rows, depth] and `b` [depth, columns] are factors with narrow elements, `sum` [rows, columns]
is what their product is added to. Fragments come from memory and go there whole; between, they are multiplied
(`fragment_mma`) and, sums alone, combined element by element. Which shapes a target multiplies is data:
`Caps.fragments`.

In memory a matrix has lines, rows where `major` is "row" and columns where it is "column", `stride` 32-bit elements
apart; elements of a line are neighbours, and narrow ones are packed into words, the first lowest. A stride of 0 gives
every line the same elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.ir import Access, KType, Param, SharedArray

FEATURE = "fragments"
"""The capability that these operations need."""

FACTORS = (DType.F16, DType.BF16, DType.I8)
"""Element types of factors."""

SUMS = (DType.F32, DType.I32)
"""Element types of sums."""


class Use(Enum):
    """What a fragment is in a product."""

    A = "a"
    B = "b"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class FragmentShape:
    """A product that a target has: a[rows, depth] · b[depth, columns] of `element`, summed in `sums`."""

    rows: int
    columns: int
    depth: int
    element: DType
    sums: DType

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth} {self.element} to {self.sums}"

    @property
    def a(self) -> FragmentType:
        """The type of its left factor."""
        return FragmentType(self.element, 0, Use.A, self.rows, self.depth)

    @property
    def b(self) -> FragmentType:
        """The type of its right factor."""
        return FragmentType(self.element, 0, Use.B, self.depth, self.columns)

    @property
    def sum(self) -> FragmentType:
        """The type of what it is added to, and of its result."""
        return FragmentType(self.sums, 0, Use.SUM, self.rows, self.columns)


@dataclass(frozen=True, slots=True)
class FragmentType(KType):
    """The type of a fragment: `dtype` of its elements, `width` 0, since no lane has it."""

    use: Use = Use.SUM
    rows: int = 0
    columns: int = 0

    def __str__(self) -> str:
        return f"{self.dtype}_{self.use.value}_{self.rows}x{self.columns}"

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes that name it in an operation."""
        return {"element": str(self.dtype), "use": self.use.value, "rows": self.rows, "columns": self.columns}

    @property
    def per_word(self) -> int:
        """Elements of a 32-bit word."""
        return 4 // self.dtype.size

    def line_words(self, major: str) -> int:
        """Words of a line in memory."""
        return (self.columns if major == "row" else self.rows) // self.per_word

    def lines(self, major: str) -> int:
        """Lines in memory."""
        return self.rows if major == "row" else self.columns


def fragment_type(text: str) -> FragmentType:
    """The type that `str` wrote. Raises ValueError for any other text."""
    dtype, use, shape = text.split("_")
    rows, columns = shape.split("x")
    return FragmentType(DType(dtype), 0, Use(use), int(rows), int(columns))


def fragment_results(
    kind: str,
    operands: Sequence[KType],
    attrs: Mapping[str, Any],
    params: Sequence[Param],
    shared: Sequence[SharedArray],
) -> tuple[KType, ...]:
    """The result types of a fragment operation, as `signatures.result_types` gives those of the others.

    Raises KernelError where operands or attributes do not fit it, and for an operation that takes no fragments.
    """
    match kind:
        case "fragment_zero":
            _takes(kind, operands)
            type = _named(kind, attrs)
            _only_sums(kind, type)
            return (type,)
        case "fragment_load":
            _takes(kind, operands, KType(DType.I32))
            type = _named(kind, attrs)
            _memory(kind, type, attrs, params, shared)
            return (type,)
        case "fragment_store":
            type = operands[1] if len(operands) == 2 else None
            if not isinstance(type, FragmentType):
                raise KernelError(f"{kind} takes an index and a fragment, not {_words(operands)}")
            _takes(kind, operands, KType(DType.I32), type)
            _only_sums(kind, type)
            place = _memory(kind, type, attrs, params, shared)
            if isinstance(place, Param) and place.access is Access.READ:
                raise KernelError(f"{kind} to {place.name}, which is read only")
            return ()
        case "fragment_mma":
            return (_product(kind, operands),)
        case "fragment_fma":
            type = operands[0] if operands else None
            if not isinstance(type, FragmentType):
                raise KernelError(f"{kind} takes fragments, not {_words(operands)}")
            _takes(kind, operands, type, type, type)
            _only_sums(kind, type)
            return (type,)
    raise KernelError(f"{kind} takes no fragments: ({_words(operands)})")


def _product(kind: str, operands: Sequence[KType]) -> FragmentType:
    """a·b + c of fragments that fit."""
    if len(operands) != 3 or not all(isinstance(type, FragmentType) for type in operands):
        raise KernelError(f"{kind} takes three fragments, not ({_words(operands)})")
    a, b, c = (type for type in operands if isinstance(type, FragmentType))
    fits = (
        (a.use, b.use, c.use) == (Use.A, Use.B, Use.SUM)
        and a.dtype is b.dtype
        and (a.rows, a.columns, b.columns) == (c.rows, b.rows, c.columns)
        and (a.dtype is DType.I8) == (c.dtype is DType.I32)
    )
    if not fits:
        raise KernelError(f"{kind}: {a} times {b} is not added to {c}")
    return c


def _words(types: Sequence[KType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _takes(kind: str, operands: Sequence[KType], *expected: KType) -> None:
    if tuple(operands) != expected:
        raise KernelError(f"{kind} takes ({_words(expected)}), not ({_words(operands)})")


def _only_sums(kind: str, type: FragmentType) -> None:
    if type.use is not Use.SUM:
        raise KernelError(f"{kind} has fragments of sums, not {type}")


def _named(kind: str, attrs: Mapping[str, Any]) -> FragmentType:
    """The type that an operation's attributes name."""
    try:
        use, element = Use(attrs.get("use")), DType(attrs.get("element"))
    except ValueError as error:
        raise KernelError(f"{kind}: {error}") from None
    rows, columns = attrs.get("rows"), attrs.get("columns")
    sizes = all(type(n) is int and n > 0 and n & (n - 1) == 0 for n in (rows, columns))
    if not sizes or element not in (SUMS if use is Use.SUM else FACTORS):
        raise KernelError(f"{kind}: there is no fragment {element} of {rows} by {columns} for {use.value}")
    assert isinstance(rows, int) and isinstance(columns, int)
    return FragmentType(element, 0, use, rows, columns)


def _memory(
    kind: str, type: FragmentType, attrs: Mapping[str, Any], params: Sequence[Param], shared: Sequence[SharedArray]
) -> Param | SharedArray:
    """Where a fragment comes from or goes to: whole words a line, in an array whose elements are its own or words."""
    if ("buffer" in attrs) == ("array" in attrs):
        raise KernelError(f"{kind} has either a buffer or a shared array")
    places: Sequence[Param | SharedArray] = params if "buffer" in attrs else shared
    index = attrs["buffer"] if "buffer" in attrs else attrs["array"]
    if not isinstance(index, int) or not 0 <= index < len(places):
        raise KernelError(f"{kind}: there is no place {index}")
    place, wanted = places[index], type.dtype if type.use is Use.SUM else DType.U32
    if place.dtype is not wanted:
        raise KernelError(f"{kind} of {type} has elements of {wanted}, and {place.name} is {place.dtype}")
    major, stride = attrs.get("major"), attrs.get("stride")
    if major not in ("row", "column"):
        raise KernelError(f"{kind} has lines that are a row or a column, not {major}")
    if not isinstance(stride, int) or stride < 0 or type.line_words(major) < 1:
        raise KernelError(f"{kind} of {type}: lines {stride} words apart")
    if kind == "fragment_store" and stride < type.line_words(major):
        raise KernelError(f"{kind} of {type}: lines {stride} words apart overlap")
    return place

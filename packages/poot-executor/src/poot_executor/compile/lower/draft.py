"""A dispatch before buffers are planned, and the frame in which a template writes its kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from poot_executor.compile.expression import Emission, Scene
from poot_executor.compile.indexing import Index, unravel
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.graph.graph import Input, TensorType, Value
from poot_executor.graph.keys import Storage
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access, Kernel

DISPATCH_WORK = 65536
"""The planner's weight of a dispatch that moves nothing, in bytes: what its launch costs."""


@dataclass(frozen=True, slots=True)
class Operand:
    """What a kernel's parameter is bound to: a value, and for a weight in parts which of them."""

    value: Value
    part: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """A dispatch whose operands have no places yet. `copies` (from, to) come before it. `writes` is the value it
    stores."""

    kernel: Kernel
    operands: tuple[Operand, ...]
    groups: tuple[int, int, int]
    work: int
    schedule: Mapping[str, Any] = field(default_factory=dict)


def param_of(scene: Scene, leaf: Value) -> list[tuple[Operand, DType, Access]]:
    """The parameters that a stored value is read through: one, or for a weight one a part. What no dispatch writes is
    READ."""
    defined = scene.graph.definition(leaf)
    constant = isinstance(defined, Input) and defined.storage in (Storage.CONST, Storage.SLOT, Storage.COMPUTED)
    access = Access.READ if constant else Access.READ_WRITE
    layout = scene.layouts.get(leaf)
    if layout is None:
        return [(Operand(leaf), leaf.dtype, access)]
    return [(Operand(leaf, p), DType.U32, access) for p in range(len(layout.parts))]


class Frame:
    """A kernel under construction for a region: its builder, parameters in order with their operands, and its
    expressions.

    Parameters are named by place ("in0", "in1", … "out"), so that equal regions of different layers give equal kernels.
    """

    def __init__(self, scene: Scene, caps: Caps, name: str, group_size: int) -> None:
        self.scene = scene
        self.caps = caps
        self.b = KernelBuilder(name, group_size, packs_bf16="packed_half" in caps.features)
        self.operands: list[Operand] = []
        self.buffers: dict[Value, list[BufferRef]] = {}
        self._shared: dict[str, SharedRef] = {}
        self.emission = Emission(self.b, scene, self.buffers)

    def read(self, *values: Value, supplied: Sequence[Value] = ()) -> None:
        """Declare parameters for every leaf of these expressions."""
        for value in values:
            for leaf in self.scene.leaves(value, frozenset(supplied)):
                if leaf not in self.buffers:
                    self._declare(leaf)

    def _declare(self, leaf: Value) -> None:
        self.buffers[leaf] = [self._param(*param) for param in param_of(self.scene, leaf)]

    def weight_part(self, value: Value, part: int) -> BufferRef:
        """A parameter for one part of a weight, which the template reads by its layout."""
        return self._param(Operand(value, part), DType.U32, Access.READ)

    def write(self, value: Value, *, separate: bool = False) -> BufferRef:
        """The parameter of the stored value, named "out"; `separate` where a kernel stores several."""
        if value in self.buffers:
            return self.buffers[value][0]
        name = f"out{len(self.operands)}" if separate else "out"
        buffer = self._param(Operand(value), value.dtype, Access.READ_WRITE, name)
        self.buffers[value] = [buffer]
        return buffer

    def scratch(self, number: int, shape: tuple[int, ...], dtype: DType = DType.F32) -> BufferRef:
        """A parameter for memory of 32-bit elements that lives as long as the region's dispatches run; equal numbers
        and shapes are one."""
        value = Value(-1 - number, TensorType(shape, dtype))
        return self._param(Operand(value), dtype, Access.READ_WRITE, f"scratch{number}")

    def shared(self, name: str, count: int) -> SharedRef:
        """Shared memory for f32, the same whenever it is asked for: parts of a group that never run together use it."""
        if name not in self._shared:
            self._shared[name] = self.b.shared(name, DType.F32, count)
        return self._shared[name]

    def _param(self, operand: Operand, dtype: DType, access: Access, name: str | None = None) -> BufferRef:
        buffer = self.b.buffer(name or f"in{len(self.operands)}", dtype, access)
        self.operands.append(operand)
        return buffer

    def element(self, value: Value, index: Index) -> Handle:
        """One element of an expression, in the kernel dtype that holds its dtype."""
        return self.emission.element(value, index)

    def supply(self, value: Value, give: Callable[[Index], Handle]) -> None:
        """From now on, expressions get this value's elements from the template, and what was computed before is
        forgotten."""
        self.emission.supplied[value] = give
        self.emission.forget()

    def flat_group(self, groups: tuple[int, int, int]) -> Handle:
        """The group's number in a grid made by `grid`."""
        if groups[1] == 1:
            return self.b.group_id(0)
        return self.b.group_id(1) * groups[0] + self.b.group_id(0)

    def draft(self, groups: tuple[int, int, int], nbytes: int, **schedule: Any) -> Draft:
        """The finished kernel with its operands, moving `nbytes`. Raises Unsupported over the target's bindings."""
        return make_draft(self.b.finish(), self.operands, self.caps, groups, nbytes, schedule)

    def nbytes(self) -> int:
        """Bytes of every buffer that the kernel binds, each once."""
        total = 0
        for operand in self.operands:
            layout = self.scene.layouts.get(operand.value)
            total += operand.value.type.nbytes if layout is None else layout.parts[operand.part or 0].nbytes
        return total


def make_draft(
    kernel: Kernel,
    operands: Sequence[Operand],
    caps: Caps,
    groups: tuple[int, int, int],
    nbytes: int,
    schedule: Mapping[str, Any],
) -> Draft:
    """A draft of a kernel that moves `nbytes`. Raises Unsupported where it binds more buffers than the target does, or
    is launched over more groups."""
    count = len(kernel.params)
    if any(n > most for n, most in zip(groups, caps.max_groups, strict=True)):
        raise Unsupported(f"region {kernel.name}", f"a grid of {groups} is over the target's {caps.max_groups}")
    if count > caps.max_bindings:
        missing = f"it reads and writes {count} buffers, the target binds {caps.max_bindings}"
        raise Unsupported(f"region {kernel.name}", missing)
    return Draft(kernel, tuple(operands), groups, nbytes + DISPATCH_WORK, schedule)


def grid(count: int, caps: Caps) -> tuple[int, int, int]:
    """At least `count` groups in two axes within the target's limits. The last row may run over: guard by the flat
    number."""
    most = caps.max_groups[0]
    if count <= most:
        return (max(count, 1), 1, 1)
    rows = -(-count // most)
    if rows > caps.max_groups[1]:
        raise Unsupported(f"a grid of {count:,} groups", f"the target launches {most:,} by {caps.max_groups[1]:,}")
    return (-(-count // rows), rows, 1)


PER_WORD = {DType.F16: 2, DType.BF16: 2, DType.I8: 4, DType.U8: 4}
"""Elements of a sub-word dtype that share a 32-bit word."""


def pack_word(b: KernelBuilder, dtype: DType, parts: Sequence[Handle]) -> Handle:
    """A word of sub-word elements from held ones, lowest first."""
    if dtype is DType.F16:
        return b.pack_half2(*parts)
    if dtype is DType.BF16:
        return b.pack_bf16x2(*parts)
    return b.pack_bytes4(*parts)


def store_elements(
    frame: Frame, value: Value, out: BufferRef, word: Handle, element: Callable[[Handle], Handle], count: int
) -> None:
    """Store the element (or the whole word of elements) number `word`; `element` gives the one at a flat index.

    `count` is the number of elements: those that a last word has beyond it repeat the last one.
    """
    b = frame.b
    per_word = PER_WORD.get(value.dtype, 1)
    if per_word == 1:
        out[word] = element(word)
        return
    places = [word * per_word + i for i in range(per_word)]
    if count % per_word:
        places = [b.min(place, count - 1) for place in places]
    out.store_word(word, pack_word(b, value.dtype, [element(place) for place in places]))


def words_of(value: Value) -> int:
    """Device words that a value takes."""
    return -(-value.type.count // PER_WORD.get(value.dtype, 1))


def flat_element(frame: Frame, value: Value) -> Callable[[Handle], Handle]:
    """A value's element by its row-major number."""
    return lambda place: frame.element(value, unravel(frame.b, place, value.shape))

"""Expressions as hooks: what a kernel of the library is specialized with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poot_executor.compile.expression import Emission, Scene
from poot_executor.compile.lower.draft import Draft, Operand, make_draft, param_of
from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.graph.graph import TensorType, Value
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel.lang import Hook


class Hooks:
    """The hooks of one kernel, in the order of its parameters, and the operands that their buffers are bound to."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.operands: list[Operand] = []

    def read(self, value: Value) -> Hook:
        """hook(*index) is the value's element at that index."""
        params, emission = self._leaves(value)

        def emit(b: KernelBuilder, buffers: Sequence[BufferRef], *index: Handle) -> Handle:
            return emission(b, buffers).element(value, index)

        return Hook(params, emit)

    def quad(self, value: Value) -> Hook:
        """hook(row, column) is the four elements from a column, a multiple of 4, of value f32[rows, columns]; -inf
        beyond the last one. It is one load where they lie side by side.
        """
        params, emission = self._leaves(value)
        columns = value.shape[1]

        def side_by_side(b: KernelBuilder, buffers: Sequence[BufferRef], *index: Handle) -> tuple[Handle, ...]:
            four = emission(b, buffers).vector(value, index, 1)
            return (four,) * 4 if four.width == 1 else tuple(four[i] for i in range(4))

        def apart(b: KernelBuilder, buffers: Sequence[BufferRef], row: Handle, column: Handle) -> tuple[Handle, ...]:
            known = emission(b, buffers)
            four = []
            for i in range(4):
                element = known.element(value, (row, b.min(column + i, columns - 1)))
                four.append(b.select(column + i < columns, element, float("-inf")))
            return tuple(four)

        return Hook(params, apart if columns % 4 else side_by_side)

    def _leaves(
        self, value: Value
    ) -> tuple[tuple[tuple[str, DType, Access], ...], Callable[[KernelBuilder, Sequence[BufferRef]], Emission]]:
        """The parameters that an expression is read through, and the expressions over their buffers."""
        params, owners = [], []
        for leaf in self.scene.leaves(value, frozenset()):
            for operand, dtype, access in param_of(self.scene, leaf):
                params.append((f"in{len(params)}", dtype, access))
                owners.append(leaf)
                self.operands.append(operand)

        def emission(b: KernelBuilder, buffers: Sequence[BufferRef]) -> Emission:
            table: dict[Value, list[BufferRef]] = {}
            for owner, buffer in zip(owners, buffers, strict=True):
                table.setdefault(owner, []).append(buffer)
            return Emission(b, self.scene, table)

        return tuple(params), emission

    def store(self, value: Value) -> Hook:
        """hook(place, element) stores a 32-bit element by its row-major number."""
        self.operands.append(Operand(value))

        def emit(_b: KernelBuilder, buffers: Sequence[BufferRef], place: Handle, element: Handle) -> None:
            buffers[0][place] = element

        return Hook((("out", value.dtype, Access.READ_WRITE),), emit)

    def scratch(self, number: int, shape: tuple[int, ...]) -> Hook:
        """hook(place) loads and hook(place, element) stores an f32 of memory that lives as long as the region's
        dispatches run; equal numbers and shapes are one.
        """
        self.operands.append(Operand(Value(-1 - number, TensorType(shape, DType.F32))))

        def emit(
            _b: KernelBuilder, buffers: Sequence[BufferRef], place: Handle, element: Handle | None = None
        ) -> Handle | None:
            if element is None:
                return buffers[0][place]
            buffers[0][place] = element
            return None

        return Hook((("scratch", DType.F32, Access.READ_WRITE),), emit)

    def draft(self, kernel: Kernel, caps: Caps, groups: tuple[int, int, int], **schedule: object) -> Draft:
        """The kernel with the hooks' operands. Raises Unsupported where the target binds fewer buffers."""
        nbytes = sum(operand.value.type.nbytes for operand in self.operands)
        return make_draft(kernel, self.operands, caps, groups, nbytes, schedule)

"""Expressions as hooks: what a kernel of the library is specialized with."""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.compile.expression import Emission, Scene
from poot_executor.compile.lower.draft import Draft, Operand, make_draft, param_of
from poot_executor.compile.target import Caps
from poot_executor.graph.graph import Value
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
        leaves = self.scene.leaves(value, frozenset())
        params, owners = [], []
        for leaf in leaves:
            for operand, dtype, access in param_of(self.scene, leaf):
                params.append((f"in{len(params)}", dtype, access))
                owners.append(leaf)
                self.operands.append(operand)

        def emit(b: KernelBuilder, buffers: Sequence[BufferRef], *index: Handle) -> Handle:
            table: dict[Value, list[BufferRef]] = {}
            for owner, buffer in zip(owners, buffers, strict=True):
                table.setdefault(owner, []).append(buffer)
            return Emission(b, self.scene, table).element(value, index)

        return Hook(tuple(params), emit)

    def store(self, value: Value) -> Hook:
        """hook(place, element) stores a 32-bit element by its row-major number."""
        self.operands.append(Operand(value))

        def emit(_b: KernelBuilder, buffers: Sequence[BufferRef], place: Handle, element: Handle) -> None:
            buffers[0][place] = element

        return Hook((("out", value.dtype, Access.READ_WRITE),), emit)

    def draft(self, kernel: Kernel, caps: Caps, groups: tuple[int, int, int], **schedule: object) -> Draft:
        """The kernel with the hooks' operands. Raises Unsupported where the target binds fewer buffers."""
        nbytes = sum(operand.value.type.nbytes for operand in self.operands)
        return make_draft(kernel, self.operands, caps, groups, nbytes, schedule)

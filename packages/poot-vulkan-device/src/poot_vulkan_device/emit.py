"""Kernel IR to SPIR-V words. Pure: equal kernels and caps give equal bytes; no library, no hardware, no other compiler.

Parameters are the bindings of set 0 in order, each a storage buffer of a runtime array; a kernel that may fault has the
fault word as one more. A binding is seen as an array of scalars, of vectors, or of both, as its accesses ask. What
loops and branches carry are phis. Constants and types are shared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poot_executor.compile.target import Caps
from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.fragments import FragmentType, Use
from poot_executor.kernel.ir import KERNEL_OPS, Access, Block, Kernel, KType, Op, Val
from poot_executor.kernel.passes.expand import expand_routines
from poot_executor.kernel.routines import ROUTINES
from poot_executor.kernel.rules import Rules
from poot_executor.kernel_limits import check_limits
from poot_executor.known_answers import PACK_HALF, UNPACK_HALF
from poot_executor.known_arithmetic import INF_NAN_PRESERVE
from poot_executor.loop_watch import CUT_SHORT, watches_loops
from poot_vulkan_device.accesses import Accesses
from poot_vulkan_device.assembler import Module, to_bytes
from poot_vulkan_device.features import DENORM_PRESERVE, ROUNDING_RTE
from poot_vulkan_device.spirv import (
    BFLOAT16,
    NON_PRIVATE,
    VULKAN,
    BuiltIn,
    Capability,
    Code,
    Decoration,
    Mode,
    Scope,
    Semantics,
    Storage,
)  # fmt: skip

ENTRY = "main"
"""The entry point's name in every module."""

Rule = Callable[["Emitter", Op], None]

_MODES = (
    (DENORM_PRESERVE, Capability.DENORM_PRESERVE, Mode.DENORM_PRESERVE),
    (INF_NAN_PRESERVE, Capability.SIGNED_ZERO_INF_NAN_PRESERVE, Mode.SIGNED_ZERO_INF_NAN_PRESERVE),
    (ROUNDING_RTE, Capability.ROUNDING_MODE_RTE, Mode.ROUNDING_MODE_RTE),
)

_CONVERSIONS = {"half_to_float": UNPACK_HALF, "float_to_half": PACK_HALF}


class Emitter:
    """The module of one kernel under construction. `kernel` is what is emitted, `identity` what a fault word names."""

    def __init__(self, kernel: Kernel, caps: Caps, rules: Rules[Rule]) -> None:
        self.identity = kernel.identity
        replaced = {
            name: routine
            for name, routine in ROUTINES.items()
            if name not in _CONVERSIONS or _CONVERSIONS[name] not in caps.features
        }
        self.kernel = expand_routines(kernel, replaced)
        self.caps = caps
        self.accesses = Accesses(kernel)
        self.watched = watches_loops(kernel, caps)
        self.module = Module()
        fragments = self.accesses.fragments
        self.device_scope = Scope.QUEUE_FAMILY if fragments else Scope.DEVICE
        """The widest scope that the memory model has without a further capability."""
        self.shares = (NON_PRIVATE,) if fragments else ()
        """Memory operands of loads and stores that barriers order."""
        self._rules = rules
        self._ids: dict[Val, int] = {}
        self._constants: dict[Val, int | float | bool] = {}
        self._views: dict[tuple[int, int], int] = {}
        self._arrays: dict[int, int] = {}
        self._inputs: dict[BuiltIn, int] = {}
        self._structs: dict[tuple[DType, int], int] = {}
        self._fault = 0
        self.cut_short = 0
        """The variable that says that the device ended a loop early; 0 where none is needed."""

    def emit(self) -> bytes:
        """The whole module. Raises Unsupported for an operation without a rule or capability."""
        module = self.module
        module.name(module.main, self.kernel.name)
        module.mode(Mode.LOCAL_SIZE, self.kernel.group_size, 1, 1)
        for feature, capability, mode in _MODES:
            if feature in self.caps.features:
                module.capability(capability, "SPV_KHR_float_controls")
                module.mode(mode, 32)
        if self.accesses.fragments:
            module.memory_model = VULKAN
            module.capability(Capability.VULKAN_MEMORY_MODEL, "SPV_KHR_vulkan_memory_model")
            module.capability(Capability.COOPERATIVE_MATRIX, "SPV_KHR_cooperative_matrix")
        if self.watched:
            boolean = self.type(KType(DType.BOOL))
            pointer = module.declare(Code.TYPE_POINTER, Storage.FUNCTION, boolean)
            false = module.constant(Code.CONSTANT_FALSE, boolean)
            self.cut_short = module.first(Code.VARIABLE, pointer, Storage.FUNCTION, false)
        self.block(self.kernel.body)
        if self.watched:
            boolean = self.type(KType(DType.BOOL))
            self.fault(module.result(Code.LOAD, boolean, self.cut_short), CUT_SHORT)
        self._decorate_views()
        return to_bytes(module.words(ENTRY))

    def block(self, block: Block) -> tuple[Val, ...]:
        """Emit a block's operations. Returns the operands of its yield; a kernel's body has none."""
        for op in block.ops:
            if op.kind == "yield":
                return op.operands
            rule = self._rules[op]
            needs = KERNEL_OPS[op.kind].needs
            if needs is not None and needs not in self.caps.features:
                where = f"vulkan: {op.kind} in kernel {self.kernel.name}" + (f", {op.line}" if op.line else "")
                raise Unsupported(where, f"this device lacks {needs}")
            rule(self, op)
        return ()

    # Types and values

    def type(self, type: KType) -> int:
        """The id of a value's type."""
        module, dtype = self.module, type.dtype
        if isinstance(type, FragmentType):
            return self._fragment_type(type)
        if dtype is DType.BOOL:
            scalar = module.declare(Code.TYPE_BOOL)
        elif dtype is DType.F32:
            scalar = module.declare(Code.TYPE_FLOAT, 32)
        else:
            scalar = module.declare(Code.TYPE_INT, 32, int(dtype is DType.I32))
        return scalar if type.width == 1 else module.declare(Code.TYPE_VECTOR, scalar, type.width)

    def _fragment_type(self, type: FragmentType) -> int:
        module, dtype = self.module, type.dtype
        if dtype is DType.F16:
            module.capability(Capability.FLOAT16)
            element = module.declare(Code.TYPE_FLOAT, 16)
        elif dtype is DType.BF16:
            module.capability(Capability.BFLOAT16_TYPE, "SPV_KHR_bfloat16")
            module.capability(Capability.BFLOAT16_COOPERATIVE_MATRIX)
            element = module.declare(Code.TYPE_FLOAT, 16, BFLOAT16)
        elif dtype is DType.I8:
            module.capability(Capability.INT8)
            element = module.declare(Code.TYPE_INT, 8, 1)
        else:
            element = self.type(KType(dtype))
        use = {Use.A: 0, Use.B: 1, Use.SUM: 2}[type.use]
        sizes = [self.word(n) for n in (Scope.SUBGROUP, type.rows, type.columns, use)]
        return module.declare(Code.TYPE_COOPERATIVE_MATRIX, element, *sizes)

    def constant(self, type: KType, value: float | bool) -> int:
        """The id of a constant; of a vector all of whose lanes have the value."""
        module, scalar = self.module, self.type(KType(type.dtype))
        if type.dtype is DType.BOOL:
            lane = module.constant(Code.CONSTANT_TRUE if value else Code.CONSTANT_FALSE, scalar)
        elif type.dtype is DType.F32:
            lane = module.constant(Code.CONSTANT, scalar, int(np.float32(value).view(np.uint32)))
        else:
            lane = module.constant(Code.CONSTANT, scalar, int(value) & 0xFFFFFFFF)
        if type.width == 1:
            return lane
        return module.constant(Code.CONSTANT_COMPOSITE, self.type(type), *[lane] * type.width)

    def word(self, value: int) -> int:
        """The id of a u32 constant."""
        return self.constant(KType(DType.U32), value)

    def remember(self, value: Val, number: float | bool) -> None:
        """A constant of the kernel: it is declared where it is used."""
        self._constants[value] = number

    def number(self, value: Val) -> int | float | bool | None:
        """The number that a value is known to be."""
        return self._constants.get(value)

    def id(self, value: Val) -> int:
        """The id of a value."""
        known = self._ids.get(value)
        if known is None:
            known = self._ids[value] = self.constant(value.type, self._constants[value])
        return known

    def ids(self, op: Op) -> list[int]:
        """The ids of all operands."""
        return [self.id(value) for value in op.operands]

    def bind(self, value: Val, id: int) -> None:
        """Let a value be known by an id."""
        self._ids[value] = id

    def define(self, op: Op, code: Code, *operands: int) -> int:
        """An instruction that gives the operation's one result."""
        id = self.module.result(code, self.type(op.result.type), *operands)
        self._ids[op.result] = id
        return id

    def input(self, builtin: BuiltIn, type: KType) -> int:
        """The value of an input variable, loaded once."""
        if builtin not in self._inputs:
            module = self.module
            pointer = module.declare(Code.TYPE_POINTER, Storage.INPUT, self._input_type(type))
            variable = module.variable(pointer, Storage.INPUT, interface=True)
            module.decorate(variable, Decoration.BUILT_IN, builtin)
            self._inputs[builtin] = module.first(Code.LOAD, self._input_type(type), variable)
        return self._inputs[builtin]

    def _input_type(self, type: KType) -> int:
        scalar = self.type(KType(type.dtype))
        return scalar if type.width == 1 else self.module.declare(Code.TYPE_VECTOR, scalar, type.width)

    # Memory

    def view(self, place: int, width: int) -> int:
        """The variable of a parameter's binding as an array of vectors of that width."""
        if (place, width) not in self._views:
            param = self.kernel.params[place]
            self._views[place, width] = self._storage(place, param.dtype, width, f"b{place}_{param.name}")
        return self._views[place, width]

    def _storage(self, binding: int, dtype: DType, width: int, name: str) -> int:
        module = self.module
        struct = self._struct(dtype, width)
        pointer = module.declare(Code.TYPE_POINTER, Storage.STORAGE_BUFFER, struct)
        variable = module.variable(pointer, Storage.STORAGE_BUFFER)
        module.name(variable, name)
        module.decorate(variable, Decoration.DESCRIPTOR_SET, 0)
        module.decorate(variable, Decoration.BINDING, binding)
        return variable

    def _struct(self, dtype: DType, width: int) -> int:
        """A structure of one runtime array of tightly packed elements."""
        if (dtype, width) not in self._structs:
            module = self.module
            array = module.distinct_type(Code.TYPE_RUNTIME_ARRAY, self.type(KType(dtype, width)))
            module.decorate(array, Decoration.ARRAY_STRIDE, 4 * width)
            struct = module.distinct_type(Code.TYPE_STRUCT, array)
            module.decorate(struct, Decoration.BLOCK)
            module.decorate_member(struct, 0, Decoration.OFFSET, 0)
            self._structs[dtype, width] = struct
        return self._structs[dtype, width]

    def _decorate_views(self) -> None:
        writable = sum(param.access is Access.READ_WRITE for param in self.kernel.params)
        for (place, _), variable in sorted(self._views.items()):
            views = sum(seen == place for seen, _ in self._views)
            if self.kernel.params[place].access is Access.READ:
                self.module.decorate(variable, Decoration.NON_WRITABLE)
            elif place in self.accesses.exchanged and not self.accesses.fragments:
                self.module.decorate(variable, Decoration.COHERENT)
            # Two parameters may be slices of one buffer, unless neither is written.
            if views > 1 or (writable > 1 and self.kernel.params[place].access is Access.READ_WRITE):
                self.module.decorate(variable, Decoration.ALIASED)

    def element(self, place: int, index: int, width: int = 1) -> int:
        """A pointer to an element of a buffer, or to a vector of them from an index that is a multiple of the width."""
        module, dtype = self.module, self.kernel.params[place].dtype
        variable = self.view(place, width)
        if width > 1:
            shift = self.word(width.bit_length() - 1)
            index = module.result(Code.SHIFT_RIGHT_LOGICAL, self.type(KType(DType.I32)), index, shift)
        pointer = module.declare(Code.TYPE_POINTER, Storage.STORAGE_BUFFER, self.type(KType(dtype, width)))
        return module.result(Code.ACCESS_CHAIN, pointer, variable, self.word(0), index)

    def shared(self, place: int, index: int) -> int:
        """A pointer to an element of a shared array."""
        module, array = self.module, self.kernel.shared[place]
        element = self.type(KType(array.dtype))
        if place not in self._arrays:
            type = module.declare(Code.TYPE_ARRAY, element, self.word(array.count))
            pointer = module.declare(Code.TYPE_POINTER, Storage.WORKGROUP, type)
            self._arrays[place] = module.variable(pointer, Storage.WORKGROUP)
            module.name(self._arrays[place], f"s{place}_{array.name}")
        pointer = module.declare(Code.TYPE_POINTER, Storage.WORKGROUP, element)
        return module.result(Code.ACCESS_CHAIN, pointer, self._arrays[place], index)

    def fault(self, condition: int, code: int) -> None:
        """Set the fault word where the condition holds: the kernel's identity and the code. Of several the greatest
        stays.
        """
        module, u32 = self.module, self.type(KType(DType.U32))
        if not self._fault:
            self._fault = self._storage(len(self.kernel.params), DType.U32, 1, "fault")
        then, merge = module.id(), module.id()
        module.op(Code.SELECTION_MERGE, merge, 0)
        module.op(Code.BRANCH_CONDITIONAL, condition, then, merge)
        module.label(then)
        pointer = module.declare(Code.TYPE_POINTER, Storage.STORAGE_BUFFER, u32)
        word = module.result(Code.ACCESS_CHAIN, pointer, self._fault, self.word(0), self.word(0))
        scope, semantics = self.word(self.device_scope), self.word(Semantics.RELAXED)
        module.result(Code.ATOMIC_U_MAX, u32, word, scope, semantics, self.word(self.identity << 8 | code))
        module.op(Code.BRANCH, merge)
        module.label(merge)


def emit(kernel: Kernel, caps: Caps) -> bytes:
    """The SPIR-V of a kernel. Raises Unsupported naming the operation and its types."""
    from poot_vulkan_device.rules import RULES

    check_limits("vulkan", kernel, caps)
    return Emitter(kernel, caps, RULES).emit()

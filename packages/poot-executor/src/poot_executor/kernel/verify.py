"""The verifier: what every kernel holds to, after the builder and after each pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.fragments import FragmentType
from poot_executor.kernel.ir import KERNEL_OPS, Block, Kernel, KType, Op, Val
from poot_executor.kernel.signatures import VALUE_DTYPES, WORD_DTYPES, result_types
from poot_executor.kernel.uniform import Uniformity
from poot_executor.kernel.warpgroups import THREADS

MAX_GROUP_SIZE = 1024
"""Threads of a group: the most that any target takes."""

_COLLECTIVE = frozenset(
    {
        "barrier", "subgroup_sum", "subgroup_max", "subgroup_min", "subgroup_shuffle", "subgroup_shuffle_xor",
        "group_sum", "group_max", "group_min", "mma",
        "fragment_zero", "fragment_load", "fragment_store", "fragment_mma", "fragment_fma",
        "copy_commit", "copy_wait", "warpgroup_mma",
    }
)  # fmt: skip
_I32, _BOOL = KType(DType.I32), KType(DType.BOOL)


def verify(kernel: Kernel, subgroup_width: int | None = None) -> None:
    """Raise KernelError, naming kernel, operation and line, unless the kernel is well formed.

    Checked: names and counts of parameters and shared arrays; that each value is defined once, before its uses, in a
    block that encloses them; the types of every operation; the structure of blocks; constant indices of shared
    arrays; that barriers, subgroup and group operations are in control flow that is uniform over the group.
    `subgroup_width` is the target's where it is fixed: it makes a subgroup reduction of a group that is one subgroup
    uniform.
    """
    _declarations(kernel)
    _Verifier(kernel).run()
    _copies(kernel)
    uniform = Uniformity(kernel, subgroup_width)
    for op in kernel.body.walk():
        if op.kind in _COLLECTIVE and not uniform.control(op):
            raise _at(kernel, op, "is in control flow that threads of a group may not share")


def _at(kernel: Kernel, op: Op, problem: str) -> KernelError:
    where = f", {op.line}" if op.line else ""
    return KernelError(f"kernel {kernel.name}{where}: {op.kind}: {problem}")


def _declarations(kernel: Kernel) -> None:
    if not 1 <= kernel.group_size <= MAX_GROUP_SIZE:
        raise KernelError(f"kernel {kernel.name}: a group has 1 to {MAX_GROUP_SIZE} threads, not {kernel.group_size}")
    for what, names in (("buffers", kernel.params), ("shared arrays", kernel.shared)):
        if len({item.name for item in names}) != len(names):
            raise KernelError(f"kernel {kernel.name}: two {what} of one name")
    for item in (*kernel.params, *kernel.shared):
        if item.dtype not in WORD_DTYPES:
            raise KernelError(f"kernel {kernel.name}: {item.name} has {item.dtype} elements: f32, i32 or u32")
    for array in kernel.shared:
        if array.count < 1:
            raise KernelError(f"kernel {kernel.name}: shared array {array.name} has {array.count} elements")


def _copies(kernel: Kernel) -> None:
    """Copies that are on their way see what a buffer had all along, and products have whole warpgroups."""
    writes = ("store", "atomic", "fragment_store")
    written = {op.attrs["buffer"] for op in kernel.body.walk() if op.kind in writes and "buffer" in op.attrs}
    for op in kernel.body.walk():
        if op.kind == "shared_copy" and op.attrs["buffer"] in written:
            raise _at(kernel, op, f"copies from {kernel.params[op.attrs['buffer']].name}, which the kernel writes")
        if op.kind == "warpgroup_mma" and kernel.group_size % THREADS:
            raise _at(kernel, op, f"a group of {kernel.group_size} threads is no whole number of warpgroups")


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._visible: set[Val] = set()
        self._defined: set[Val] = set()
        self._constants: dict[Val, object] = {}

    def run(self) -> None:
        if self._kernel.body.args:
            raise KernelError(f"kernel {self._kernel.name}: a kernel's body has no arguments")
        for op in self._kernel.body.ops:
            if op.kind == "yield":
                raise _at(self._kernel, op, "a kernel's body has none")
            self._op(op)

    def _op(self, op: Op) -> None:
        if op.kind not in KERNEL_OPS:
            raise _at(self._kernel, op, "there is no such operation")
        for value in op.operands:
            self._use(op, value)
        match op.kind:
            case "for":
                self._for(op)
            case "while":
                self._while(op)
            case "if":
                self._if(op)
            case _:
                self._plain(op)
        self._define(op, op.results)

    def _use(self, op: Op, value: Val) -> None:
        if value not in self._visible:
            known = "is not visible here" if value in self._defined else "is not defined before"
            raise _at(self._kernel, op, f"operand {op.operands.index(value)} ({value.hint or value.type}) {known}")

    def _define(self, op: Op, values: Sequence[Val]) -> None:
        for value in values:
            if value in self._defined:
                raise _at(self._kernel, op, f"defines a value ({value.hint or value.type}) that is already defined")
            plain = value.dtype in VALUE_DTYPES and value.type.width in (1, 2, 4)
            if not plain and not isinstance(value.type, FragmentType):
                raise _at(self._kernel, op, f"no value of a kernel is {value.type}")
            self._defined.add(value)
            self._visible.add(value)

    def _plain(self, op: Op) -> None:
        if op.blocks:
            raise _at(self._kernel, op, "has no blocks")
        declared = [value.type for value in op.results]
        try:
            types = result_types(
                op.kind, [v.type for v in op.operands], op.attrs, declared, self._kernel.params, self._kernel.shared
            )
        except KernelError as error:
            raise _at(self._kernel, op, str(error)) from None
        if list(types) != declared:
            raise _at(self._kernel, op, f"gives {_types(types)}, not {_types(declared)}")
        if op.kind == "const":
            self._constants[op.result] = op.attrs["value"]
        self._constant_index(op)

    def _constant_index(self, op: Op) -> None:
        if not op.operands or not ("array" in op.attrs or "buffer" in op.attrs):
            return
        index = self._constants.get(op.operands[0])
        if not isinstance(index, int):
            return
        count = self._kernel.shared[op.attrs["array"]].count if "array" in op.attrs else None
        width = (
            op.results[0].type.width
            if op.kind in ("load", "shared_load")
            else op.operands[1].type.width
            if op.kind in ("store", "shared_store")
            else 1
        )
        if index < 0 or (count is not None and index >= count):
            raise _at(
                self._kernel, op, f"index {index} is outside" + ("" if count is None else f" of {count} elements")
            )
        if index % width:
            raise _at(self._kernel, op, f"a vector access of width {width} at index {index}, no multiple of it")

    def _for(self, op: Op) -> None:
        if len(op.blocks) != 1 or len(op.operands) < 3:
            raise _at(self._kernel, op, "has low, high, step and one block")
        if any(value.type != _I32 for value in op.operands[:3]):
            raise _at(self._kernel, op, f"low, high and step are i32, not {_types([v.type for v in op.operands[:3]])}")
        step = self._constants.get(op.operands[2])
        if isinstance(step, int) and step <= 0:
            raise _at(self._kernel, op, f"step {step} is not positive")
        types = [value.type for value in op.operands[3:]]
        self._match(op, "results", [v.type for v in op.results], types)
        self._nested(op, op.blocks[0], [_I32, *types], types)

    def _while(self, op: Op) -> None:
        if len(op.blocks) != 2:
            raise _at(self._kernel, op, "has a condition block and a body block")
        types = [value.type for value in op.operands]
        self._match(op, "results", [v.type for v in op.results], types)
        self._nested(op, op.blocks[0], types, [_BOOL])
        self._nested(op, op.blocks[1], types, types)

    def _if(self, op: Op) -> None:
        if len(op.blocks) != 2 or len(op.operands) != 1 or op.operands[0].type != _BOOL:
            raise _at(self._kernel, op, "has a bool condition and two blocks")
        for block in op.blocks:
            self._nested(op, block, [], [value.type for value in op.results])

    def _nested(self, op: Op, block: Block, args: list[KType], yields: list[KType]) -> None:
        self._match(op, "block arguments", [v.type for v in block.args], args)
        if not block.ops or block.ops[-1].kind != "yield":
            raise _at(self._kernel, op, "a nested block ends in yield")
        with self._inside():
            self._define(op, block.args)
            for inner in block.ops[:-1]:
                if inner.kind == "yield":
                    raise _at(self._kernel, inner, "ends a block, and operations follow it")
                self._op(inner)
            last = block.ops[-1]
            for value in last.operands:
                self._use(last, value)
            self._match(last, "values", [v.type for v in last.operands], yields)

    @contextmanager
    def _inside(self) -> Iterator[None]:
        outer = self._visible
        self._visible = set(outer)
        yield
        self._visible = outer

    def _match(self, op: Op, what: str, have: Sequence[KType], want: Sequence[KType]) -> None:
        if list(have) != list(want):
            raise _at(self._kernel, op, f"{what} are {_types(have)}, where {_types(want)} belong")


def _types(types: Sequence[KType]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"

"""SPIR-V rules of structured control flow. What is carried is a phi: in a loop's header, or where the branches of an if
meet.
"""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.dtype import DType
from poot_executor.errors import Unsupported
from poot_executor.kernel.fragments import FragmentType
from poot_executor.kernel.ir import KERNEL_OPS, KType, Op, Val
from poot_executor.kernel.rules import Rules
from poot_vulkan_device.assembler import Words
from poot_vulkan_device.emit import Emitter, Rule
from poot_vulkan_device.spirv import DONT_UNROLL, Code, Storage

_BOOL, _I32 = KType(DType.BOOL), KType(DType.I32)

_REPEATABLE = frozenset({"load", "shared_load", "if", "yield"})


class _Loop:
    """Blocks and phis of a loop: the header, which holds the phis; whatever evaluates the condition; the body; the
    continuation, which jumps back; the merge block after it. Matrix fragments are carried in variables, as in what
    compilers of shading languages make: drivers know no other.
    """

    def __init__(self, e: Emitter, carried: Sequence[tuple[KType, int]]) -> None:
        module = e.module
        self._e = e
        before, self.header = module.block, module.id()
        self.body, self.again, self.merge = module.id(), module.id(), module.id()
        self._variables = [_variable(e, type, initial) for type, initial in carried]
        module.op(Code.BRANCH, self.header)
        module.label(self.header)
        phis = [
            (0, []) if variable else module.phi(e.type(type), initial, before)
            for (type, initial), variable in zip(carried, self._variables, strict=True)
        ]
        self._phis: list[Words] = [words for _, words in phis]
        module.op(Code.LOOP_MERGE, self.merge, self.again, DONT_UNROLL)
        start = module.id()
        module.op(Code.BRANCH, start)
        module.label(start)
        self.values = [
            module.result(Code.LOAD, e.type(type), variable) if variable else value
            for (value, _), (type, _), variable in zip(phis, carried, self._variables, strict=True)
        ]

    def enter(self, condition: int) -> None:
        """Go on to the body where the condition holds, else out."""
        self._e.module.op(Code.BRANCH_CONDITIONAL, condition, self.body, self.merge)
        self._e.module.label(self.body)

    def leave_body(self) -> None:
        """From the body to the continuation."""
        self._e.module.op(Code.BRANCH, self.again)
        self._e.module.label(self.again)

    def close(self, following: Sequence[int]) -> None:
        """Back to the header with what the next round carries; then go on after the loop."""
        module = self._e.module
        for phi, variable, value in zip(self._phis, self._variables, following, strict=True):
            if variable:
                module.op(Code.STORE, variable, value)
            else:
                module.add_pair(phi, value, module.block)
        module.op(Code.BRANCH, self.header)
        module.label(self.merge)


def _variable(e: Emitter, type: KType, initial: int) -> int:
    """The variable that carries a fragment, holding the first one; 0 for what a phi carries."""
    if not isinstance(type, FragmentType):
        return 0
    variable = e.module.local(e.module.declare(Code.TYPE_POINTER, Storage.FUNCTION, e.type(type)), Storage.FUNCTION)
    e.module.op(Code.STORE, variable, initial)
    return variable


def _note_cut(e: Emitter, condition: int) -> None:
    """Note that a loop ended although its condition still held."""
    module, boolean = e.module, e.type(_BOOL)
    noted = module.result(Code.LOAD, boolean, e.cut_short)
    module.op(Code.STORE, e.cut_short, module.result(Code.LOGICAL_OR, boolean, noted, condition))


def _for(e: Emitter, op: Op) -> None:
    module = e.module
    low, high, step = (e.id(value) for value in op.operands[:3])
    (body,) = op.blocks
    carried = [(_I32, low), *((value.type, e.id(value)) for value in op.operands[3:])]
    loop = _Loop(e, carried)
    for arg, value in zip(body.args, loop.values, strict=True):
        e.bind(arg, value)
    loop.enter(module.result(Code.S_LESS_THAN, e.type(_BOOL), loop.values[0], high))
    following = [e.id(value) for value in e.block(body)]
    loop.leave_body()
    loop.close([module.result(Code.I_ADD, e.type(_I32), loop.values[0], step), *following])
    for result, value in zip(op.results, loop.values[1:], strict=True):
        e.bind(result, value)
    if e.watched:
        _note_cut(e, module.result(Code.S_LESS_THAN, e.type(_BOOL), loop.values[0], high))


def _while(e: Emitter, op: Op) -> None:
    head, body = op.blocks
    if e.watched and any(inner.kind not in _REPEATABLE and not KERNEL_OPS[inner.kind].pure for inner in head.walk()):
        raise Unsupported(
            f"vulkan: while in kernel {e.kernel.name}, {op.line}",
            "this device may end loops early, and a condition with effects cannot be asked again",
        )
    loop = _Loop(e, [(value.type, e.id(value)) for value in op.operands])
    for args in (head.args, body.args, op.results):
        for arg, value in zip(args, loop.values, strict=True):
            e.bind(arg, value)
    (condition,) = e.block(head)
    loop.enter(e.id(condition))
    following = [e.id(value) for value in e.block(body)]
    loop.leave_body()
    loop.close(following)
    if e.watched:
        # The condition itself a compiler takes for false here, where the loop has ended. Asked again it is another one.
        (condition,) = e.block(head)
        _note_cut(e, e.id(condition))


def _if(e: Emitter, op: Op) -> None:
    module = e.module
    then, other = op.blocks
    condition, merge = e.id(op.operands[0]), module.id()
    first, second = module.id(), module.id()
    needed = bool(op.results) or len(other.ops) > 1
    module.op(Code.SELECTION_MERGE, merge, 0)
    module.op(Code.BRANCH_CONDITIONAL, condition, first, second if needed else merge)
    ends: list[tuple[tuple[int, ...], int]] = []
    for label, block in ((first, then), (second, other))[: 2 if needed else 1]:
        module.label(label)
        yielded = tuple(e.id(value) for value in e.block(block))
        ends.append((yielded, module.block))
        module.op(Code.BRANCH, merge)
    module.label(merge)
    for place, result in enumerate(op.results):
        pairs = [word for yielded, block in ends for word in (yielded[place], block)]
        _bind_phi(e, result, pairs)


def _bind_phi(e: Emitter, result: Val, pairs: Sequence[int]) -> None:
    value, _ = e.module.phi(e.type(result.type), *pairs)
    e.bind(result, value)


def add_control(rules: Rules[Rule]) -> None:
    """Put the rules of control flow into a table."""
    for name, rule in {"for": _for, "while": _while, "if": _if}.items():
        rules.rule(name)(rule)

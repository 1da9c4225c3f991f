"""A SPIR-V module under construction: ids, deduplicated types and constants, sections in the order that the format
demands.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from poot_vulkan_device.spirv import (
    COMPUTE,
    GLSL,
    GLSL450,
    LOGICAL,
    MAGIC,
    VERSION,
    Capability,
    Code,
    Decoration,
    Ext,
    Mode,
)  # fmt: skip

Words = list[int]


def literal(text: str) -> Words:
    """A string as words: UTF-8, ended by a zero byte, padded with more of them."""
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def instruction(code: int, *words: int) -> Words:
    """An instruction: its length and code, then its words."""
    return [(len(words) + 1) << 16 | code, *words]


class Module:
    """One entry point of a compute shader. `op` and `result` append to its body."""

    def __init__(self) -> None:
        self._bound = 1
        self._capabilities: dict[Capability, None] = {Capability.SHADER: None}
        self._extensions: dict[str, None] = {}
        self._glsl = 0
        self._modes: list[tuple[int, ...]] = []
        self._interface: list[int] = []
        self._names: list[Words] = []
        self._annotations: list[Words] = []
        self._globals: list[Words] = []
        self._known: dict[tuple[int, ...], int] = {}
        self._locals: list[Words] = []
        self._prologue: list[Words] = []
        self._body: list[Words] = []
        self.main = self.id()
        self.block = self.id()
        """The label of the block that instructions are appended to."""
        self._entry_block = self.block
        self.memory_model = GLSL450

    def id(self) -> int:
        """A new id."""
        self._bound += 1
        return self._bound - 1

    # Declarations

    def capability(self, capability: Capability, extension: str = "") -> None:
        """Declare a capability, and the extension that it comes with."""
        self._capabilities[capability] = None
        if extension:
            self._extensions[extension] = None

    def mode(self, mode: Mode, *operands: int) -> None:
        """An execution mode of the entry point."""
        self._modes.append((mode, *operands))

    def name(self, target: int, text: str) -> None:
        """What an id is called in a disassembly."""
        self._names.append(instruction(Code.NAME, target, *literal(text)))

    def decorate(self, target: int, decoration: Decoration, *operands: int) -> None:
        """A decoration of an id."""
        self._annotations.append(instruction(Code.DECORATE, target, decoration, *operands))

    def decorate_member(self, target: int, member: int, decoration: Decoration, *operands: int) -> None:
        """A decoration of a structure's member."""
        self._annotations.append(instruction(Code.MEMBER_DECORATE, target, member, decoration, *operands))

    def declare(self, code: Code, *operands: int) -> int:
        """The id of a type: equal declarations share one."""
        key = (code, *operands)
        if key not in self._known:
            self._known[key] = self.id()
            self._globals.append(instruction(code, self._known[key], *operands))
        return self._known[key]

    def constant(self, code: Code, type: int, *operands: int) -> int:
        """The id of a constant: equal ones share one."""
        key = (code, type, *operands)
        if key not in self._known:
            self._known[key] = self.id()
            self._globals.append(instruction(code, type, self._known[key], *operands))
        return self._known[key]

    def distinct_type(self, code: Code, *operands: int) -> int:
        """A type of its own, for one that carries decorations."""
        type = self.id()
        self._globals.append(instruction(code, type, *operands))
        return type

    def variable(self, pointer: int, storage: int, *, interface: bool = False) -> int:
        """A global variable. `interface`: the entry point lists it (inputs)."""
        variable = self.id()
        self._globals.append(instruction(Code.VARIABLE, pointer, variable, storage))
        if interface:
            self._interface.append(variable)
        return variable

    def local(self, pointer: int, storage: int) -> int:
        """A variable of the function."""
        variable = self.id()
        self._locals.append(instruction(Code.VARIABLE, pointer, variable, storage))
        return variable

    # The body

    def op(self, code: Code, *operands: int) -> None:
        """An instruction without a result."""
        self._body.append(instruction(code, *operands))

    def result(self, code: Code, type: int, *operands: int) -> int:
        """An instruction with a result; gives its id."""
        result = self.id()
        self._body.append(instruction(code, type, result, *operands))
        return result

    def first(self, code: Code, type: int, *operands: int) -> int:
        """As `result`, at the start of the body, which dominates all of it."""
        result = self.id()
        self._prologue.append(instruction(code, type, result, *operands))
        return result

    def ext(self, function: Ext, type: int, *operands: int) -> int:
        """An instruction of GLSL.std.450; gives its id."""
        if not self._glsl:
            self._glsl = self.id()
        return self.result(Code.EXT_INST, type, self._glsl, function, *operands)

    def label(self, label: int) -> None:
        """Start a block."""
        self.op(Code.LABEL, label)
        self.block = label

    def phi(self, type: int, *pairs: int) -> tuple[int, Words]:
        """A phi over (value, predecessor) pairs. Gives its id and its words, to which `add_pair` appends the later
        pairs.
        """
        result = self.id()
        words = instruction(Code.PHI, type, result, *pairs)
        self._body.append(words)
        return result, words

    @staticmethod
    def add_pair(phi: Words, value: int, predecessor: int) -> None:
        """One more pair of a phi."""
        phi += (value, predecessor)
        phi[0] = len(phi) << 16 | Code.PHI

    # The end

    def words(self, entry: str) -> Words:
        """The whole module with `entry` as its entry point."""
        void = self.declare(Code.TYPE_VOID)
        function = self.declare(Code.TYPE_FUNCTION, void)
        sections: list[Words] = [instruction(Code.CAPABILITY, c) for c in sorted(self._capabilities)]
        sections += [instruction(Code.EXTENSION, *literal(name)) for name in self._extensions]
        if self._glsl:
            sections.append(instruction(Code.EXT_INST_IMPORT, self._glsl, *literal(GLSL)))
        sections.append(instruction(Code.MEMORY_MODEL, LOGICAL, self.memory_model))
        sections.append(instruction(Code.ENTRY_POINT, COMPUTE, self.main, *literal(entry), *self._interface))
        sections += [instruction(Code.EXECUTION_MODE, self.main, *mode) for mode in self._modes]
        sections += [*self._names, *self._annotations, *self._globals]
        sections.append(instruction(Code.FUNCTION, void, self.main, 0, function))
        sections.append(instruction(Code.LABEL, self._entry_block))
        sections += [*self._locals, *self._prologue, *self._body]
        sections += [instruction(Code.RETURN), instruction(Code.FUNCTION_END)]
        head = [MAGIC, VERSION, 0, self._bound, 0]
        return head + [word for section in sections for word in section]


def to_bytes(words: Sequence[int]) -> bytes:
    """Words as a little-endian module."""
    return struct.pack(f"<{len(words)}I", *words)

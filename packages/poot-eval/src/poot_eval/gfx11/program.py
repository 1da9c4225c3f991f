"""Machine code ready to run: straight runs of steps, each ending where control goes on elsewhere.

Everything that a kernel can reach is decoded before it runs, so that an unknown instruction is
refused whether or not a wave gets there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poot_eval.gfx11.code_object import CodeObject, read_code_object
from poot_eval.gfx11.disassembly import Instruction, disassemble
from poot_eval.gfx11.faults import InstructionRefused
from poot_eval.gfx11.permutes import build_permute
from poot_eval.gfx11.salu import build_scalar
from poot_eval.gfx11.scalar_floats import build_scalar_float
from poot_eval.gfx11.scalar_memory import build_scalar_memory
from poot_eval.gfx11.valu import build_vector
from poot_eval.gfx11.vector_memory import build_memory
from poot_eval.gfx11.waves import Waves

Step = Callable[[Waves], None]

_ENDS = ("s_endpgm", "s_endpgm_saved", "s_trap")
_JUMPS = (
    "s_branch", "s_cbranch_scc0", "s_cbranch_scc1", "s_cbranch_vccz", "s_cbranch_vccnz", "s_cbranch_execz",
    "s_cbranch_execnz",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Steps that follow each other, and the instruction after them: a jump, a barrier, an end, or None where the next
    run begins with a target of some jump. `after` is where the waves that do not jump go on, `target` the others.
    """

    steps: tuple[Step, ...]
    last: Instruction | None
    after: int
    target: int


@dataclass(frozen=True, slots=True, eq=False)
class Code:
    """One kernel's decoded code, by the address at which each run begins."""

    runs: Mapping[int, Run]
    instructions: Mapping[int, Instruction]


class Program:
    """A code object with the instructions in it. Kernels are decoded when they are asked for, once each."""

    def __init__(self, blob: bytes) -> None:
        self.code_object: CodeObject = read_code_object(blob)
        self._instructions = disassemble(blob)
        self._codes: dict[str, Code] = {}

    def code(self, name: str) -> Code:
        """A kernel's code. Raises InstructionRefused, and CodeObjectError where there is no such kernel."""
        found = self._codes.get(name)
        if found is None:
            kernel = self.code_object.kernel(name)
            found = decode(self._instructions, kernel.entry, kernel.wave)
            self._codes[name] = found
        return found


def reachable(instructions: Mapping[int, Instruction], entry: int) -> dict[int, Instruction]:
    """The instructions that control can reach from an address, by address."""
    found: dict[int, Instruction] = {}
    pending = [entry]
    while pending:
        at = pending.pop()
        while at not in found:
            instruction = instructions.get(at)
            if instruction is None:
                raise InstructionRefused("code", at, "there is no instruction")
            found[at] = instruction
            if instruction.mnemonic in _JUMPS:
                pending.append(jump_target(instruction))
            if instruction.mnemonic in _ENDS or instruction.mnemonic == "s_branch":
                break
            at += instruction.size
    return found


def jump_target(instruction: Instruction) -> int:
    """Where a jump goes: its distance is in words, from the instruction after it."""
    distance = instruction.words[0] & 0xFFFF
    return instruction.address + instruction.size + 4 * (distance - 0x10000 if distance & 0x8000 else distance)


def is_jump(instruction: Instruction) -> bool:
    """Whether control may go on elsewhere after an instruction."""
    return instruction.mnemonic in _JUMPS


def is_end(instruction: Instruction) -> bool:
    """Whether nothing follows an instruction."""
    return instruction.mnemonic in _ENDS


def decode(instructions: Mapping[int, Instruction], entry: int, lanes: int) -> Code:
    """Decode what is reachable from `entry`. Raises InstructionRefused."""
    found = reachable(instructions, entry)
    starts = {entry, *(jump_target(i) for i in found.values() if is_jump(i))}
    for instruction in found.values():
        if (is_jump(instruction) and instruction.mnemonic != "s_branch") or instruction.mnemonic == "s_barrier":
            starts.add(instruction.address + instruction.size)
    runs = {start: _run(found, start, starts, lanes) for start in starts}
    return Code(runs, found)


def _run(found: Mapping[int, Instruction], start: int, starts: set[int], lanes: int) -> Run:
    steps: list[Step] = []
    at = start
    while True:
        instruction = found[at]
        after = at + instruction.size
        if is_jump(instruction):
            return Run(tuple(steps), instruction, after, jump_target(instruction))
        if is_end(instruction) or instruction.mnemonic == "s_barrier":
            return Run(tuple(steps), instruction, after, after)
        steps.append(build(instruction, lanes))
        at = after
        if at in starts:
            return Run(tuple(steps), None, at, at)


def build(instruction: Instruction, lanes: int) -> Step:
    """The step of one instruction that only changes registers and memory. Raises InstructionRefused."""
    try:
        if instruction.mnemonic.startswith("v_"):
            step = build_vector(instruction, lanes)
        elif instruction.mnemonic.startswith("s_"):
            step = build_scalar_float(instruction) or build_scalar(instruction) or build_scalar_memory(instruction)
        else:
            step = build_permute(instruction, lanes) or build_memory(instruction) or build_scalar_memory(instruction)
    except (ValueError, IndexError, KeyError) as error:
        raise InstructionRefused(instruction.text, instruction.address, f"not understood ({error})") from error
    if step is None:
        raise InstructionRefused(instruction.text, instruction.address)
    return step

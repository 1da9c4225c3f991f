"""Whether code waits for what it loaded: a check over all paths of a kernel, before it runs.

A load gives its registers back some time later, and counters say when: `vmcnt` for vector loads,
`lgkmcnt` for local memory and scalar loads. Vector loads come back in order, and so do accesses of
local memory as long as no scalar load (which comes in any order) is among them. A register that may
be on its way must be waited for before anything else touches it; local memory that was written,
before a barrier.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.faults import WaitFault
from poot_eval.gfx11.operands import Operand, parse_operand
from poot_eval.gfx11.program import is_end, is_jump, jump_target

_VECTOR, _LOCAL = "vmcnt", "lgkmcnt"
_OLDEST = 64
"""An age that no wait leaves outstanding."""

Register = tuple[str, int]
_STORED: Register = ("local memory", 0)
_SCALAR: Register = ("scalar load", 0)
_NO_OPERANDS = ("s_waitcnt", "s_delay_alu", "s_clause", "s_nop", "s_sendmsg", "s_setreg", "s_getreg")


@dataclass(frozen=True, slots=True)
class _Pending:
    """An operation of a counter that may be on its way: how many followed it (at least), and where it is."""

    age: int
    address: int


_State = Mapping[tuple[str, Register], _Pending]
"""What may be outstanding, by counter and register."""


def check_waits(kernel: str, instructions: Mapping[int, Instruction], entry: int) -> None:
    """Raises WaitFault for the first instruction found that takes what nothing waited for."""
    states: dict[int, _State] = {entry: {}}
    pending = [entry]
    while pending:
        at = pending.pop()
        instruction = instructions[at]
        after = _after(kernel, instruction, states[at])
        followers = [] if is_end(instruction) or instruction.mnemonic == "s_branch" else [at + instruction.size]
        if is_jump(instruction):
            followers.append(jump_target(instruction))
        for follower in followers:
            joined = _join(states.get(follower), after)
            if joined is not None:
                states[follower] = joined
                pending.append(follower)


def _join(old: _State | None, new: _State) -> _State | None:
    """What may be outstanding after either; None where that is `old`."""
    if old is None:
        return new
    changed = {key: p for key, p in new.items() if key not in old or p.age < old[key].age}
    return {**old, **changed} if changed else None


def _after(kernel: str, instruction: Instruction, state: _State) -> _State:
    """The state after an instruction, which is checked against the one before it."""
    waited = _waited(instruction, state)
    if waited is not None:
        return waited
    if not state and _counters(instruction) == ():
        return state
    halves = (instruction,) if instruction.pair is None else (instruction, instruction.pair)
    for half in halves:
        _check(kernel, half, state)
    return _issue(instruction, state)


def _waited(instruction: Instruction, state: _State) -> _State | None:
    """The state after a wait; None for any other instruction."""
    limits: dict[str, int]
    if instruction.mnemonic == "s_waitcnt":
        bits = instruction.words[0] & 0xFFFF
        limits = {_VECTOR: bits >> 10 & 63, _LOCAL: bits >> 4 & 63}
    elif instruction.mnemonic in {"s_waitcnt_vmcnt", "s_waitcnt_lgkmcnt"}:
        limits = {instruction.mnemonic.removeprefix("s_waitcnt_"): int(instruction.operands[-1], 0)}
    else:
        return None
    unordered = (_LOCAL, _SCALAR) in state
    left = {}
    for (counter, register), pending in state.items():
        limit = limits.get(counter, 63)
        ordered = counter != _LOCAL or not unordered
        if limit == 0 or (ordered and limit < 63 and pending.age >= limit):
            continue
        left[counter, register] = pending
    return left


def _counters(instruction: Instruction) -> tuple[str, ...]:
    """The counters that an instruction raises."""
    name = instruction.mnemonic
    if name.startswith(("s_load", "s_buffer_load", "ds_", "s_sendmsg_rtn")):
        return (_LOCAL,)
    if name.startswith("flat_"):
        return (_VECTOR, _LOCAL) if _gives(instruction) else (_LOCAL,)
    if name.startswith(("global_", "buffer_load", "buffer_atomic", "scratch_")) and _gives(instruction):
        return (_VECTOR,)
    return ()


def _gives(instruction: Instruction) -> bool:
    """Whether a memory instruction brings something back."""
    name = instruction.mnemonic
    return (
        "_load" in name
        or ("atomic" in name and "glc" in instruction.modifiers)
        or (name.startswith("ds_") and ("_rtn" in name or "permute" in name or "swizzle" in name))
    )


@cache
def _registers(text: str) -> tuple[Register, ...]:
    """The registers that an operand's text names."""
    try:
        operand: Operand = parse_operand(text)
    except ValueError:
        return ()
    if operand.kind not in {"v", "s"}:
        return ()
    return tuple((operand.kind, operand.index + i) for i in range(operand.count))


def _check(kernel: str, instruction: Instruction, state: _State) -> None:
    name = instruction.mnemonic
    if name == "s_barrier" and (_LOCAL, _STORED) in state:
        pending = state[_LOCAL, _STORED]
        raise WaitFault(kernel, "local memory", instruction.text, instruction.address, pending.address)
    if name.startswith(_NO_OPERANDS) or is_jump(instruction):
        return
    own = _counters(instruction)
    for i, text in enumerate(instruction.operands):
        for register in _registers(text):
            for counter in (_VECTOR, _LOCAL):
                pending = state.get((counter, register))
                if pending is None:
                    continue
                # Results of one counter arrive in order, so that a later one may follow into its register.
                ordered = own == (counter,) and register[0] == "v" and (counter == _VECTOR or name.startswith("ds_"))
                if i == 0 and _gives(instruction) and ordered:
                    continue
                shown = f"{register[0]}{register[1]}"
                raise WaitFault(kernel, shown, instruction.text, instruction.address, pending.address)


def _issue(instruction: Instruction, state: _State) -> _State:
    """Everything outstanding in an instruction's counters ages, and its results are on their way."""
    counters = _counters(instruction)
    if not counters:
        return state
    aged = {key: _Pending(min(p.age + 1, _OLDEST), p.address) if key[0] in counters else p for key, p in state.items()}
    name = instruction.mnemonic
    fresh = _Pending(0, instruction.address)
    if re.match(r"s_(buffer_)?load|s_sendmsg_rtn|flat_", name):
        aged[_LOCAL, _SCALAR] = fresh
    if name.startswith("ds_") and not re.search(r"_load|permute|swizzle", name):
        aged[_LOCAL, _STORED] = fresh
    if _gives(instruction) or name.startswith(("s_load", "s_buffer_load", "s_sendmsg_rtn")):
        for counter in counters:
            for register in _registers(instruction.operands[0]):
                aged[counter, register] = fresh
    return aged

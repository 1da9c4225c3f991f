"""Instructions as llvm-objdump writes them, a line of text each: mnemonic, operands and modifiers."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poot_executor.errors import Unsupported

_LINE = re.compile(r"\s+(\S.*?)\s*// ([0-9A-F]+): ((?:[0-9A-F]{8} ?)+)(?:<.*)?$")
_PIECES = re.compile(r"""(?:[^\s,\[\]()|]|\[[^\]]*\]|\([^)]*\)|\|[^|]*\|)+|,""")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction at its `address` in the code object. `pair` is the second half of a dual-issued one."""

    address: int
    size: int
    text: str
    mnemonic: str
    operands: tuple[str, ...]
    modifiers: Mapping[str, str]
    words: tuple[int, ...]
    pair: Instruction | None = None

    @property
    def offset(self) -> int:
        """The `offset` modifier in bytes, 0 where there is none."""
        return int(self.modifiers.get("offset", "0"), 0)

    @property
    def base(self) -> str:
        """The mnemonic without the suffix that says how it is encoded."""
        return re.sub(r"(_e32|_e64|_e64_dpp|_dpp8|_dpp)+$", "", self.mnemonic)


def objdump() -> str | None:
    """The llvm-objdump of this machine that knows gfx11, by path; None where there is none."""
    for version in ("-19", "-20", "-21", "-22", "-18", "-17", "-16", ""):
        path = shutil.which(f"llvm-objdump{version}")
        if path is not None:
            return path
    return None


def disassemble(blob: bytes) -> dict[int, Instruction]:
    """Every instruction of a linked code object, by its address. Raises Unsupported without llvm-objdump."""
    tool = objdump()
    if tool is None:
        raise Unsupported("disassembling machine code", "llvm-objdump is not installed (llvm 16 or newer)")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "code")
        path.write_bytes(blob)
        done = subprocess.run([tool, "-d", str(path)], check=False, capture_output=True, text=True)
    if done.returncode:
        raise Unsupported("disassembling machine code", done.stderr.strip())
    found = (_LINE.match(line) for line in done.stdout.splitlines())
    instructions = [parse(m[1], int(m[2], 16), tuple(int(w, 16) for w in m[3].split())) for m in found if m]
    return {instruction.address: instruction for instruction in instructions}


def parse(text: str, address: int, words: tuple[int, ...]) -> Instruction:
    """Take one instruction's text apart. Both halves of a dual-issued one have the whole's address and words."""
    first, _, second = text.partition(" :: ")
    pair = parse(second.strip(), address, words) if second else None
    mnemonic, _, rest = first.strip().partition(" ")
    mnemonic = mnemonic.replace("v_dual_", "v_")
    operands: list[str] = []
    modifiers: dict[str, str] = {}
    fresh = True
    for piece in _PIECES.findall(rest):
        if piece == ",":
            fresh = True
        elif fresh:
            if _is_modifier(piece):
                _modify(modifiers, piece)
            else:
                operands.append(piece)
            fresh = False
        else:
            _modify(modifiers, piece)
    return Instruction(address, 4 * len(words), first.strip(), mnemonic, tuple(operands), modifiers, words, pair)


def _is_modifier(piece: str) -> bool:
    return ":" in piece and not piece.startswith(("s[", "v[", "ttmp[", "-", "|", "hwreg", "sendmsg"))


def _modify(modifiers: dict[str, str], piece: str) -> None:
    name, _, value = piece.partition(":")
    modifiers[name] = value or "1"

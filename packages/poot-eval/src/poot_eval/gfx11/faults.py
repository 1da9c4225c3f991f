"""What machine code can do wrong, and what this interpreter of it declines."""

from __future__ import annotations

from poot_executor.errors import DeviceError, KernelError, Unsupported


class CodeObjectError(KernelError):
    """Bytes that are no code object of the architecture, or one that lacks what is asked of it."""


class InstructionRefused(Unsupported):
    """An instruction (or a form of one) that this interpreter does not know, with its address in the code object."""

    def __init__(self, text: str, address: int, reason: str = "not interpreted") -> None:
        super().__init__(f"{text!r} at {address:#x}", reason)
        self.text = text
        self.address = address


class MemoryFault(DeviceError):
    """An access outside every region of memory, or a store to one that is read only.

    `access` is "load", "store" or "atomic", `memory` what was addressed, `at` the first offending
    byte and `instruction` the address of the instruction in the code object.
    """

    def __init__(self, kernel: str, access: str, memory: str, at: int, instruction: int, why: str) -> None:
        super().__init__(f"kernel {kernel}: {access} of {memory} at {at:#x} {why} (instruction at {instruction:#x})")
        self.kernel = kernel
        self.access = access
        self.memory = memory
        self.at = at
        self.instruction = instruction


class TrapFault(DeviceError):
    """A wave executed s_trap: the kernel, the trap's number, and the linear id of the wave's group."""

    def __init__(self, kernel: str, number: int, group: int, instruction: int) -> None:
        super().__init__(f"kernel {kernel}: trap {number} in group {group} (instruction at {instruction:#x})")
        self.kernel = kernel
        self.number = number
        self.group = group


class WaitFault(KernelError):
    """A register is used (or written again) while an instruction that writes or reads it may still be on its way."""

    def __init__(self, kernel: str, register: str, text: str, address: int, pending: int) -> None:
        super().__init__(
            f"kernel {kernel}: {text!r} at {address:#x} takes {register}, for which nothing waited since {pending:#x}"
        )
        self.kernel = kernel
        self.register = register
        self.address = address
        self.pending = pending


class MatrixFault(KernelError):
    """A matrix product that not every lane takes part in, or whose operands are not laid out as it takes them."""

    def __init__(self, kernel: str, text: str, address: int, why: str) -> None:
        super().__init__(f"kernel {kernel}: {text!r} at {address:#x}: {why}")
        self.kernel = kernel
        self.address = address

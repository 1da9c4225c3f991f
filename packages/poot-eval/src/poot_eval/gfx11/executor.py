"""Running dispatches of a simulated HSA runtime from the machine code that was loaded into it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np

from poot_eval.gfx11.faults import MemoryFault, TrapFault
from poot_eval.gfx11.launch import Dispatch
from poot_eval.gfx11.memory import AddressSpace, Region
from poot_eval.gfx11.program import Program
from poot_eval.gfx11.run import Order, run_dispatch
from poot_eval.hsa.runtime import EXCEPTION, SUCCESS, Launch

APERTURE_VIOLATION = 41
"""What a queue reports of an address outside what the GPU sees."""


class MachineCode:
    """An executor. `visible` lists address and bytes of everything that the GPU sees.

    Kernels whose faults the hardware would report give that status and are kept in `faults`;
    anything else that is wrong with the code raises.
    """

    def __init__(
        self, visible: Callable[[], Sequence[tuple[int, int]]], *, order: Order = Order.TOGETHER, races: bool = False
    ) -> None:
        self.visible = visible
        self.order = order
        self.races = races
        self.faults: list[MemoryFault | TrapFault] = []
        self.instructions = 0
        self.launched: list[str] = []
        self._programs: dict[bytes, Program] = {}

    def __call__(self, launch: Launch) -> int:
        """Run a dispatch; the queue's status."""
        program = self._program(launch.code_object)
        kernel = program.code_object.kernel(launch.entry)
        code = launch.kernel_object - kernel.address
        regions = [_region("memory", address, size) for address, size in self.visible()]
        regions.append(_region("code object", code, len(program.code_object.image), writable=False))
        dispatch = Dispatch(
            launch.groups, launch.group_size, launch.kernarg, local=max(0, launch.group_segment - kernel.lds)
        )
        self.launched.append(launch.entry)
        try:
            work = run_dispatch(
                program, launch.entry, dispatch, AddressSpace(regions), code=code, order=self.order, races=self.races
            )
        except (MemoryFault, TrapFault) as fault:
            self.faults.append(fault)
            return EXCEPTION if isinstance(fault, TrapFault) else APERTURE_VIOLATION
        self.instructions += work.instructions
        return SUCCESS

    def _program(self, blob: bytes) -> Program:
        found = self._programs.get(blob)
        if found is None:
            found = self._programs[blob] = Program(blob)
        return found


def _region(name: str, address: int, size: int, *, writable: bool = True) -> Region:
    """Memory of this process as a region."""
    data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return Region(name, address, data, writable)

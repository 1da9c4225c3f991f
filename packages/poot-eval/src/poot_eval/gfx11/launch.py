"""How a dispatch begins: the registers that the packet processor fills, as the kernel's descriptor asks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.code_object import INPUT_WIDTHS, Descriptor
from poot_eval.gfx11.operands import EXEC
from poot_eval.gfx11.reach import Reach
from poot_eval.gfx11.waves import Waves
from poot_executor.errors import KernelError, Unsupported


@dataclass(frozen=True, slots=True)
class Dispatch:
    """A grid of `groups` of `items` work-items each, [x, y, z]. `kernarg` and `packet` are addresses; `local` is how
    many bytes of local memory a group has beside what the kernel declares.
    """

    groups: tuple[int, int, int]
    items: tuple[int, int, int]
    kernarg: int
    local: int = 0
    packet: int | None = None

    @property
    def group_count(self) -> int:
        """Groups in the grid."""
        return self.groups[0] * self.groups[1] * self.groups[2]

    @property
    def group_size(self) -> int:
        """Work-items in a group."""
        return self.items[0] * self.items[1] * self.items[2]

    def check(self, kernel: Descriptor) -> None:
        """Raises KernelError for a grid or group that cannot be, Unsupported for a mode that is not interpreted."""
        if min(*self.groups, *self.items) < 1 or self.group_size > 1024:
            raise KernelError(f"kernel {kernel.name}: a grid of {self.groups} groups of {self.items} work-items")
        if kernel.lds + self.local > 65536:
            raise KernelError(f"kernel {kernel.name}: {kernel.lds + self.local} bytes of local memory, of 65536")
        if kernel.mode & 0xF:
            raise Unsupported(f"kernel {kernel.name}", "a rounding mode other than to the nearest is not interpreted")


def start_waves(kernel: Descriptor, dispatch: Dispatch, first: int, groups: int, reach: Reach) -> Waves:
    """The waves of `groups` groups from linear id `first` on, at the kernel's entry."""
    lanes = kernel.wave
    per_group = -(-dispatch.group_size // lanes)
    waves = Waves(groups * per_group, lanes, kernel.vector_registers, kernel.mode, reach)
    waves.pc[:] = kernel.entry
    _fill_scalars(waves, kernel, dispatch, first + np.repeat(np.arange(groups), per_group))
    item = np.arange(per_group * lanes).reshape(per_group, lanes)
    exists = np.tile(item < dispatch.group_size, (groups, 1))
    waves.select(None)
    waves.mask = None
    waves.s[EXEC : EXEC + 2] = 0
    waves.set_lane_mask(EXEC, exists)
    # Scalar condition, vector condition and the rest hold a pattern: nothing may lean on them.
    x, y, z = item % dispatch.items[0], item // dispatch.items[0] % dispatch.items[1], 0
    z = item // (dispatch.items[0] * dispatch.items[1])
    packed = x | (y << 10 if kernel.item_ids >= 1 else 0) | (z << 20 if kernel.item_ids >= 2 else 0)
    waves.v[0] = np.tile(packed.astype(np.uint32), (groups, 1))
    return waves


def _fill_scalars(waves: Waves, kernel: Descriptor, dispatch: Dispatch, group: NDArray[np.int64]) -> None:
    at = 0
    for what in kernel.inputs:
        if what == "kernarg":
            _set_address(waves, at, dispatch.kernarg)
        elif what == "dispatch" and dispatch.packet is not None:
            _set_address(waves, at, dispatch.packet)
        elif what == "private_size":
            waves.s[at] = kernel.private
        else:
            raise Unsupported(f"kernel {kernel.name}", f"its first registers ask for {what}, which is not given")
        at += INPUT_WIDTHS[what]
    at = kernel.user_registers
    across, down, _ = dispatch.groups
    ids = (group % across, group // across % down, group // (across * down))
    for enabled, value in zip(kernel.group_ids, ids, strict=True):
        if enabled:
            waves.s[at] = value
            at += 1
    if kernel.group_info:
        waves.s[at] = 0


def _set_address(waves: Waves, at: int, address: int) -> None:
    waves.s[at], waves.s[at + 1] = address & 0xFFFFFFFF, address >> 32

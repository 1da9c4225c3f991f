"""The registers of many waves at once, vector ones as [registers, waves, lanes], scalar ones as [registers, waves].

Instructions run for a batch of waves that stand at one place in the code. What is read has a row
for each wave of the batch; what is written reaches only these, and of vector registers only lanes
that EXEC has on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.operands import EXEC, NULL, SCC
from poot_eval.gfx11.reach import Reach
from poot_eval.kernel_values import POISON_BITS

Array = NDArray[Any]
Mask = NDArray[np.bool_]

_SCALARS = 128


class Waves:
    """Registers hold a pattern that shows until something is written to them.

    `rows` are the waves of the current batch (None: all), `count` how many they are, and `mask`
    their active lanes (None: all of them). `reach` is the memory that they see.
    """

    def __init__(self, waves: int, lanes: int, vector_registers: int, mode: int, reach: Reach) -> None:
        self.waves = waves
        self.lanes = lanes
        self.reach = reach
        self.v = np.full((vector_registers, waves, lanes), POISON_BITS, np.uint32)
        self.s = np.full((_SCALARS, waves), POISON_BITS, np.uint32)
        self.scc = np.zeros(waves, np.bool_)
        self.pc = np.zeros(waves, np.int64)
        self.modes = np.full(waves, mode, np.uint32)
        self.rows: Array | None = None
        self.count = waves
        self.mask: Mask | None = None
        self.mode = mode

    def select(self, rows: Array | None) -> None:
        """Make `rows` (None: all waves) the current batch. They are of one mode."""
        self.rows = rows
        self.count = self.waves if rows is None else rows.size
        self.mode = int(self.modes[0 if rows is None else rows[0]])
        self._see_exec()

    def _see_exec(self) -> None:
        mask = self.lane_mask(EXEC)
        self.mask = None if mask.all() else mask

    @property
    def active(self) -> Mask:
        """The active lanes of the batch, [waves, lanes]."""
        return np.ones((self.count, self.lanes), np.bool_) if self.mask is None else self.mask

    def flushes(self, dtype: str) -> tuple[bool, bool]:
        """Whether denormals of a float type become zero as operands, and as results."""
        denormals = self.mode >> (4 if dtype == "f32" else 6) & 3
        return denormals in {0, 2}, denormals in {0, 1}

    # Vector registers

    def vector(self, index: int) -> Array:
        """A vector register, uint32 [waves, lanes]: a view where the batch is all waves."""
        register = self.v[index]
        return register if self.rows is None else register[self.rows]

    def set_vector(self, index: int, value: Array, where: Mask | None = None) -> None:
        """Write the active lanes, of them only those in `where` if it is given."""
        mask = self.mask
        if where is not None:
            mask = where if mask is None else mask & where
        register = self.v[index]
        if self.rows is None:
            if mask is None:
                register[...] = value
            else:
                np.copyto(register, value, where=mask)
        elif mask is None:
            register[self.rows] = value
        else:
            register[self.rows] = np.where(mask, value, register[self.rows])

    # Scalar registers

    def scalar(self, index: int) -> Array:
        """A scalar register, uint32 [waves]."""
        if index == NULL:
            return np.zeros(self.count, np.uint32)
        if index == SCC:
            return self.get_scc().astype(np.uint32)
        register = self.s[index]
        return register if self.rows is None else register[self.rows]

    def scalar_pair(self, index: int) -> Array:
        """Two scalar registers as uint64 [waves]."""
        if index == NULL:
            return np.zeros(self.count, np.uint64)
        return self.scalar(index).astype(np.uint64) | self.scalar(index + 1).astype(np.uint64) << np.uint64(32)

    def set_scalar(self, index: int, value: Array) -> None:
        """Write a scalar register; EXEC takes effect at once, writes to null are dropped."""
        if index == NULL:
            return
        if self.rows is None:
            self.s[index] = value
        else:
            self.s[index, self.rows] = value
        if index >= EXEC:
            self._see_exec()

    def set_scalar_pair(self, index: int, value: Array) -> None:
        """Write two scalar registers from uint64."""
        self.set_scalar(index, (value & np.uint64(0xFFFFFFFF)).astype(np.uint32))
        if index != NULL:
            self.set_scalar(index + 1, (value >> np.uint64(32)).astype(np.uint32))

    def get_scc(self) -> Mask:
        """The scalar condition of each wave."""
        return self.scc if self.rows is None else self.scc[self.rows]

    def set_scc(self, value: Mask) -> None:
        """Write the scalar condition of each wave."""
        if self.rows is None:
            self.scc[...] = value
        else:
            self.scc[self.rows] = value

    # A bit a lane

    def lane_mask(self, index: int) -> Mask:
        """A scalar register (a pair, where waves have 64 lanes) as a bit a lane: bool [waves, lanes]."""
        if index == NULL:
            return np.zeros((self.count, self.lanes), np.bool_)
        words = [self.scalar(index + i) for i in range(self.lanes // 32)]
        packed = np.stack(words, axis=1).view(np.uint8)
        return np.unpackbits(packed, axis=1, bitorder="little").view(np.bool_)

    def set_lane_mask(self, index: int, value: Mask) -> None:
        """Write a bit a lane; it is 0 for lanes that are not active."""
        if self.mask is not None:
            value = value & self.mask
        whole = np.broadcast_to(value, (self.count, self.lanes))
        words = np.packbits(whole, axis=1, bitorder="little").view(np.uint32)
        for i in range(self.lanes // 32):
            if index != NULL:
                self.set_scalar(index + i, words[:, i])

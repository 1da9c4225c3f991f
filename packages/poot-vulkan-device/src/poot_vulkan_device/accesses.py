"""How a kernel uses its memory: what must be coherent, what is accessed with atomics."""

from __future__ import annotations

from poot_executor.kernel.ir import Kernel


class Accesses:
    """`atomic` are buffers with atomics, `exchanged` those through which threads of a group may pass values.
    `fragments` says that there are matrix fragments; `shares_buffers` that a barrier has to cover buffers,
    `shares_arrays` that it has to cover shared arrays.
    """

    def __init__(self, kernel: Kernel) -> None:
        loaded: set[int] = set()
        stored: set[int] = set()
        atomic: set[int] = set()
        for op in kernel.body.walk():
            if op.kind in ("load", "fragment_load") and "buffer" in op.attrs:
                loaded.add(op.attrs["buffer"])
            elif op.kind in ("store", "fragment_store") and "buffer" in op.attrs:
                stored.add(op.attrs["buffer"])
            elif op.kind == "atomic" and "buffer" in op.attrs:
                atomic.add(op.attrs["buffer"])
        self.atomic = frozenset(atomic)
        self.fragments = any(op.kind.startswith("fragment_") for op in kernel.body.walk())
        self.exchanged = frozenset(loaded & stored | atomic)
        self.shares_buffers = bool(self.exchanged)
        self.shares_arrays = bool(kernel.shared)

"""What every kernel device may ask of a dispatch: limits of the target, and WebGPU's usage
rules."""

from __future__ import annotations

from poot_executor.compile.target import Caps
from poot_executor.device import Dispatch
from poot_executor.errors import KernelError
from poot_executor.kernel.ir import KERNEL_OPS, Access, Kernel


def check_dispatch(dispatch: Dispatch, caps: Caps) -> None:
    """Raise KernelError for the first thing that a device with these caps would refuse."""
    kernel: Kernel = dispatch.kernel
    name = f"kernel {kernel.name}"
    _limit(name, "threads a group", kernel.group_size, caps.max_group_size)
    _limit(name, "bindings", len(kernel.params), caps.max_bindings)
    shared = 4 * sum(array.count for array in kernel.shared)
    _limit(name, "bytes of shared memory", shared, caps.most_shared_bytes)
    for axis, (count, most) in enumerate(zip(dispatch.groups, caps.max_groups, strict=True)):
        if count < 1:
            raise KernelError(f"{name}: {count} groups along axis {axis}")
        _limit(name, f"groups along axis {axis}", count, most)
    for op in kernel.body.walk():
        needs = KERNEL_OPS[op.kind].needs
        if needs is not None and needs not in caps.features:
            raise KernelError(f"{name}: {op.kind} needs {needs}, which the target lacks ({op.line})")
    _check_args(name, dispatch, kernel, caps)


def _check_args(name: str, dispatch: Dispatch, kernel: Kernel, caps: Caps) -> None:
    if len(dispatch.args) != len(kernel.params):
        raise KernelError(f"{name} has {len(kernel.params)} parameters, not {len(dispatch.args)}")
    access: dict[int, Access] = {}
    for param, arg in zip(kernel.params, dispatch.args, strict=True):
        piece = arg.slice
        what = f"{name}: {param.name}"
        if piece.offset % caps.offset_alignment:
            raise KernelError(f"{what} starts at byte {piece.offset}, not a multiple of "
                              f"{caps.offset_alignment}")  # fmt: skip
        if arg.count < 1 or arg.count * 4 > piece.nbytes:
            raise KernelError(f"{what} has {arg.count} elements in {piece.nbytes} bytes")
        if caps.max_binding_bytes is not None:
            _limit(what, "bytes of one binding", piece.nbytes, caps.max_binding_bytes)
        # WebGPU: within one dispatch a buffer is read only or read and written, as a whole.
        if access.setdefault(id(piece.buffer), param.access) is not param.access:
            raise KernelError(f"{what}: its buffer is bound read only and read_write at once")


def _limit(name: str, what: str, count: int, most: int) -> None:
    if count > most:
        raise KernelError(f"{name} needs {count} {what}, the limit is {most}")

"""What is asked of commands and kernels before a device takes them."""

from __future__ import annotations

import pytest

from poot_executor.command_check import check_arguments, check_copy, check_counts
from poot_executor.compile.target import Caps
from poot_executor.device import BoundArg, Buffer, BufferKind, BufferSlice, Copy, Dispatch
from poot_executor.dtype import DType
from poot_executor.errors import DeviceError, Unsupported
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.ir import Access, Param
from poot_executor.kernel_limits import check_limits

BUFFER = Buffer(BufferKind.ARENA, 256, None)
OTHER = Buffer(BufferKind.ARENA, 256, None)


def dispatch(*args: tuple[int, int]) -> Dispatch:
    """With arguments of so many bytes, of which so many elements are bound."""
    bound = tuple(BoundArg(BufferSlice(BUFFER, 0, nbytes), count) for nbytes, count in args)
    return Dispatch(None, bound, (1, 1, 1), 1)


def test_arguments_are_as_many_as_parameters_and_lie_in_their_slices() -> None:
    check_arguments("sums", dispatch((16, 4), (16, 1), (13, 4)), 3)
    check_arguments("nothing", dispatch(), 0)
    for params in (1, 3):
        with pytest.raises(DeviceError, match=f"kernel sums has {params} parameters and was given 2 arguments"):
            check_arguments("sums", dispatch((4, 1), (4, 1)), params)
    for nbytes, count in ((16, 5), (12, 4), (16, 0), (16, -1), (0, 1)):
        with pytest.raises(ValueError, match=f"kernel sums: {count} elements in {nbytes} bytes"):
            check_arguments("sums", dispatch((4, 1), (nbytes, count)), 2)


def test_a_kernel_relies_on_its_least_counts() -> None:
    x = Param("x", DType.F32, Access.READ)
    params = [x, Param("y", DType.F32, Access.READ_WRITE, 8)]
    for count in (8, 9):
        check_counts("sums", dispatch((64, 1), (64, count)), params)
    with pytest.raises(ValueError, match="kernel sums: 7 elements, it was compiled for 8"):
        check_counts("sums", dispatch((64, 1), (64, 7)), params)


def test_a_copy_goes_to_as_many_bytes_elsewhere() -> None:
    for target in (BufferSlice(BUFFER, 64, 64), BufferSlice(BUFFER, 0, 64), BufferSlice(OTHER, 96, 64)):
        check_copy(Copy(BufferSlice(BUFFER, 128, 64), target))
    with pytest.raises(ValueError, match="a copy of 64 bytes to 60"):
        check_copy(Copy(BufferSlice(BUFFER, 128, 64), BufferSlice(OTHER, 0, 60)))
    for offset in (65, 128, 191):
        with pytest.raises(ValueError, match="overlap"):
            check_copy(Copy(BufferSlice(BUFFER, 128, 64), BufferSlice(BUFFER, offset, 64)))


def test_a_kernel_keeps_the_limits_of_its_target() -> None:
    b = KernelBuilder("large", 128)
    x, y = b.buffer("x", DType.F32, Access.READ), b.buffer("y", DType.F32, Access.READ_WRITE)
    array = b.shared("array", DType.F32, 1024)
    array[b.thread_id()] = x[b.thread_id()]
    b.barrier()
    y[b.thread_id()] = array[0]
    kernel = b.finish()
    enough = {"max_group_size": 128, "max_bindings": 2, "max_shared_bytes": 4096}
    check_limits("toy", kernel, Caps(**enough))
    for limit, message in (
        ("max_group_size", "128 threads a group, the device has 127"),
        ("max_bindings", "2 buffers, the device has 1"),
        ("max_shared_bytes", "4,096 bytes of shared memory, the device has 4,095"),
    ):
        with pytest.raises(Unsupported, match=f"toy: kernel large: {message}"):
            check_limits("toy", kernel, Caps(**{**enough, limit: enough[limit] - 1}))

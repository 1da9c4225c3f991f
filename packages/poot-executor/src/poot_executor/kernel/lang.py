"""The kernel language: `@kernel`, `@device`, buffer annotations, types, and the intrinsics by name.

```python
@kernel
def scale(x: In[f32], y: Out[f32], *, factor: float):
    i = group_id() * group_size() + thread_id()
    if i < y.length():
        y[i] = x[i] * factor


ir = scale.specialize(group_size=64, factor=2.0)
```

Buffer parameters come first, compile-time parameters after `*`. What Python can evaluate (compile-time parameters,
closures, globals) it evaluates while the kernel is imported; the rest becomes operations. `for i in range(...)`, or
`loop(...)`, is a loop of the kernel, `for i in static(...)` is unrolled. A compile-time condition selects a branch, a
runtime one makes an `if`, and in a conditional expression a select. `and` and `or` evaluate runtime operands on both
sides. `min`, `max`, `abs`, `round` and `pow` are Python's names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.buffers import BufferRef
from poot_executor.kernel.functions import (
    BufferType,
    DeviceFunction,
    Hook,
    TypeName,
    dtype_of,
)
from poot_executor.kernel.importer import import_kernel
from poot_executor.kernel.intrinsics import (
    Local,
    Shared,
    barrier,
    bitcast,
    cast,
    check,
    cos,
    dot4,
    erf,
    exp,
    float_to_half,
    floor,
    fma,
    group_id,
    group_max,
    group_min,
    group_size,
    group_sum,
    half_to_float,
    lane_id,
    log,
    loop,
    mulhi,
    pack_bf16x2,
    pack_bytes4,
    pack_half2,
    power,
    rint,
    rsqrt,
    select,
    sin,
    sqrt,
    static,
    subgroup_id,
    subgroup_max,
    subgroup_min,
    subgroup_shuffle,
    subgroup_shuffle_xor,
    subgroup_size,
    subgroup_sum,
    tanh,
    thread_id,
    unpack_bf16x2,
    unpack_byte,
    unpack_half2,
    vector,
)
from poot_executor.kernel.ir import Access, Kernel
from poot_executor.kernel.source import FunctionSource

__all__ = [
    "Hook",
    "In",
    "InOut",
    "KernelFunction",
    "Local",
    "Out",
    "Shared",
    "barrier",
    "bf16",
    "bitcast",
    "cast",
    "check",
    "cos",
    "device",
    "dot4",
    "erf",
    "exp",
    "f16",
    "f32",
    "float_to_half",
    "floor",
    "fma",
    "group_id",
    "group_max",
    "group_min",
    "group_size",
    "group_sum",
    "half_to_float",
    "i8",
    "i32",
    "kernel",
    "lane_id",
    "log",
    "loop",
    "mulhi",
    "pack_bf16x2",
    "pack_bytes4",
    "pack_half2",
    "power",
    "rint",
    "rsqrt",
    "select",
    "sin",
    "sqrt",
    "static",
    "subgroup_id",
    "subgroup_max",
    "subgroup_min",
    "subgroup_shuffle",
    "subgroup_shuffle_xor",
    "subgroup_size",
    "subgroup_sum",
    "tanh",
    "thread_id",
    "u8",
    "u32",
    "unpack_bf16x2",
    "unpack_byte",
    "unpack_half2",
    "vector",
]  # fmt: skip

T = TypeVar("T")


class KernelFunction:
    """A kernel's source. `specialize` makes kernels of it."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.source = FunctionSource(function)
        self.__doc__ = function.__doc__

    def specialize(self, *, group_size: int = 64, name: str | None = None, **constants: Any) -> Kernel:
        """The kernel with these compile-time arguments, verified. Equal arguments give equal kernels.

        A `Hook`, or a tuple of hooks, adds its buffers after the declared ones, in the order of the compile-time
        parameters: buffer `b` of the hook `store` is named `store_b`, of the second hook of the tuple `weights` it is
        `weights1_b`. Raises KernelError with file and line for what the language cannot express.
        """
        return import_kernel(self.source, name or self.source.name, group_size, constants)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Refused: it has no meaning to Python."""
        raise KernelError(f"{self.source.name} is a kernel: specialize it")


def kernel(function: Callable[..., None]) -> KernelFunction:
    """Make a function of the kernel language a kernel."""
    return KernelFunction(function)


device = DeviceFunction
"""Make a function of the kernel language one that kernels and other device functions call: it is inlined."""


# Types


class f32(TypeName):  # noqa: N801 — the language's own name for it
    """32-bit floats."""

    dtype = DType.F32


class f16(TypeName):  # noqa: N801
    """IEEE half floats: of buffers only, read as f32."""

    dtype = DType.F16


class bf16(TypeName):  # noqa: N801
    """bfloat16: of buffers only, read as f32."""

    dtype = DType.BF16


class i32(TypeName):  # noqa: N801
    """32-bit integers."""

    dtype = DType.I32


class u32(TypeName):  # noqa: N801
    """32-bit unsigned integers."""

    dtype = DType.U32


class i8(TypeName):  # noqa: N801
    """Signed bytes: of buffers only, read as i32."""

    dtype = DType.I8


class u8(TypeName):  # noqa: N801
    """Bytes: of buffers only, read as i32."""

    dtype = DType.U8


class In(BufferRef, Generic[T]):
    """The annotation of a buffer that no dispatch writes: `x: In[f32]`; also `In[dtype]` with a compile-time DType."""

    def __class_getitem__(cls, element: Any) -> BufferType:
        return BufferType(dtype_of(element), Access.READ)


class InOut(BufferRef, Generic[T]):
    """The annotation of a buffer that is written, or read after a dispatch has written it."""

    def __class_getitem__(cls, element: Any) -> BufferType:
        return BufferType(dtype_of(element), Access.READ_WRITE)


class Out(BufferRef, Generic[T]):
    """As `InOut`, for a buffer that the kernel only writes."""

    def __class_getitem__(cls, element: Any) -> BufferType:
        return BufferType(dtype_of(element), Access.READ_WRITE)

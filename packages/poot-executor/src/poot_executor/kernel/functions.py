"""What a kernel's source may call or be given besides numbers: intrinsics, device functions, hooks, buffer types,
local arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access
from poot_executor.kernel.operations import Value
from poot_executor.kernel.source import FunctionSource

P = ParamSpec("P")
R = TypeVar("R")


class Intrinsic(Generic[P, R]):
    """An operation of the language. `emit` takes the builder and what the source calls it with."""

    def __init__(self, emit: Callable[Concatenate[KernelBuilder, P], R]) -> None:
        self.emit = emit
        self.name = emit.__name__
        self.__doc__ = emit.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Refused: it has no meaning to Python."""
        raise KernelError(f"{self.name} is called in the source of a kernel or device function only")


class DeviceFunction(Generic[P, R]):
    """A function of the language that kernels call: it is inlined. It may return a value, as its last statement."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.source = FunctionSource(function)
        self.__doc__ = function.__doc__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Refused: it has no meaning to Python."""
        raise KernelError(f"{self.source.name} is called in the source of a kernel or device function only")


class TypeName:
    """A type of the language: it annotates buffers, and a call of it converts a number."""

    dtype: ClassVar[DType]

    def __new__(cls, value: Value) -> Handle:  # type: ignore[misc]  # noqa: ARG004
        """Convert a number, in the source of a kernel or device function only."""
        raise KernelError(f"{cls.__name__} is called in the source of a kernel or device function")


@dataclass(frozen=True, slots=True)
class Hook:
    """A compile-time argument of a kernel: buffers of its own and Python that emits what a call of it means.

    `params` are (name, dtype, access) of the buffers that it adds to the kernel. `emit(builder, buffers, *args)` gets
    them as BufferRefs, and the call's arguments; it gives a handle, a tuple of handles or None.
    """

    params: tuple[tuple[str, DType, Access], ...]
    emit: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Refused: it has no meaning to Python."""
        raise KernelError("a hook is called in the source of a kernel only")


@dataclass(frozen=True, slots=True)
class BoundHook:
    """A hook with the buffers that it has in the kernel under construction."""

    hook: Hook
    buffers: tuple[BufferRef, ...]

    def call(self, builder: KernelBuilder, *args: Any) -> Any:
        """Emit what a call means. Raises KernelError where the result is no handle, tuple of handles or None."""
        result = self.hook.emit(builder, self.buffers, *args)
        parts = result if isinstance(result, tuple) else (result,)
        if result is not None and not all(isinstance(part, Handle) for part in parts):
            raise KernelError(f"a hook gives handles or None, not {result!r}")
        return result


@dataclass(frozen=True, slots=True)
class BufferType:
    """The annotation of a buffer parameter."""

    dtype: DType
    access: Access


class LocalArray:
    """Registers of a thread: `count` variables with compile-time indices."""

    __slots__ = ("_vars", "dtype")

    def __init__(self, builder: KernelBuilder, dtype: DType, count: int, initial: Value) -> None:
        if isinstance(count, Handle) or count < 1:
            raise KernelError(f"a local array has a compile-time count of at least 1, not {count!r}")
        self.dtype = dtype
        self._vars = [builder.var(initial, dtype, f"local{i}") for i in range(count)]
        first = self._vars[0].get().dtype
        if first is not dtype:
            raise KernelError(f"a local array of {dtype} does not start with {first}")

    def __len__(self) -> int:
        return len(self._vars)

    def __getitem__(self, index: int) -> Handle:
        return self._vars[self._place(index)].get()

    def __setitem__(self, index: int, value: Value) -> None:
        self._vars[self._place(index)].set(value)

    def __iter__(self) -> Iterator[Handle]:
        return iter([var.get() for var in self._vars])

    def _place(self, index: int) -> int:
        if isinstance(index, Handle) or not isinstance(index, int):
            raise KernelError("a local array has compile-time indices: loop with static(range(...))")
        if not 0 <= index < len(self._vars):
            raise KernelError(f"index {index} of a local array of {len(self._vars)}")
        return index


def is_runtime(value: Any) -> bool:
    """Whether a value, or any in it, exists only when the kernel runs."""
    if isinstance(value, tuple | list):
        return any(is_runtime(item) for item in value)
    return isinstance(value, Handle | BufferRef | SharedRef | LocalArray)


def is_type_name(value: Any) -> bool:
    """Whether a value is f32, i32 or another type name of the language."""
    return isinstance(value, type) and issubclass(value, TypeName)


def dtype_of(value: Any) -> DType:
    """The DType that a type name of the language, `bool`, or a DType stands for. Raises KernelError."""
    if isinstance(value, DType):
        return value
    if value is bool:
        return DType.BOOL
    if is_type_name(value):
        return value.dtype
    raise KernelError(f"{value!r} is no element type")


def bind_hooks(builder: KernelBuilder, name: str, value: Any) -> Any:
    """A compile-time argument with its hooks bound: their buffers, named after the argument, join the kernel's."""
    if isinstance(value, Hook):
        buffers = [builder.buffer(f"{name}_{param}", dtype, access) for param, dtype, access in value.params]
        return BoundHook(value, tuple(buffers))
    if isinstance(value, Sequence) and not isinstance(value, str) and any(isinstance(v, Hook) for v in value):
        return tuple(bind_hooks(builder, f"{name}{place}", item) for place, item in enumerate(value))
    return value

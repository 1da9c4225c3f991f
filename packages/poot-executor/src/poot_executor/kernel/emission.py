"""Where operations of a kernel under construction go: its buffers, its open blocks, and the line each comes from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.buffers import BufferRef, SharedRef, word_dtype
from poot_executor.kernel.fold import Number
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access, KType, Op, Param, SharedArray, Val
from poot_executor.kernel.located import at
from poot_executor.kernel.operations import Operations
from poot_executor.kernel.signatures import WORD_DTYPES, result_types

_HERE = str(Path(__file__).parent)


class Scope:
    """A block under construction."""

    __slots__ = ("constants", "ops")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.constants: dict[tuple[DType, str], Val] = {}


class Emission(Operations):
    """Buffers, constants and operations of a kernel of groups of `group_size` threads along one axis.

    `line` ("file.py:12") marks the operations made from now on; while it is empty, they are marked with the caller's
    line. `packs_bf16` says that the target has `pack_bf16`, by which numbers are then rounded. `resident` is the
    kernel's, to be set before it is finished.
    """

    def __init__(self, name: str, group_size: int = 64, *, packs_bf16: bool = False) -> None:
        self.name = name
        self.packs_bf16 = packs_bf16
        self.group_size = group_size
        self.line = ""
        self.resident = False
        self._params: list[Param] = []
        self._shared: list[SharedArray] = []
        self._scopes = [Scope()]
        self._used: set[Val] = set()

    # Memory

    def buffer(self, name: str, dtype: DType, access: Access) -> BufferRef:
        """The next buffer parameter. Sub-word and bool elements lie in u32 words: see `buffers`."""
        if any(param.name == name for param in self._params):
            raise KernelError(f"kernel {self.name} has two buffers named {name}")
        self._params.append(Param(name, word_dtype(dtype), access))
        return BufferRef(self, len(self._params) - 1, name, dtype, access)

    def shared(self, name: str, dtype: DType, count: int) -> SharedRef:
        """A shared array of f32, i32 or u32, not zeroed."""
        if any(array.name == name for array in self._shared):
            raise KernelError(f"kernel {self.name} has two shared arrays named {name}")
        if dtype not in WORD_DTYPES:
            raise KernelError(f"shared array {name}: elements are f32, i32 or u32, not {dtype}")
        self._shared.append(SharedArray(name, dtype, count))
        return SharedRef(self, len(self._shared) - 1, name, dtype, count)

    def next_shared(self, dtype: DType, count: int) -> SharedRef:
        """A shared array that is named by its place."""
        return self.shared(f"shared{len(self._shared)}", dtype, count)

    # Operations

    def emit(self, kind: str, *operands: Handle, dtype: DType | None = None, **attrs: Any) -> Handle:
        """Append an operation that has a result, as it is."""
        (result,) = self._emit(kind, operands, dtype, attrs)
        return Handle(self, result.type, result)

    def several(self, kind: str, *operands: Handle, **attrs: Any) -> list[Handle]:
        """Append an operation that has several results, as it is."""
        return [Handle(self, result.type, result) for result in self._emit(kind, operands, None, attrs)]

    def effect(self, kind: str, *operands: Handle, **attrs: Any) -> None:
        """Append an operation that has none."""
        () = self._emit(kind, operands, None, attrs)

    def _emit(
        self, kind: str, operands: tuple[Handle, ...], dtype: DType | None, attrs: dict[str, Any]
    ) -> tuple[Val, ...]:
        declared = () if dtype is None else (KType(dtype, operands[0].width if operands else 1),)
        try:
            types = result_types(kind, [h.type for h in operands], attrs, declared, self._params, self._shared)
        except KernelError as error:
            raise at(self._line(), f"kernel {self.name}: {error}") from None
        vals = tuple(self._use(handle) for handle in operands)
        results = tuple(Val(type) for type in types)
        self._append(Op(kind, vals, results, attrs, (), self._line()))
        return results

    def constant_val(self, dtype: DType, value: Number) -> Val:
        """The IR value of a constant, emitted where no enclosing block has it yet."""
        key = (dtype, repr(value))
        for scope in self._scopes:
            if key in scope.constants:
                return scope.constants[key]
        val = Val(KType(dtype))
        scope = self._scopes[-1]
        scope.ops.append(Op("const", (), (val,), {"value": value}, (), self._line()))
        scope.constants[key] = val
        return val

    def _use(self, handle: Handle) -> Val:
        val = self.as_handle(handle).val
        self._used.add(val)
        return val

    def _append(self, op: Op) -> None:
        self._scopes[-1].ops.append(op)

    def _line(self) -> str:
        if self.line:
            return self.line
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            frame.f_code.co_filename.startswith(_HERE) or "contextlib" in frame.f_code.co_filename
        ):
            frame = frame.f_back
        file = frame.f_code.co_filename
        return f"{file[file.rfind(os.sep) + 1 :]}:{frame.f_lineno}"

    @property
    def scope(self) -> object:
        """The block under construction, as a token for `is_open`."""
        return self._scopes[-1]

    def is_open(self, scope: object) -> bool:
        """Whether a block is still under construction, so that its values are visible here."""
        return any(open_scope is scope for open_scope in self._scopes)

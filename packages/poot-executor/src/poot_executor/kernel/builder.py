"""Making a kernel from Python: buffers, operations on handles, control flow with SSA construction.

```python
b = KernelBuilder("scale", group_size=64)
x, y = b.buffer("x", F32, Access.READ), b.buffer("y", F32, Access.READ_WRITE)
i = b.group_id() * 64 + b.thread_id()
with b.if_(i < y.length()):
    y[i] = x[i] * 2.0
kernel = b.finish()
```

Equal calls give equal kernels. A variable that a loop or a branch changes is a `Var`; loops and ifs then carry
exactly the variables that their blocks set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.buffers import BufferRef, SharedRef, word_dtype
from poot_executor.kernel.fold import Number
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Access, Block, Kernel, KType, Op, Param, SharedArray, Val
from poot_executor.kernel.located import at
from poot_executor.kernel.operations import Operations, Value
from poot_executor.kernel.rewrite import substitute
from poot_executor.kernel.signatures import WORD_DTYPES, result_types
from poot_executor.kernel.verify import verify

_HERE = str(Path(__file__).parent)


class Var:
    """A variable: `get` and `set`, anywhere in the scope that it was declared in. Made by `KernelBuilder.var`."""

    __slots__ = ("alive", "builder", "name", "value")

    def __init__(self, builder: KernelBuilder, name: str, value: Handle | None) -> None:
        self.builder = builder
        self.name = name
        self.value = value
        self.alive = True

    def get(self) -> Handle:
        """Its value here. Raises KernelError where it may be unset or its scope has ended."""
        self._check()
        if self.value is None:
            raise KernelError(f"{self.name or 'a variable'} is not set on every path to here")
        self.builder.close_if()
        return self.value

    def set(self, value: Value) -> None:
        """Give it a value of its type."""
        self._check()
        handle = self.builder.as_handle(value, None if self.value is None else self.value.dtype)
        if self.value is not None and handle.type != self.value.type:
            raise KernelError(f"{self.name or 'a variable'} is {self.value.type} and is set to {handle.type}: cast it")
        self.builder.close_if()
        self.value = handle

    def clear(self) -> None:
        """Leave it unset from here on."""
        self._check()
        self.builder.close_if()
        self.value = None

    def drop(self) -> None:
        """End it before its scope does: loops and branches to come need not consider it."""
        self.builder.end_var(self)

    def _check(self) -> None:
        if not self.alive:
            raise KernelError(f"{self.name or 'a variable'} was declared in a scope that has ended")


class _Scope:
    """A block under construction."""

    __slots__ = ("constants", "ops")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.constants: dict[tuple[DType, str], Val] = {}


class _OpenIf:
    """The if that was just closed without an else: `else_` may reopen it as long as nothing came after it."""

    __slots__ = ("before", "condition", "then", "then_values")

    def __init__(self, condition: Handle, before: dict[Var, Handle | None], then: _Scope) -> None:
        self.condition = condition
        self.before = before
        self.then = then
        self.then_values = {var: var.value for var in before}


class KernelBuilder(Operations):
    """A kernel under construction: groups of `group_size` threads along one axis.

    `line` ("file.py:12") marks the operations made from now on; while it is empty, they are marked with the caller's
    line.
    """

    def __init__(self, name: str, group_size: int = 64) -> None:
        self.name = name
        self.group_size = group_size
        self.line = ""
        self._params: list[Param] = []
        self._shared: list[SharedArray] = []
        self._scopes = [_Scope()]
        self._vars: list[Var] = []
        self._replaced: dict[Val, Val] = {}
        self._used: set[Val] = set()
        self._open_if: _OpenIf | None = None

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

    def close_if(self) -> None:
        """Say that something follows the last if, so that no else can."""
        self._open_if = None

    def _use(self, handle: Handle) -> Val:
        val = self.as_handle(handle).val
        self._used.add(val)
        return val

    def _append(self, op: Op) -> None:
        self._open_if = None
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

    # Variables and control flow

    def var(self, initial: Value | None = None, dtype: DType | None = None, name: str = "") -> Var:
        """A variable of this scope. A number without `dtype` is i32, f32 or bool; without `initial` it is unset."""
        value = None if initial is None else self.as_handle(initial, dtype)
        variable = Var(self, name, value)
        self._vars.append(variable)
        return variable

    def end_var(self, variable: Var) -> None:
        """End a variable before its scope does."""
        variable.alive = False
        self._vars.remove(variable)

    @contextmanager
    def range(
        self, low: Value, high: Value | None = None, step: Value = 1, *, unroll: int | None = None, name: str = "i"
    ) -> Iterator[Handle]:
        """A loop over low, low + step, … below high; `range(n)` is `range(0, n)`. Gives the index, an i32. `step` > 0.

        With `unroll` a pass repeats the body that many times a round where the bounds are constant.
        """
        if high is None:
            low, high = 0, low
        bounds = [self.as_index(bound) for bound in (low, high, step)]
        if bounds[2].constant is not None and bounds[2].constant <= 0:
            raise KernelError(f"a loop's step is positive, not {bounds[2].constant}")
        line, bound_vals = self._line(), [self._use(bound) for bound in bounds]
        index = Val(KType(DType.I32), name)
        carried, initial, args = self._carry()
        with self._scope() as scope:
            yield Handle(self, index.type, index)
        kept, yields = self._end_loop(scope, carried, initial, [args])
        block_args: tuple[Val, ...] = (index, *(args[k] for k in kept))
        blocks = [(block_args, scope, yields)]
        attrs = {} if unroll is None else {"unroll": unroll}
        self._loop("for", bound_vals, kept, carried, initial, blocks, line, attrs)

    @contextmanager
    def while_(self, condition: Callable[[], Handle]) -> Iterator[None]:
        """A loop while `condition()` holds: it is called once, in the loop's condition block, and sets no variable."""
        line = self._line()
        carried, initial, args = self._carry()
        with self._scope() as head:
            entry = [var.value for var in carried]
            flag = self.as_handle(condition())
            if flag.type != KType(DType.BOOL):
                raise KernelError(f"a while condition is bool, not {flag.type}")
            if any(var.value is not value for var, value in zip(carried, entry, strict=True)):
                raise KernelError("a while condition sets no variable")
            flag_val = self._use(flag)
        body_args = self._fresh(carried)
        with self._scope() as scope:
            yield
        kept, yields = self._end_loop(scope, carried, initial, [args, body_args])
        blocks = [
            (tuple(args[k] for k in kept), head, [flag_val]),
            (tuple(body_args[k] for k in kept), scope, yields),
        ]
        self._loop("while", [], kept, carried, initial, blocks, line, {})

    @contextmanager
    def if_(self, condition: Value) -> Iterator[None]:
        """What is inside happens where the condition holds."""
        handle = self.as_handle(condition)
        if handle.type != KType(DType.BOOL):
            raise KernelError(f"an if condition is bool, not {handle.type}")
        self._use(handle)
        before = {var: var.value for var in self._vars}
        with self._scope() as scope:
            yield
        branch = _OpenIf(handle, before, scope)
        for var, value in before.items():
            var.value = value
        self._merge(branch, _Scope())
        self._open_if = branch

    @contextmanager
    def else_(self) -> Iterator[None]:
        """Right after an `if_`: what is inside happens where its condition does not hold."""
        branch = self._open_if
        if branch is None:
            raise KernelError("an else follows its if with nothing between them")
        self._scopes[-1].ops.pop()
        for var, value in branch.before.items():
            var.value = value
        with self._scope() as scope:
            yield
        self._merge(branch, scope)

    def finish(self) -> Kernel:
        """The verified kernel. The builder is done with."""
        if len(self._scopes) != 1:
            raise KernelError(f"kernel {self.name} is finished inside a scope")
        body = substitute(Block((), tuple(self._scopes[0].ops)), self._replaced)
        kernel = Kernel(self.name, tuple(self._params), tuple(self._shared), self.group_size, body)
        verify(kernel)
        return kernel

    @contextmanager
    def _scope(self) -> Iterator[_Scope]:
        """A nested block; variables declared in it end with it."""
        scope, declared = _Scope(), len(self._vars)
        self._open_if = None
        self._scopes.append(scope)
        yield scope
        self._scopes.pop()
        self._open_if = None
        for var in self._vars[declared:]:
            var.alive = False
        del self._vars[declared:]

    def _carry(self) -> tuple[list[Var], list[Handle], list[Val]]:
        """Every set variable, its value before the loop, and the block argument that it now is."""
        carried = [var for var in self._vars if var.value is not None]
        initial = [var.value for var in carried if var.value is not None]
        return carried, initial, self._fresh(carried)

    def _fresh(self, carried: list[Var]) -> list[Val]:
        args = []
        for var in carried:
            assert var.value is not None
            arg = Val(var.value.type, var.name)
            var.value = Handle(self, arg.type, arg)
            args.append(arg)
        return args

    def _end_loop(
        self, scope: _Scope, carried: list[Var], initial: list[Handle], arguments: list[list[Val]]
    ) -> tuple[list[int], list[Val]]:
        """Which variables the body has set, and what it gives for them.

        The arguments of the others are pruned: their values before the loop stand for them.
        """
        kept = []
        for k, var in enumerate(carried):
            assert var.value is not None
            if var.value.constant is not None or var.value.val is not arguments[-1][k]:
                kept.append(k)
        # What a variable is set to may be another's argument: only now is known which are used.
        yields = self._values_in(scope, [carried[k].value for k in kept])
        for k, var in enumerate(carried):
            if k in kept:
                continue
            var.value = initial[k]
            for args in arguments:
                if args[k] in self._used:
                    self._replaced[args[k]] = self._use(initial[k])
        return kept, yields

    def _values_in(self, scope: _Scope, values: list[Handle | None]) -> list[Val]:
        """IR values at the end of a block that was just left."""
        self._scopes.append(scope)
        vals = [self._use(value) for value in values if value is not None]
        self._scopes.pop()
        return vals

    def _loop(
        self, kind: str, bounds: list[Val], kept: list[int], carried: list[Var], initial: list[Handle],
        blocks: list[tuple[tuple[Val, ...], _Scope, list[Val]]], line: str, attrs: dict[str, Any],
    ) -> None:  # fmt: skip
        operands = (*bounds, *(self._use(initial[k]) for k in kept))
        results = tuple(Val(initial[k].type, carried[k].name) for k in kept)
        closed = tuple(_close(args, scope, yields, line) for args, scope, yields in blocks)
        self._append(Op(kind, operands, results, attrs, closed, line))
        for k, result in zip(kept, results, strict=True):
            carried[k].value = Handle(self, result.type, result)
        # A variable that was unset before the loop is unset after it: the loop may not run.
        for var in self._vars:
            if var not in carried:
                var.value = None

    def _merge(self, branch: _OpenIf, otherwise: _Scope) -> None:
        """Close an if: what either branch has set becomes its results, what is set on one path only is unset."""
        merged: list[tuple[Var, Handle, Handle]] = []
        for var in branch.before:
            then, other = branch.then_values[var], var.value
            if then is None or other is None:
                var.value = None
            elif then.same_value(other):
                var.value = then
            elif then.type != other.type:
                raise KernelError(
                    f"{var.name or 'a variable'} is {then.type} in one branch and {other.type} in the other"
                )
            else:
                merged.append((var, then, other))
        line = self._line()
        yields = [
            self._values_in(branch.then, [m[1] for m in merged]),
            self._values_in(otherwise, [m[2] for m in merged]),
        ]
        results = tuple(Val(then.type, var.name) for var, then, _ in merged)
        blocks = (_close((), branch.then, yields[0], line), _close((), otherwise, yields[1], line))
        self._append(Op("if", (self._use(branch.condition),), results, {}, blocks, line))
        for (var, _, _), result in zip(merged, results, strict=True):
            var.value = Handle(self, result.type, result)


def _close(args: tuple[Val, ...], scope: _Scope, yields: list[Val], line: str) -> Block:
    return Block(args, (*scope.ops, Op("yield", tuple(yields), (), {}, (), line)))

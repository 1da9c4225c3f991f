"""Making a kernel from Python: operations on handles, control flow with SSA construction.

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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.emission import Emission, Scope
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.ir import Block, Kernel, KType, Op, Val
from poot_executor.kernel.operations import Value
from poot_executor.kernel.rewrite import substitute
from poot_executor.kernel.variables import Var
from poot_executor.kernel.verify import verify

__all__ = ["KernelBuilder", "Var"]


class _OpenIf:
    """The if that was just closed without an else: `else_` may reopen it as long as nothing came after it."""

    __slots__ = ("before", "condition", "then", "then_values")

    def __init__(self, condition: Handle, before: dict[Var, Handle | None], then: Scope) -> None:
        self.condition = condition
        self.before = before
        self.then = then
        self.then_values = {var: var.value for var in before}


class KernelBuilder(Emission):
    """A kernel under construction: what `Emission` has, and variables and control flow."""

    def __init__(self, name: str, group_size: int = 64, *, packs_bf16: bool = False) -> None:
        super().__init__(name, group_size, packs_bf16=packs_bf16)
        self._vars: list[Var] = []
        self._replaced: dict[Val, Val] = {}
        self._open_if: _OpenIf | None = None

    def close_if(self) -> None:
        """Say that something follows the last if, so that no else can."""
        self._open_if = None

    def _append(self, op: Op) -> None:
        self.close_if()
        super()._append(op)

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
        self._merge(branch, Scope())
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
        params, shared = tuple(self._params), tuple(self._shared)
        kernel = Kernel(self.name, params, shared, self.group_size, body, resident=self.resident)
        verify(kernel)
        return kernel

    @contextmanager
    def _scope(self) -> Iterator[Scope]:
        """A nested block; variables declared in it end with it."""
        scope, declared = Scope(), len(self._vars)
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
        self, scope: Scope, carried: list[Var], initial: list[Handle], arguments: list[list[Val]]
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

    def _values_in(self, scope: Scope, values: list[Handle | None]) -> list[Val]:
        """IR values at the end of a block that was just left."""
        self._scopes.append(scope)
        vals = [self._use(value) for value in values if value is not None]
        self._scopes.pop()
        return vals

    def _loop(
        self, kind: str, bounds: list[Val], kept: list[int], carried: list[Var], initial: list[Handle],
        blocks: list[tuple[tuple[Val, ...], Scope, list[Val]]], line: str, attrs: dict[str, Any],
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

    def _merge(self, branch: _OpenIf, otherwise: Scope) -> None:
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


def _close(args: tuple[Val, ...], scope: Scope, yields: list[Val], line: str) -> Block:
    return Block(args, (*scope.ops, Op("yield", tuple(yields), (), {}, (), line)))

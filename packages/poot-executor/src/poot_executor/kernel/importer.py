"""Statements of the kernel language, imported to kernel IR through the builder.

A name holds a Python object or a handle. Where a runtime loop or branch sets a name, the name becomes a variable: at
a loop's entry its value must be a number or a handle, and it keeps its type. A name that a loop or one branch alone
sets has no value afterwards.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Mapping
from typing import Any

from poot_executor.errors import KernelError
from poot_executor.kernel.builder import KernelBuilder, Var
from poot_executor.kernel.expressions import Expressions, Unset
from poot_executor.kernel.functions import (
    BufferType,
    DeviceFunction,
    bind_hooks,
    is_runtime,
)
from poot_executor.kernel.handle import Handle, number
from poot_executor.kernel.intrinsics import loop, static
from poot_executor.kernel.ir import Kernel
from poot_executor.kernel.located import at
from poot_executor.kernel.source import FunctionSource, assigned_names

MAX_INLINE_DEPTH = 32
"""Device functions that may call each other: deeper is taken to be recursion."""


def import_kernel(source: FunctionSource, name: str, group_size: int, constants: Mapping[str, Any]) -> Kernel:
    """The kernel that a function means with these compile-time arguments. Raises KernelError with file and line."""
    tree = source.tree.args
    first = source.line(source.tree.lineno)
    if tree.posonlyargs or tree.vararg or tree.kwarg or tree.defaults:
        raise at(first, "a kernel has buffer parameters, then * and compile-time parameters")
    given = _compile_time(source, first, constants)
    builder = KernelBuilder(name, group_size)
    names = dict(given)
    scope = Importer(builder, source, names, ())
    for param in tree.args:
        names[param.arg] = builder.buffer(param.arg, *_buffer_type(scope, param))
    for param in tree.kwonlyargs:
        names[param.arg] = bind_hooks(builder, param.arg, given[param.arg])
    if scope.run(source.tree.body) is not None:
        raise at(first, f"kernel {source.name} returns a value: store it in a buffer")
    builder.line = ""
    return builder.finish()


def _compile_time(source: FunctionSource, first: str, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The compile-time arguments with their defaults, in the order of the parameters."""
    defaults = source.function.__kwdefaults__ or {}
    names = [param.arg for param in source.tree.args.kwonlyargs]
    unknown = [name for name in constants if name not in names]
    if unknown:
        raise at(first, f"kernel {source.name} has no compile-time parameter {', '.join(unknown)}")
    missing = [name for name in names if name not in constants and name not in defaults]
    if missing:
        raise at(first, f"kernel {source.name} needs compile-time parameters {', '.join(missing)}")
    return {name: constants[name] if name in constants else defaults[name] for name in names}


def _buffer_type(scope: Importer, param: ast.arg) -> tuple[Any, Any]:
    node = param.annotation
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.copy_location(ast.parse(node.value, mode="eval").body, node)
    found = None if node is None else scope.eval(node)
    if not isinstance(found, BufferType):
        raise scope.error(param, f"buffer parameter {param.arg} is annotated In[...], Out[...] or InOut[...]")
    return found.dtype, found.access


class _Returned:
    """That a return was reached, with its value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Importer(Expressions):
    """Imports the statements of one function. `callers` are the device functions that it is inlined into."""

    def __init__(
        self,
        builder: KernelBuilder,
        source: FunctionSource,
        names: dict[str, Any],
        callers: tuple[FunctionSource, ...],
    ) -> None:
        super().__init__(builder, source, names)
        self._callers = callers
        self._runtime_depth = 0

    def run(self, body: list[ast.stmt]) -> Any:
        """Import a function's body; gives what it returns."""
        returned = self._block(body)
        return None if returned is None else returned.value

    def inline(self, function: DeviceFunction, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Import a device function\'s body with these arguments; gives what it returns."""
        callers = (*self._callers, self.source)
        if len(callers) > MAX_INLINE_DEPTH:
            raise KernelError(f"{function.source.name}: device functions cannot be recursive")
        bound = inspect.signature(function.source.function).bind(*args, **kwargs)
        bound.apply_defaults()
        line = self.builder.line
        inner = Importer(self.builder, function.source, dict(bound.arguments), callers)
        result = inner.run(function.source.tree.body)
        self.builder.line = line
        return result

    def _block(self, statements: list[ast.stmt]) -> _Returned | None:
        for place, statement in enumerate(statements):
            self.mark(statement)
            try:
                returned = self._statement(statement)
            except KernelError as error:
                raise self.error(statement, error) from None
            if returned is not None:
                # A return in a branch that is chosen at compile time ends the function there.
                if isinstance(statement, ast.Return) and place + 1 != len(statements):
                    raise self.error(statement, "a return is the last statement")
                return returned
        return None

    def _statement(self, node: ast.stmt) -> _Returned | None:
        match node:
            case ast.Assign():
                value = self.eval(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AnnAssign():
                if node.value is not None:
                    self._assign(node.target, self.eval(node.value))
            case ast.AugAssign():
                self._augment(node)
            case ast.Expr():
                self.eval(node.value)
            case ast.If():
                return self._if(node)
            case ast.For():
                return self._for(node)
            case ast.While():
                self._while(node)
            case ast.Assert():
                self._assert(node)
            case ast.Return():
                if self._runtime_depth:
                    raise KernelError("a return within a runtime loop or branch cannot be expressed")
                return _Returned(None if node.value is None else self.eval(node.value))
            case ast.Pass():
                pass
            case _:
                raise KernelError(f"{_statement_words(node)} cannot be expressed in a kernel")
        return None

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Subscript):
            place, index = self.eval(target.value), self.eval(target.slice)
            if not is_runtime(place) or isinstance(place, tuple | list | Handle):
                raise KernelError(f"{ast.unparse(target.value)} is no buffer, shared or local array")
            self.mark(target)
            place[index] = value
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, tuple | list):
            if len(target.elts) != len(value):
                raise KernelError(f"{len(target.elts)} targets for {len(value)} values")
            for part, item in zip(target.elts, value, strict=True):
                self._assign(part, item)
        else:
            self.bind(target, value)

    def _augment(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Subscript):
            # The place and the index are evaluated once, as Python does.
            place, index = self.eval(node.target.value), self.eval(node.target.slice)
            if not is_runtime(place) or isinstance(place, tuple | list | Handle):
                raise KernelError(f"{ast.unparse(node.target.value)} is no buffer or array")
            place[index] = self.binary(type(node.op), place[index], self.eval(node.value))
            return
        if not isinstance(node.target, ast.Name):
            raise KernelError(f"{ast.unparse(node.target)} cannot be assigned to")
        old = self.eval(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
        self.bind(node.target, self.binary(type(node.op), old, self.eval(node.value)))

    def _assert(self, node: ast.Assert) -> None:
        truth = self.condition(node.test)
        if isinstance(truth, Handle):
            raise KernelError("an assert is about compile-time values: use check(condition, code)")
        if not truth:
            said = "" if node.msg is None else f": {self.eval(node.msg)}"
            raise KernelError(f"assert {ast.unparse(node.test)} does not hold{said}")

    # Branches

    def _if(self, node: ast.If) -> _Returned | None:
        truth = self.condition(node.test)
        if not isinstance(truth, Handle):
            return self._block(node.body if truth else node.orelse)
        names = assigned_names([*node.body, *node.orelse])
        before = dict(self.names)
        variables = {name: self._variable(name) for name in names}
        self.mark(node)
        with self.builder.if_(truth):
            then = self._branch(node.body, variables)
        self._restore(before)
        self.mark(node)
        with self.builder.else_():
            other = self._branch(node.orelse, variables)
        self._restore(before)
        for name in names:
            self.names[name] = self._merged(variables[name], then.get(name), other.get(name))
        return None

    def _branch(self, body: list[ast.stmt], variables: dict[str, Var]) -> dict[str, Any]:
        """Import a branch, leave what it set in the variables; gives the names after it."""
        self._runtime(body)
        for name, variable in variables.items():
            value = self.names.get(name)
            settable = value if isinstance(value, Handle) else number(value)
            if settable is None:
                variable.clear()
            else:
                variable.set(settable)
        return dict(self.names)

    def _merged(self, variable: Var, then: Any, other: Any) -> Any:
        value = variable.value
        variable.drop()
        if not isinstance(then, Handle) and then is not None and then is other:
            return then
        return Unset("is not set on every path to here") if value is None else value

    def _runtime(self, body: list[ast.stmt]) -> None:
        self._runtime_depth += 1
        self._block(body)
        self._runtime_depth -= 1

    def _restore(self, names: dict[str, Any]) -> None:
        self.names.clear()
        self.names.update(names)

    def _variable(self, name: str) -> Var:
        """A variable that starts with the name's value, or unset where that exists at compile time only."""
        value = self.names.get(name)
        if isinstance(value, Handle):
            return self.builder.var(value, name=name)
        plain = number(value)
        return self.builder.var(plain, name=name)

    # Loops

    def _for(self, node: ast.For) -> _Returned | None:
        if node.orelse:
            raise KernelError("a for with an else cannot be expressed in a kernel")
        call = node.iter
        callee = self.eval(call.func) if isinstance(call, ast.Call) else None
        if callee is static:
            return self._static(node)
        if (callee is not builtins.range and callee is not loop) or not isinstance(call, ast.Call):
            raise KernelError("a for goes over range(...), or over static(...) to be unrolled")
        options = {keyword.arg: self.eval(keyword.value) for keyword in call.keywords}
        unroll = options.pop("unroll", None)
        if options or (unroll is not None and (not isinstance(unroll, int) or unroll < 1)):
            raise KernelError("range takes low, high, step and a compile-time unroll of at least 1")
        if not isinstance(node.target, ast.Name):
            raise KernelError("a loop over range has one name")
        bounds = self._items(call.args)
        variables = self._enter([node.target.id, *assigned_names(node.body)], node.target.id)
        self.mark(node)
        with self.builder.range(*bounds, unroll=unroll, name=node.target.id) as index:
            self._load(variables)
            self.names[node.target.id] = index
            self._runtime(node.body)
            self._save(variables)
        self._leave(variables, [node.target.id, *assigned_names(node.body)])
        return None

    def _static(self, node: ast.For) -> _Returned | None:
        assert isinstance(node.iter, ast.Call)
        items = self.eval(node.iter)
        for item in items:
            self._assign(node.target, item)
            if self._block(node.body) is not None:
                raise KernelError("a return within a loop cannot be expressed")
        return None

    def _while(self, node: ast.While) -> None:
        if node.orelse:
            raise KernelError("a while with an else cannot be expressed in a kernel")
        names = assigned_names(node.body)
        variables = self._enter(names, None)

        def condition() -> Handle:
            self._load(variables)
            truth = self.condition(node.test)
            if truth is True:
                raise KernelError("a while whose condition is always true does not end")
            return self.builder.as_handle(truth)

        self.mark(node)
        with self.builder.while_(condition):
            self._load(variables)
            self._runtime(node.body)
            self._save(variables)
        self._leave(variables, names)

    def _enter(self, names: list[str], index: str | None) -> dict[str, Var]:
        """Variables for the names that a loop sets and that have a value before it."""
        variables = {}
        for name in names:
            value = self.names.get(name)
            if name != index and (isinstance(value, Handle) or number(value) is not None):
                variables[name] = self._variable(name)
            elif name in self.names:
                self.names[name] = Unset("is set by a runtime loop, and was no number before it")
        return variables

    def _load(self, variables: dict[str, Var]) -> None:
        for name, variable in variables.items():
            self.names[name] = variable.get()

    def _save(self, variables: dict[str, Var]) -> None:
        for name, variable in variables.items():
            value = self.names[name]
            if isinstance(value, Unset):
                raise KernelError(f"{name} {value.reason}, and the loop carries it")
            if not isinstance(value, Handle) and number(value) is None:
                raise KernelError(f"{name} is {value!r} at the end of a runtime loop: not a number")
            variable.set(value)

    def _leave(self, variables: dict[str, Var], names: list[str]) -> None:
        for name in names:
            if name in variables:
                self.names[name] = variables[name].get()
                variables[name].drop()
            else:
                self.names[name] = Unset("is set only inside a loop, which may not run")


def _statement_words(node: ast.stmt) -> str:
    names = {
        ast.FunctionDef: "a nested function", ast.ClassDef: "a class", ast.With: "with", ast.Raise: "raise",
        ast.Import: "import", ast.ImportFrom: "import", ast.Delete: "del", ast.Global: "global",
        ast.Nonlocal: "nonlocal", ast.Match: "match",
    }  # fmt: skip
    return names.get(type(node), type(node).__name__.lower())  # type: ignore[call-overload]

"""Expressions of the kernel language: evaluated by Python where their parts are known, emitted where they are not."""

from __future__ import annotations

import ast
import builtins
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from poot_executor.errors import KernelError
from poot_executor.kernel.buffers import BufferRef, SharedRef
from poot_executor.kernel.builder import KernelBuilder
from poot_executor.kernel.functions import (
    BoundHook,
    DeviceFunction,
    Intrinsic,
    LocalArray,
    dtype_of,
    is_runtime,
    is_type_name,
)
from poot_executor.kernel.handle import Handle
from poot_executor.kernel.located import at
from poot_executor.kernel.source import FunctionSource


@dataclass(frozen=True, slots=True)
class Unset:
    """A name that has no value here, and why."""

    reason: str


_BINARY: MappingProxyType[type[ast.operator], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
        ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
        ast.BitXor: operator.xor, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.Pow: operator.pow,
    }
)  # fmt: skip
_COMPARE: MappingProxyType[type[ast.cmpop], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
        ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
        ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    }
)  # fmt: skip
_CONTAINERS = (len, tuple, list, zip, enumerate, reversed, sum)
"""Python's own functions that only handle containers, so that they may be given runtime values."""


class Expressions(ABC):
    """Evaluates expressions of one function, whose names are in `names`."""

    def __init__(self, builder: KernelBuilder, source: FunctionSource, names: dict[str, Any]) -> None:
        self.builder = builder
        self.source = source
        self.names = names

    @abstractmethod
    def inline(self, function: DeviceFunction, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Import a device function's body here and give what it returns."""

    def error(self, node: ast.AST, problem: KernelError | str) -> KernelError:
        """The error, with the file and line of the syntax."""
        return at(self.source.line(getattr(node, "lineno", 1)), problem)

    def mark(self, node: ast.AST) -> None:
        """Operations emitted from now on come from this line."""
        self.builder.line = self.source.line(getattr(node, "lineno", 1))

    def eval(self, node: ast.expr) -> Any:
        """The value: a Python object where it is known, else a handle. Every error names the file and line."""
        rule = getattr(self, f"_{type(node).__name__}", None)
        if rule is None:
            raise self.error(node, f"{_words(node)} cannot be expressed in a kernel")
        self.mark(node)
        try:
            return rule(node)
        except KernelError as error:
            raise self.error(node, error) from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, AssertionError) as error:
            raise self.error(node, f"{ast.unparse(node)}: {error}") from error

    def condition(self, node: ast.expr) -> Handle | bool:
        """A condition: a bool handle, or Python's truth where it is known."""
        return self._truth(self.eval(node))

    def _truth(self, value: Any) -> Handle | bool:
        if not isinstance(value, Handle):
            if is_runtime(value) and not isinstance(value, tuple | list):
                raise KernelError("a buffer or array is no condition")
            return bool(value)
        if value.constant is not None:
            return bool(value.constant)
        return value if value.dtype.value == "bool" else value != 0

    def _Constant(self, node: ast.Constant) -> Any:
        return node.value

    def _Name(self, node: ast.Name) -> Any:
        if node.id in self.names:
            value = self.names[node.id]
            if isinstance(value, Unset):
                raise KernelError(f"{node.id} {value.reason}")
            return value
        try:
            return self.source.lookup(node.id)
        except LookupError:
            raise KernelError(f"{node.id} is not defined") from None

    def _Tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._items(node.elts))

    def _List(self, node: ast.List) -> list[Any]:
        return self._items(node.elts)

    def _items(self, nodes: list[ast.expr]) -> list[Any]:
        items: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                items.extend(self._known_iterable(node.value))
            else:
                items.append(self.eval(node))
        return items

    def _BinOp(self, node: ast.BinOp) -> Any:
        return self.binary(type(node.op), self.eval(node.left), self.eval(node.right))

    def binary(self, kind: type[ast.operator], left: Any, right: Any) -> Any:
        """What an arithmetic sign means for two values. Matrix multiplication is none."""
        if kind not in _BINARY:
            raise KernelError("@ cannot be expressed in a kernel")
        if kind is ast.Pow and (isinstance(left, Handle) or isinstance(right, Handle)):
            return self.builder.pow(left, right)
        return _BINARY[kind](left, right)

    def _UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self.eval(node.operand)
        match node.op:
            case ast.Not():
                truth = self._truth(value)
                return ~truth if isinstance(truth, Handle) else not truth
            case ast.USub():
                return -value
            case ast.Invert():
                return ~value
            case _:
                return value

    def _BoolOp(self, node: ast.BoolOp) -> Any:
        """`and` and `or`: a known operand decides or drops out, runtime operands are all evaluated."""
        ends = isinstance(node.op, ast.Or)
        result: Handle | None = None
        for part in node.values:
            truth = self._truth(self.eval(part))
            if isinstance(truth, Handle):
                result = truth if result is None else (result | truth if ends else result & truth)
            elif truth is ends:
                return truth
        return result if result is not None else not ends

    def _Compare(self, node: ast.Compare) -> Any:
        left, result = self.eval(node.left), None
        for sign, part in zip(node.ops, node.comparators, strict=True):
            right = self.eval(part)
            one = self._truth(_COMPARE[type(sign)](_dtype_or(left), _dtype_or(right)))
            if one is False:
                return False
            if isinstance(one, Handle):
                result = one if result is None else result & one
            left = right
        return True if result is None else result

    def _IfExp(self, node: ast.IfExp) -> Any:
        truth = self.condition(node.test)
        if isinstance(truth, Handle):
            return self.builder.select(truth, self.eval(node.body), self.eval(node.orelse))
        return self.eval(node.body if truth else node.orelse)

    def _Attribute(self, node: ast.Attribute) -> Any:
        value = self.eval(node.value)
        if node.attr.startswith("_"):
            raise KernelError(f"{node.attr} is private")
        return getattr(value.hook if isinstance(value, BoundHook) else value, node.attr)

    def _Subscript(self, node: ast.Subscript) -> Any:
        value, index = self.eval(node.value), self.eval(node.slice)
        if isinstance(index, Handle) and not isinstance(value, BufferRef | SharedRef | LocalArray | Handle):
            raise KernelError(f"{ast.unparse(node.value)} is known at compile time and its index is not")
        return value[index]

    def _Slice(self, node: ast.Slice) -> slice:
        parts = [None if part is None else self.eval(part) for part in (node.lower, node.upper, node.step)]
        if is_runtime(parts):
            raise KernelError("a slice has compile-time bounds")
        return slice(*parts)

    def _ListComp(self, node: ast.ListComp) -> list[Any]:
        return list(self._comprehend(node.elt, node.generators))

    def _GeneratorExp(self, node: ast.GeneratorExp) -> list[Any]:
        return list(self._comprehend(node.elt, node.generators))

    def _comprehend(self, element: ast.expr, generators: list[ast.comprehension]) -> Iterator[Any]:
        if not generators:
            yield self.eval(element)
            return
        first, *rest = generators
        outer = dict(self.names)
        for item in self._known_iterable(first.iter):
            self.bind(first.target, item)
            conditions = [self.condition(test) for test in first.ifs]
            if is_runtime(conditions):
                raise KernelError("a comprehension has compile-time conditions")
            if all(conditions):
                yield from self._comprehend(element, rest)
        self.names.clear()
        self.names.update(outer)

    def _known_iterable(self, node: ast.expr) -> list[Any]:
        value = self.eval(node)
        if isinstance(value, Handle | BufferRef | SharedRef):
            raise KernelError(f"{ast.unparse(node)} is not known at compile time: it cannot be iterated over")
        return list(value)

    def bind(self, target: ast.expr, value: Any) -> None:
        """Assign to a name or to a tuple of names."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value.named(target.id) if isinstance(value, Handle) else value
            return
        if not isinstance(target, ast.Tuple | ast.List):
            raise self.error(target, f"{ast.unparse(target)} cannot be assigned to here")
        if not isinstance(value, tuple | list) or len(value) != len(target.elts):
            raise self.error(target, f"{len(target.elts)} names take a tuple of as many values, not {value!r}")
        for part, item in zip(target.elts, value, strict=True):
            self.bind(part, item)

    def _Call(self, node: ast.Call) -> Any:
        callee = self.eval(node.func)
        args = self._items(node.args)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise KernelError("** cannot be expressed in a kernel")
            kwargs[keyword.arg] = self.eval(keyword.value)
        self.mark(node)
        if isinstance(callee, DeviceFunction):
            return self.inline(callee, args, kwargs)
        if isinstance(callee, Intrinsic):
            return callee.emit(self.builder, *args, **kwargs)
        if isinstance(callee, BoundHook):
            return callee.call(self.builder, *args, **kwargs)
        if is_type_name(callee) or (callee is bool and is_runtime(args)):
            (value,) = args
            return self.builder.cast(value, dtype_of(callee))
        owner = getattr(callee, "__self__", None)
        if isinstance(owner, BufferRef | SharedRef | Handle | KernelBuilder):
            return callee(*args, **kwargs)
        if not is_runtime(args) and not is_runtime(list(kwargs.values())):
            return callee(*args, **kwargs)
        return self._python(node, callee, args, kwargs)

    def _python(self, node: ast.Call, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Python's own functions on runtime values."""
        if callee in (builtins.min, builtins.max) and len(args) > 1 and not kwargs:
            pick = self.builder.min if callee is builtins.min else self.builder.max
            result = args[0]
            for arg in args[1:]:
                result = pick(result, arg)
            return result
        if callee is builtins.abs:
            return self.builder.abs(*args)
        if callee is builtins.round and len(args) == 1:
            return self.builder.round(*args)
        if callee is builtins.pow and len(args) == 2:
            return self.builder.pow(*args)
        if callee in _CONTAINERS:
            return callee(*args, **kwargs)
        if callee is builtins.range:
            raise KernelError("a range with runtime bounds stands in a for statement only")
        raise KernelError(
            f"{ast.unparse(node.func)} is Python and cannot take runtime values: make it a @device function"
        )


def _dtype_or(value: Any) -> Any:
    """A type name of the language as the DType that it stands for, so that it equals one; else the value."""
    return dtype_of(value) if is_type_name(value) else value


def _words(node: ast.AST) -> str:
    """What a piece of syntax is called."""
    names = {
        ast.Lambda: "a lambda", ast.Dict: "a dict", ast.Set: "a set", ast.DictComp: "a dict comprehension",
        ast.SetComp: "a set comprehension", ast.Await: "await", ast.Yield: "yield", ast.JoinedStr: "an f-string",
        ast.NamedExpr: "an assignment within an expression",
    }  # fmt: skip
    return names.get(type(node), type(node).__name__.lower())  # type: ignore[call-overload]

"""Kernels from their text: what `show` writes, read back. Equal text, and so an equal digest, comes of what is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from poot_executor.dtype import DType
from poot_executor.errors import KernelError
from poot_executor.kernel.fragments import fragment_type
from poot_executor.kernel.ir import Access, Block, Kernel, KType, Op, Param, SharedArray, Val

_HEAD = re.compile(r"kernel (\S+) group_size=(\d+)(?: groups=(\d+)x(\d+)x(\d+))?( resident)?")
_PARAM = re.compile(r"param (\d+) (\S+): (\w+?)(?:\[(\d+)\])? (read|read_write)")
_SHARED = re.compile(r"shared (\d+) (\S+): (\w+)\[(\d+)\]")
_VALUE = re.compile(r"%(\d+): (\w+)")
_WHOLE = re.compile(r"-?\d+")


def parse(text: str) -> Kernel:
    """The kernel in a text of `show`, without hints or lines.

    Raises KernelError naming the line for anything else. The kernel is as well formed as its text: `verify` it where
    that is not known.
    """
    return _Parser(text).kernel()


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = [line.lstrip(" ") for line in text.split("\n")]
        if self._lines and not self._lines[-1]:
            self._lines.pop()
        self._at = 0
        self._values: dict[str, Val] = {}
        self._types: dict[str, KType] = {}

    def kernel(self) -> Kernel:
        try:
            return self._kernel()
        except (IndexError, KeyError, ValueError, AttributeError) as error:
            line = self._lines[min(self._at, len(self._lines)) - 1] if self._lines else ""
            raise KernelError(f"line {self._at} of a kernel's text cannot be read: {line[:120]!r}") from error

    def _next(self) -> str:
        line = self._lines[self._at]
        self._at += 1
        return line

    def _kernel(self) -> Kernel:
        name, size, *axes = _matched(_HEAD, self._next())
        params = tuple(self._declared(_PARAM, self._param))
        shared = tuple(self._declared(_SHARED, self._shared))
        body = Block((), tuple(self._ops(len(self._lines))))
        if self._at < len(self._lines):
            raise ValueError("lines behind the body")
        x, y, z, resident = axes
        groups = None if x is None else (int(x), int(y), int(z))
        return Kernel(name, params, shared, int(size), body, groups, resident is not None)

    def _declared(self, pattern: re.Pattern[str], make: Callable[..., Any]) -> list[Any]:
        word, found = pattern.pattern.split(" ", 1)[0] + " ", []
        while self._at < len(self._lines) and self._lines[self._at].startswith(word):
            place, *rest = _matched(pattern, self._next())
            if int(place) != len(found):
                raise ValueError(place)
            found.append(make(*rest))
        return found

    def _param(self, name: str, dtype: str, count: str | None, access: str) -> Param:
        return Param(name, DType(dtype), Access(access), None if count is None else int(count))

    def _shared(self, name: str, dtype: str, count: str) -> SharedArray:
        return SharedArray(name, DType(dtype), int(count))

    def _ops(self, end: int) -> list[Op]:
        ops: list[Op] = []
        while self._at < end and self._lines[self._at] != "}":
            ops.append(self._op(end))
        return ops

    def _op(self, end: int) -> Op:
        line = self._next()
        names: list[str] = []
        if line.startswith("%"):
            left, line = line.split(" = ", 1)
            names = left.split(", ")
            line, _, listed = line.rpartition(": ")
            results = [self._define(n, t) for n, t in zip(names, listed.split(", "), strict=True)]
        else:
            results = []
        kind, _, rest = line.partition(" ")
        operands: list[Val] = []
        attrs: dict[str, Any] = {}
        for word in rest.split(" ") if rest else ():
            if word.startswith("%"):
                operands.append(self._values[word.removesuffix(",")])
            else:
                key, equals, value = word.partition("=")
                if not equals:
                    raise ValueError(word)
                attrs[key] = _attribute(value)
        blocks: list[Block] = []
        while not names and self._at < end and self._lines[self._at].endswith("{"):
            blocks.append(self._block(end))
        if blocks and self._at < end and self._lines[self._at].startswith("-> "):
            results = self._listed(self._next()[3:])
        return Op(kind, tuple(operands), tuple(results), attrs, tuple(blocks))

    def _block(self, end: int) -> Block:
        head = self._next()
        args = self._listed(head[1:-3]) if head != "{" else []
        ops = self._ops(end)
        if self._next() != "}":
            raise ValueError("a block without an end")
        return Block(tuple(args), tuple(ops))

    def _listed(self, text: str) -> list[Val]:
        return [self._define("%" + n, t) for n, t in (_matched(_VALUE, item) for item in text.split(", "))]

    def _define(self, name: str, type_: str) -> Val:
        if name in self._values or name != f"%{len(self._values)}":
            raise ValueError(name)
        made = self._values[name] = Val(self._type(type_))
        return made

    def _type(self, text: str) -> KType:
        if text not in self._types and "_" in text:
            self._types[text] = fragment_type(text)
        if text not in self._types:
            dtype, _, width = text.partition("x")
            self._types[text] = KType(DType(dtype), int(width) if width else 1)
        return self._types[text]


def _attribute(text: str) -> Any:
    """A value as `str` wrote it: a number, True, False, or a name."""
    if text in ("True", "False"):
        return text == "True"
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def _matched(pattern: re.Pattern[str], text: str) -> tuple[Any, ...]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return found.groups()

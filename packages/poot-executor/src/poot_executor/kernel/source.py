"""The source of a function of the kernel language: its syntax tree, where it is, and what its names mean to Python."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poot_executor.errors import KernelError


class FunctionSource:
    """A Python function, parsed once. Raises KernelError where its source is not to be had."""

    __slots__ = ("_first_line", "file", "function", "name", "tree")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__
        self.file = Path(function.__code__.co_filename).name
        try:
            lines, self._first_line = inspect.getsourcelines(function)
        except OSError:
            raise KernelError(f"{self.name}: the source is not to be had, {self.file} is no file") from None
        (tree,) = ast.parse(textwrap.dedent("".join(lines))).body
        if not isinstance(tree, ast.FunctionDef):
            raise KernelError(f"{self.line(1)}: {self.name} is no plain function")
        self.tree = tree

    def line(self, relative: int) -> str:
        """ "file.py:12" of a line number of the syntax tree."""
        return f"{self.file}:{self._first_line + relative - 1}"

    def lookup(self, name: str) -> Any:
        """What a name that the function does not set means: a closure's cell, a global or a builtin.

        Looked up when the function is imported, so that what is defined after it is found. Raises LookupError.
        """
        code = self.function.__code__
        if name in code.co_freevars and self.function.__closure__ is not None:
            cell = self.function.__closure__[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                raise LookupError(name) from None
        if name in self.function.__globals__:
            return self.function.__globals__[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise LookupError(name)


def assigned_names(statements: list[ast.stmt]) -> list[str]:
    """The names that statements set, in the order of their first place. Names of comprehensions are their own."""
    found: dict[str, None] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.setdefault(node.id)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.comprehension):
                visit(child)

    for statement in statements:
        visit(statement)
    return list(found)

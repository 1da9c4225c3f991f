"""The jinja2 environment that runs a checkpoint's chat template: sandboxed, and bounded in work and output.

A template is a program that came with a download. The sandbox keeps it away from Python; this module also keeps it
from running away. Every pass of a loop, every call and every filter takes a step from a budget that also watches the
clock, and whatever makes a string or list longer is charged for its length before it makes it. Filters that chat
templates have no use for are left out, recursive loops too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from json import dumps
from typing import Any

import jinja2
from jinja2 import ext, nodes, pass_context, sandbox
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000
"""Loop passes, calls and filters of one rendering."""
MAX_SECONDS = 5.0
"""Time of one rendering; real ones take milliseconds."""
MAX_CHARACTERS = 8 << 20
"""Length of any one string or list that a rendering makes, its output included."""
MAX_TOTAL = 512 << 20
"""Length of all of them together."""

_KEPT_FILTERS = (
    "abs capitalize count d default dictsort e escape first float groupby int items last length list lower map max "
    "min reject rejectattr reverse safe select selectattr sort string sum title trim unique upper"
).split()
_PADDING = frozenset(("center", "ljust", "rjust", "zfill", "expandtabs"))
_WIDE = re.compile(r"\d{6}|\*")
_Sized = str | list | tuple


class TemplateLimit(jinja2.TemplateError):
    """A template went beyond its bounds."""


class Budget:
    """What is left of one rendering's steps, time and characters."""

    __slots__ = ("_deadline", "_steps", "_total")

    def __init__(self) -> None:
        self._steps = MAX_STEPS
        self._total = MAX_TOTAL
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Take a step. Raises TemplateLimit when none or no time is left."""
        self._steps -= 1
        if self._steps < 0:
            raise TemplateLimit(f"the template takes more than {MAX_STEPS:,} steps")
        if time.monotonic() > self._deadline:
            raise TemplateLimit(f"the template runs for more than {MAX_SECONDS:g} s")

    def charge(self, length: int) -> None:
        """Account for a string or list about to be made. Raises TemplateLimit when it is too long."""
        self._total -= max(length, 0)
        if length > MAX_CHARACTERS or self._total < 0:
            raise TemplateLimit(f"the template makes a text of more than {MAX_CHARACTERS:,} characters")

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items, a step for each."""
        for item in items:
            self.step()
            yield item


class _Bounds(NodeTransformer):
    """Sends loops and joins through filters that charge for them."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 dispatches on this name
        self.generic_visit(node)
        if node.recursive:
            raise jinja2.TemplateSyntaxError("recursive loops are not run in chat templates", node.lineno)
        node.iter = nodes.Filter(node.iter, "poot_each", [], [], None, None, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - jinja2 dispatches on this name
        self.generic_visit(node)
        items = nodes.List(list(node.nodes), lineno=node.lineno)
        return nodes.Filter(items, "poot_concat", [], [], None, None, lineno=node.lineno)


class _Generation(ext.Extension):
    """`{% generation %}`, with which templates mark an assistant's words for training, changes no text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _PublicNamespace(Namespace):
    """jinja2's namespace without attributes that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # The signature leaves every name, `self` too, free for an attribute.
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _refuse_private(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.TemplateError(f"a namespace holds no attribute {name!r}: it starts with an underscore")


class ChatEnvironment(sandbox.ImmutableSandboxedEnvironment):
    """The environment of one rendering: it holds the rendering's budget. Code compiled in one runs in another.

    `stand_ins` are characters that `tojson` leaves as they are even where it is asked for ASCII.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, budget: Budget, stand_ins: frozenset[str] = frozenset()) -> None:
        extensions = [_Generation, ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, cache_size=0)
        self._budget = budget
        self._stand_ins = stand_ins
        stepped = {name: self._stepped(self.filters[name]) for name in _KEPT_FILTERS}
        self.filters = stepped | {
            "poot_each": pass_context(lambda _, items: budget.each(items)),
            "poot_concat": pass_context(lambda _, parts: self.concat(map(str, parts))),
            "format": self._format,
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "round": _round,
            "tojson": self._tojson,
        }
        names: Any = {
            "range": self.globals["range"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "dict": _new_dict,
            "namespace": _PublicNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }
        self.globals = names

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return template

    def _stepped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            self._budget.step()
            return function(*args, **kwargs)

        if hasattr(function, "jinja_pass_arg"):
            stepped.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return stepped

    def concat(self, parts: Iterable[str]) -> str:  # type: ignore[override]
        """Joins what `~`, a block, a macro or the whole template puts together."""
        written, length = [], 0
        for part in parts:
            length += len(part)
            if length > MAX_CHARACTERS:
                break
            written.append(part)
        self._budget.charge(length)
        return "".join(written)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`+`, `*`, `**` and `%`, charged for what they make."""
        if operator == "+" and isinstance(left, _Sized) and isinstance(right, _Sized):
            self._budget.charge(len(left) + len(right))
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, _Sized) and isinstance(other, int):
                    self._budget.charge(len(one) * other)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._budget.charge(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call that a template makes: a step, and string methods are charged for what they make."""
        self._budget.step()
        # The sandbox hands out str.format in a wrapper of its own.
        method = getattr(obj, "__wrapped__", obj)
        name, owner = getattr(method, "__name__", ""), getattr(method, "__self__", None)
        if isinstance(owner, str):
            if name in _PADDING:
                widths = [value for value in (*args, *kwargs.values()) if isinstance(value, int)]
                self._budget.charge(sum(map(abs, widths)) * (len(owner) if name == "expandtabs" else 1))
            elif name == "replace":
                return self._replace(owner, *args, **kwargs)
            elif name == "join":
                return self._join(args[0] if args else (), owner)
            elif name in ("format", "format_map"):
                _check_format(owner)
        return super().call(context, obj, *args, **kwargs)

    def _format(self, text: Any, *args: Any, **kwargs: Any) -> str:
        """The text's % fields filled from positions or names."""
        _check_format(str(text))
        return str(text) % (kwargs or args)

    def _replace(self, text: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(text), str(old), str(new)
        found = text.count(old)
        self._budget.step()
        self._budget.charge(len(text) + max(len(new) - len(old), 0) * found)
        return text.replace(old, new, -1 if count is None else count)

    def _join(self, value: Any, d: Any = "", attribute: Any = None) -> str:
        items: Iterable[Any] = value
        if attribute is not None:
            items = (self.getitem(item, attribute) for item in value)
        parts = [str(item) for item in self._budget.each(items)]
        self._budget.charge(sum(map(len, parts)) + len(str(d)) * len(parts))
        return str(d).join(parts)

    def _indent(self, text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
        """Indents lines, the first one and blank ones only where asked."""
        step = width if isinstance(width, str) else " " * min(width, MAX_CHARACTERS)
        lines = str(text).splitlines() or [""]
        self._budget.charge(len(str(text)) + len(step) * len(lines))
        rest = [step + line if line or blank else line for line in lines[1:]]
        end = "\n" if str(text).endswith("\n") else ""
        return "\n".join([step + lines[0] if first else lines[0], *rest]) + end

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as chat templates expect it: not escaped for HTML, and characters as they are."""
        self._budget.step()
        if len(indent) > 64 if isinstance(indent, str) else (indent or 0) > 64:
            raise TemplateLimit("tojson of the template indents by more than 64")
        text = dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
        self._budget.charge(len(text))
        if not ensure_ascii:
            return text
        return "".join(c if c < "\x80" or c in self._stand_ins else dumps(c)[1:-1] for c in text)


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise TemplateLimit("a format of the template asks for a width of six digits, or for one given later")


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    """jinja2's `round` to at most 15 places."""
    if method not in ("common", "ceil", "floor") or abs(precision) > 15:
        raise jinja2.TemplateError(f"round to {precision!r} places by {method!r}")
    if method == "common":
        return round(value, precision)
    scaled = value * 10.0**precision
    whole = int(scaled)
    if whole != scaled and (whole > scaled) == (method == "floor"):
        whole += 1 if method == "ceil" else -1
    return whole / 10.0**precision


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    """`dict` as a plain function: the class itself would offer its methods and attributes."""
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)

"""How a model writes calls of tools: the marks that its chat template teaches it, and grammars that force a call."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from poot_llm.guided.grammar import JSON_OPTIONS
from poot_llm.guided.limits import GuideLimits
from poot_llm.guided.spec import StructuredOutputs, levels_of
from poot_serve.http.errors import refused
from poot_serve.http.requests.tools import FunctionDefinition

PLAIN = MappingProxyType({"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "})
"""A call is written as templates write it, without other space: with it, a model may give nothing else."""
DEPTH = GuideLimits().depth
MOST_CALLS = 16
"""Calls of an answer that must call and may call several tools."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Calls begin with `begin` and end with `end`; "" where they end with the answer. Between them is one JSON object,
    or with `listed` an array of them. `arguments` is the key of a call's arguments.

    `taught` is whether the template itself tells the model of tools; otherwise the prompt has to.
    """

    name: str
    begin: str
    end: str
    listed: bool
    arguments: str
    taught: bool


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", False, "arguments", True)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "", True, "arguments", True)
LLAMA = ToolFormat("llama", "<|python_tag|>", "", False, "parameters", True)
UNTAUGHT = ToolFormat("untaught", "<tool_call>", "</tool_call>", False, "arguments", False)
"""For a template that knows no tools."""


def format_of(template: str | None) -> ToolFormat:
    """The format that a template's source shows."""
    source = template or ""
    if "tools" not in source:
        return UNTAUGHT
    if "[TOOL_CALLS]" in source:
        return MISTRAL
    if "<|python_tag|>" in source or ('"parameters":' in source and "<tool_call>" not in source):
        return LLAMA
    return HERMES


def forcing(format: ToolFormat, functions: Sequence[FunctionDefinition], *, several: bool) -> StructuredOutputs:
    """The structure of an answer that calls one of these functions, or with `several` up to `MOST_CALLS` times.

    Raises RequestError for schemas that are none.
    """
    rules = call_rules(format, functions)
    return StructuredOutputs(lark=f"start: {calls_expression(format, several=several)}\n{rules}")


def forcing_or(format: ToolFormat, functions: Sequence[FunctionDefinition], schema: str) -> StructuredOutputs:
    """The structure of an answer that is JSON by a schema, or calls functions."""
    rules = call_rules(format, functions)
    answer = json.dumps(_bounded(json.loads(schema), "response_format"))
    return StructuredOutputs(
        lark=f"start: answer | {calls_expression(format, several=True)}\nanswer: %json {answer}\n{rules}"
    )


def allowing(format: ToolFormat, functions: Sequence[FunctionDefinition], *, several: bool) -> StructuredOutputs:
    """The structure of an answer that is any text, after which it may call functions: what begins as a call is one."""
    mark = re.escape(format.begin)
    text = "(?s:([^{].*)?)" if format.name == "llama" else "(?s:.*)"
    calls = calls_expression(format, several=several)
    after = calls.removeprefix(_text(format.begin)).removeprefix("?")
    bare = f" | {calls}" if format.name == "llama" else ""
    return StructuredOutputs(
        lark=f"start: PLAIN | begin {after}{bare}\n"
        f"begin[suffix={_text(format.begin)}]: /{text}/\n"
        f"PLAIN: /{text}/ & ~/(?s:.*){mark}(?s:.*)/\n{call_rules(format, functions)}"
    )


def calls_expression(format: ToolFormat, *, several: bool) -> str:
    """One call, or several, as a Lark expression over the rule `call`."""
    begin, end = _text(format.begin), _text(format.end)

    def row(one: str, between: str) -> str:
        return f"{one} ({between} {one}){{0,{MOST_CALLS - 1}}}" if several else one

    if format.listed:
        calls = row("call", '"," " "?')
        return f'{begin} "[" {calls} "]"'
    if format.name == "llama":
        calls = row("call", '";" " "?')
        return f"{begin}? {calls}"
    return row(f'{begin} "\\n" call "\\n" {end}', '"\\n"')


def call_rules(format: ToolFormat, functions: Sequence[FunctionDefinition]) -> str:
    """The rule `call` and what it needs: a JSON object for each function."""
    names = [f"call_{index}" for index in range(len(functions))]
    lines = [f"call: {' | '.join(names)}"]
    for name, function in zip(names, functions, strict=True):
        schema = {
            "type": "object",
            "properties": {"name": {"const": function.name}, format.arguments: _arguments(function)},
            "required": ["name", format.arguments],
            "additionalProperties": False,
            "x-guidance": dict(PLAIN),
        }
        lines.append(f"{name}: %json {json.dumps(schema)}")
    return "\n".join(lines) + "\n"


def _arguments(function: FunctionDefinition) -> dict[str, object]:
    schema = function.parameters
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    where = f"tools.{function.name}.parameters"
    if (levels := levels_of(schema, DEPTH)) > DEPTH:
        raise refused(f"{where}: it is nested {levels} levels deep or more, at most {DEPTH}", "tools")
    return {"type": "object", **schema}


def _bounded(schema: object, field: str) -> dict[str, object]:
    """A schema as part of a grammar. Raises ApiError for what none may be."""
    if schema is True:
        schema = {}
    if not isinstance(schema, dict) or "x-guidance" in schema:
        raise refused(f"{field}: its schema is no object, or says x-guidance, which is not taken from a schema", field)
    if (levels := levels_of(schema, DEPTH)) > DEPTH:
        raise refused(f"{field}: it is nested {levels} levels deep or more, at most {DEPTH}", field)
    return schema | {"x-guidance": JSON_OPTIONS}


def _text(text: str) -> str:
    return json.dumps(text) if text else '""'

"""Calls of tools in an answer's text: found however the text was cut, and text where they are none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from poot_serve.http.requests.tools import FunctionDefinition
from poot_serve.http.tools.format import (
    HERMES,
    LLAMA,
    MISTRAL,
    UNTAUGHT,
    ToolFormat,
    allowing,
    forcing,
    forcing_or,
    format_of,
)
from poot_serve.http.tools.parser import Call, ToolParser

CASES: list[tuple[ToolFormat, str, list[Any]]] = [
    (HERMES, "hi", ["hi"]),
    (HERMES, "  a < b <tool_ca  ", ["  a < b <tool_ca  "]),
    (HERMES, 'hi \n<tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call>\n', ["hi", ("f", {"a": 1})]),
    (HERMES, '<tool_call>{"name":"f"}</tool_call>\n<tool_call>{"name":"g"}</tool_call>', [("f", {}), ("g", {})]),
    (HERMES, '<tool_call>{"name":"f","arguments":"{\\"a\\":2}"}</tool_call>', [("f", {"a": 2})]),
    (HERMES, '<tool_call>{"name":"f","arguments":{"x":"</tool_call>"}}</tool_call>', [("f", {"x": "</tool_call>"})]),
    (HERMES, '<tool_call>{"name":"f"}', [("f", {})]),
    (HERMES, '<tool_call>{"name":"unknown"}</tool_call>', ['<tool_call>{"name":"unknown"}</tool_call>']),
    (HERMES, "<tool_call>{oops</tool_call> x", ["<tool_call>{oops</tool_call> x"]),
    (HERMES, '<tool_call>{"name":NaN}</tool_call>', ['<tool_call>{"name":NaN}</tool_call>']),
    (HERMES, 'a<tool_call>{</tool_call><tool_call>{"name":"g"}</tool_call>', ["a<tool_call>{</tool_call>", ("g", {})]),
    (HERMES, "<tool_call>" + 2000 * "[" + "</tool_call>", ["<tool_call>" + 2000 * "[" + "</tool_call>"]),
    (MISTRAL, '[TOOL_CALLS][{"name":"f"}, {"name":"g","arguments":{"q":[1]}}]', [("f", {}), ("g", {"q": [1]})]),
    (MISTRAL, "x [TOOL_CALLS] nothing", ["x [TOOL_CALLS] nothing"]),
    (LLAMA, '{"name":"f","parameters":{"a":";"}}; {"name":"g"}', [("f", {"a": ";"}), ("g", {})]),
    (LLAMA, '<|python_tag|>{"name":"f","parameters":{}}', [("f", {})]),
    (LLAMA, ' {"a": 1}', [' {"a": 1}']),
    (LLAMA, 'text {"name":"f"}', ['text {"name":"f"}']),
]  # fmt: skip


def parsed(format: ToolFormat, pieces: Sequence[str]) -> list[Any]:
    """Texts, joined where they follow one another, and calls as (name, arguments)."""
    parser = ToolParser(format, ["f", "g"])
    found = [one for piece in pieces for one in parser.push(piece)] + list(parser.finish())
    joined: list[Any] = []
    for one in found:
        if isinstance(one, Call):
            joined.append((one.name, json.loads(one.arguments)))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += one
        else:
            joined.append(one)
    return joined


@pytest.mark.parametrize(("format", "text", "wanted"), CASES, ids=range(len(CASES)))
def test_however_a_text_is_cut(rng: Any, format: ToolFormat, text: str, wanted: list[Any]) -> None:
    assert parsed(format, [text]) == wanted
    assert parsed(format, list(text)) == wanted
    for _ in range(20):
        cuts = sorted(rng.integers(0, len(text) + 1, 4).tolist())
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert parsed(format, pieces) == wanted


def test_what_is_surely_text_is_not_held_back() -> None:
    parser = ToolParser(HERMES, ["f"])
    assert list(parser.push("one ")) == ["one"]
    assert list(parser.push("two")) == [" two"]
    assert list(parser.push("<tool")) == []
    assert list(parser.push("box")) == ["<toolbox"]


def test_every_call_has_a_name_of_its_own() -> None:
    parser = ToolParser(HERMES, ["f"])
    calls = [one for one in parser.push(2 * '<tool_call>{"name":"f"}</tool_call>') if isinstance(one, Call)]
    assert len({call.id for call in calls}) == len(calls) == 2 and parser.calls == 2


def test_a_template_shows_its_format() -> None:
    assert format_of(None) is UNTAUGHT
    assert format_of("{{ messages }}") is UNTAUGHT
    assert format_of("{% if tools %}<tool_call>{% endif %}") is HERMES
    assert format_of("{% if tools %}[TOOL_CALLS]{% endif %}") is MISTRAL
    assert format_of("{% if tools %}<|python_tag|>{% endif %}") is LLAMA


@pytest.mark.parametrize("format", [HERMES, MISTRAL, LLAMA, UNTAUGHT], ids=lambda format: format.name)
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_grammars_that_force_a_call_allow_calls(checkpoint: Any, format: ToolFormat, several: bool) -> None:
    from poot_llm.guided.compiler import GuideCompiler
    from poot_llm.registry import Models

    handle = Models().open(checkpoint)
    functions = [
        FunctionDefinition(name="f", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}),
        FunctionDefinition(name="g"),
    ]
    call = json.dumps({"name": "f", format.arguments: {"a": 1}})
    text = {
        "hermes": f"<tool_call>\n{call}\n</tool_call>",
        "untaught": f"<tool_call>\n{call}\n</tool_call>",
        "mistral": f"[TOOL_CALLS][{call}]" if not several else f"[TOOL_CALLS][{call}, {call}]",
        "llama": call if not several else f"{call}; {call}",
    }[format.name]
    with GuideCompiler(handle.tokenizer, handle.config.vocabulary) as compiler:
        for structure in (
            forcing(format, functions, several=several),
            forcing_or(format, functions, '{"type":"object"}'),
            allowing(format, functions, several=several),
        ):
            guide = compiler.compile(structure)
            for token in handle.tokenizer.encode(text, add_special=False, parse_special=False):
                guide.accept(token)
            assert guide.complete
    (*_, last) = parsed(format, [text])
    assert last == ("f", {"a": 1})


@pytest.mark.parametrize("format", [HERMES, MISTRAL, LLAMA], ids=lambda format: format.name)
def test_where_a_model_may_choose_a_strict_call_is_by_its_schema(checkpoint: Any, format: ToolFormat) -> None:
    from poot_llm.guided.compiler import GuideCompiler
    from poot_llm.registry import Models

    handle = Models().open(checkpoint)
    functions = [FunctionDefinition(name="f", parameters={"type": "object", "required": ["a"],
                                                          "properties": {"a": {"enum": [1]}}})]  # fmt: skip

    def taken(text: str) -> bool:
        """Whether an answer may be this text."""
        guide = compiler.compile(allowing(format, functions, several=True))
        for token in handle.tokenizer.encode(text, add_special=False, parse_special=False):
            if not guide.allows(token):
                return False
            guide.accept(token)
        return guide.complete

    between = {"hermes": "<tool_call>\n{}\n</tool_call>", "mistral": "[TOOL_CALLS][{}]", "llama": "<|python_tag|>{}"}
    good = json.dumps({"name": "f", format.arguments: {"a": 1}})
    with GuideCompiler(handle.tokenizer, handle.config.vocabulary) as compiler:
        assert taken("plain [text] < of | any > kind\n") and taken("")
        call = between[format.name].replace("{}", good)
        assert taken(call) and taken(f"let me see: {call}")
        for wrong in (good.replace("1", "2"), good.replace('"f"', '"g"'), "{}"):
            assert not taken(between[format.name].replace("{}", wrong))

"""Guided decoding: what a constraint allows is chosen and nothing else; hostile ones are answered in time."""

from __future__ import annotations

import importlib.util
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from poot_executor.errors import RequestError, SettingsError
from poot_llm.guided.compiler import GuideCompiler
from poot_llm.guided.guide import Guide, GuideFailed
from poot_llm.guided.limits import GuideLimits
from poot_llm.guided.spec import MOST_BYTES, StructuredOutputs
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplerRow, SamplerShape, SamplerSlots, SamplingParams, Suffix, slot_types
from poot_llm.sampling.keys import MASK

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)

BOUND_S = 60.0
"""How long a hostile constraint may take on a slow machine; the ones below take milliseconds."""


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def compiler(handle: ModelHandle) -> Iterator[GuideCompiler]:
    with GuideCompiler(handle.tokenizer, handle.config.vocabulary) as made:
        yield made


def legal(guide: Guide) -> list[int]:
    return np.flatnonzero(np.unpackbits(guide.mask().view(np.uint8), bitorder="little")).tolist()


def spell(guide: Guide, handle: ModelHandle, text: str) -> bool:
    """Whether the guide allows a text, token by token, and the answer to end there."""
    for token in handle.tokenizer.encode(text, add_special=False, parse_special=False):
        if guide.finished or not guide.allows(token):
            return False
        guide.accept(token)
    return guide.complete


def wander(guide: Guide, handle: ModelHandle, rng: np.random.Generator, most: int = 400) -> str | None:
    """A random legal answer, or None where it is not over after `most` tokens. Every mask has a legal token."""
    ends, tokens = handle.tokenizer.eos_ids, []
    while not guide.finished and len(tokens) < most:
        ids = legal(guide)
        assert ids and all(id < handle.config.vocabulary for id in ids)
        assert not (set(ids) & handle.tokenizer.control_ids) - ends
        over = [id for id in ids if id in ends]
        assert bool(over) == guide.complete
        token = over[0] if over and rng.random() < 0.3 else int(rng.choice(ids))
        guide.accept(token)
        tokens.append(token)
    return handle.tokenizer.decode(tokens) if guide.finished else None


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Zürich", "東京", "São Paulo", 'quote " and \\ slash']},
        "size": {"type": "integer", "minimum": -3, "maximum": 12},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        "open": {"type": ["boolean", "null"]},
    },
    "required": ["city", "size"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (StructuredOutputs(regex=r"[a-f]{2,4}\d?"), ["ab", "abcd7"], ["a", "abcde", "ab77", "xy"]),
        (StructuredOutputs(regex="é+|日本"), ["é", "éé", "日本"], ["e", "日", "日本é"]),
        (
            StructuredOutputs(choice=("yes", "no", "naïve", "中文\n")),
            ["yes", "naïve", "中文\n"],
            ["ye", "yesno", "中文"],
        ),
        (StructuredOutputs(json=SCHEMA), ['{"city": "東京", "size": 12}'], ['{"city": "東京"}', '{"size": 1}', "[]"]),
        (StructuredOutputs(json=json.dumps(SCHEMA)), ['{"city":"Zürich","size":-3}'], ['{"city":"Zürich","size":13}']),
        (StructuredOutputs(json={}), ["[]", "3.5", '{"é": [null]}'], ["", "[", "nul"]),
        (StructuredOutputs(json=True), ["true", '"中"'], ["True"]),
        (
            StructuredOutputs(json={"properties": {"é": {"const": "naïve"}, "東": {"enum": ["京", "é"]}}}),
            ['{"é": "naïve", "東": "京"}', '{"東":"é"}', '{"\\u00e9": 3}'],
            ['{"é": "naive"}', '{"東": "北"}'],
        ),
        (StructuredOutputs(json_object=True), ["{}", '{"a": {"b": [1, 2]}}'], ["[]", "1", '{"a"}']),
        (
            StructuredOutputs(grammar='root ::= item ("," item)* # list\nitem ::= [0-9]+ | "(" root ")"'),
            ["1", "1,(22,3)"],
            ["1,", "(1", ""],
        ),
        (
            StructuredOutputs(grammar=r'root ::= "\u00e9\x41" [\u4e00-\u9fff]{2} [^\n"\u005d]'),
            ["éA中文x"],
            ["éA中文]", "eA中文x"],
        ),
        (StructuredOutputs(lark='start: "(" start ")" | WORD\nWORD: /[a-zé]+/'), ["((né))", "a"], ["(a", "()"]),
    ],
    ids=lambda value: value.kind if isinstance(value, StructuredOutputs) else None,
)
def test_what_is_allowed(
    compiler: GuideCompiler, handle: ModelHandle, spec: StructuredOutputs, good: list[str], bad: list[str]
) -> None:
    for text in good:
        assert spell(compiler.compile(spec), handle, text), text
    for text in bad:
        assert not spell(compiler.compile(spec), handle, text), text


def test_json_always_parses_and_fits(compiler: GuideCompiler, handle: ModelHandle, rng: np.random.Generator) -> None:
    ended = 0
    for _ in range(40):
        text = wander(compiler.compile(StructuredOutputs(json=SCHEMA)), handle, rng)
        if text is None:
            continue
        ended += 1
        value = json.loads(text)
        assert value["city"] in SCHEMA["properties"]["city"]["enum"]
        assert type(value["size"]) is int and -3 <= value["size"] <= 12
        assert set(value) <= set(SCHEMA["properties"])
        assert all(len(tag) <= 4 for tag in value.get("tags", [])) and len(value.get("tags", [])) <= 3
    assert ended >= 20


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        (StructuredOutputs(json_object=True), lambda text: isinstance(json.loads(text), dict)),
        (StructuredOutputs(json=True), lambda text: json.loads(text) is not ...),
        (StructuredOutputs(regex=r"([0-9]{1,3}\.){3}[0-9]{1,3}"), re.compile(r"([0-9]{1,3}\.){3}[0-9]{1,3}").fullmatch),
        (StructuredOutputs(choice=("a", "ab", "abc")), ("a", "ab", "abc").__contains__),
    ],
    ids=lambda value: value.kind if isinstance(value, StructuredOutputs) else None,
)
def test_whatever_is_chosen_fits(
    compiler: GuideCompiler,
    handle: ModelHandle,
    rng: np.random.Generator,
    spec: StructuredOutputs,
    fits: Callable[[str], object],
) -> None:
    texts = [wander(compiler.compile(spec), handle, rng) for _ in range(15)]
    over = [text for text in texts if text is not None]
    assert over and all(fits(text) for text in over), over


def test_a_complete_language_leaves_its_end_alone(compiler: GuideCompiler, handle: ModelHandle) -> None:
    guide = compiler.compile(StructuredOutputs(regex="ab?"))
    guide.accept(*handle.tokenizer.encode("a", add_special=False, parse_special=False))
    assert guide.complete and not guide.finished
    (b,) = handle.tokenizer.encode("b", add_special=False, parse_special=False)
    assert set(legal(guide)) == {b, *handle.tokenizer.eos_ids}
    guide.accept(b)
    assert guide.complete and set(legal(guide)) == set(handle.tokenizer.eos_ids)
    guide.accept(min(handle.tokenizer.eos_ids))
    assert guide.finished


def test_a_token_that_is_not_legal_fails(compiler: GuideCompiler, handle: ModelHandle) -> None:
    guide = compiler.compile(StructuredOutputs(choice=("yes",)))
    (token,) = handle.tokenizer.encode("z", add_special=False, parse_special=False)
    assert not guide.allows(token) and not guide.allows(-1) and not guide.allows(10**6)
    with pytest.raises(GuideFailed, match="does not fit"):
        guide.accept(token)


def test_answers_of_one_constraint_go_their_own_ways(compiler: GuideCompiler, handle: ModelHandle) -> None:
    spec = StructuredOutputs(choice=("ax", "by"))
    a, b = (handle.tokenizer.encode(text, add_special=False, parse_special=False)[0] for text in "ab")
    first = compiler.compile(spec)
    second = first.copy()
    first.accept(a)
    third = first.copy()
    second.accept(b)
    assert third.mask().tolist() == first.mask().tolist() != second.mask().tolist()
    assert legal(compiler.compile(spec)) == sorted([a, b])


# Hostile and refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json": '{"items":' * 10_000 + "{}" + "}" * 10_000}, "nested more than 64 levels|10000 levels|65 levels"),
        ({"json": {"enum": ["x" * 20 + str(i) for i in range(30_000)]}}, None),
        ({"json": {"enum": ["x" * 40 + str(i) for i in range(20_000)]}}, None),
        ({"json": False}, "allows no answer: the schema is false"),
        ({"json": {"$ref": "#"}}, "allows no answer"),
        ({"json": {"allOf": [{"$ref": "#"}, {"type": "object"}]}}, "circular"),
        ({"json": {"type": "object", "properties": {"next": {"$ref": "#"}}}}, None),
        ({"json": {"$ref": "https://example.invalid/schema"}}, "json cannot be compiled"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"x-guidance": {}}}, "x-guidance"),
        ({"json": "[1]"}, "an object or a boolean"),
        ({"json": "{"}, "is no JSON"),
        ({"json": {"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}}, None),
        ({"json": {"type": "string", "minLength": 1_000_000}}, None),
        ({"regex": "(a{1,1000}){1,1000}"}, None),
        ({"regex": "((a{1,1000}){1,1000}){1,1000}"}, None),
        ({"regex": "(.*a.{60}b|.*c.{60}d){1,50}"}, None),
        ({"regex": "(" * 10_000 + "a" + ")" * 10_000}, "regex cannot be compiled"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"[^\s\S]"}, "allows no answer"),
        ({"regex": "a("}, "regex cannot be compiled"),
        ({"lark": "start: " + "(" * 10_000 + '"a"' + ")" * 10_000}, "nested"),
        ({"lark": "start: start"}, "allows no answer"),
        ({"lark": 'start: start start | "a"'}, None),
        ({"lark": "begin: /a/"}, "lark cannot be compiled"),
        ({"grammar": "root ::= " + "(" * 10_000 + '"a"' + ")" * 10_000}, "nested too deeply"),
        ({"grammar": 'rule ::= "a"'}, "root"),
        ({"grammar": r'root ::= "\ud800"'}, "is no character"),
        ({"grammar": "root ::= #" + "x" * (1 << 17)}, "at most 131,072"),
    ],
)
def test_every_constraint_is_answered_in_time(
    compiler: GuideCompiler,
    handle: ModelHandle,
    rng: np.random.Generator,
    fields: dict[str, Any],
    message: str | None,
) -> None:
    """It compiles and its first steps give masks, or it is refused by name."""
    started = time.perf_counter()
    spec = StructuredOutputs(**fields)
    if message is None:
        wander(compiler.compile(spec), handle, rng, most=30)
    else:
        with pytest.raises(RequestError, match=rf"structured_outputs.*({message})"):
            compiler.compile(spec)
    assert time.perf_counter() - started < BOUND_S


LARGE = 10 << 20


@pytest.mark.parametrize(
    "fields",
    [
        {"json": '{"description": "' + "x" * LARGE + '"}'},
        {"json": '{"properties": {' + ",".join(f'"p{i}": {{}}' for i in range(LARGE // 16)) + "}}"},
        {"json": {"properties": {f"p{i}": {"type": "string"} for i in range(LARGE // 32)}}},
        {"json": {"enum": [["x"]] * (LARGE // 8)}},
        {"json": {"enum": ["é東" * (LARGE // 5)]}},
        {"regex": "(a|b)" * (LARGE // 5)},
        {"lark": 'start: "a"\n' + "# é\n" * (LARGE // 5)},
        {"grammar": 'root ::= "a"\n' + "# é\n" * (LARGE // 5)},
        {"choice": [f"{i}" + "x" * 2600 for i in range(4096)]},
        {"choice": [f"{i}" for i in range(1 << 20)]},
    ],
    ids=[
        "text",
        "properties",
        "map",
        "lists",
        "characters",
        "regex",
        "lark",
        "grammar",
        "long choices",
        "many choices",
    ],
)
def test_ten_megabytes_are_answered_in_time(fields: dict[str, Any]) -> None:
    started = time.perf_counter()
    with pytest.raises(
        RequestError, match=r"structured_outputs\.\w+ has [\d,]+ (bytes( or more)?, at most|texts: 1 to)"
    ):
        StructuredOutputs(**fields)
    assert time.perf_counter() - started < BOUND_S


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "given are none"),
        ({"regex": "a", "choice": ("a",)}, "given are regex, choice"),
        ({"json": False, "json_object": True}, "given are json_object, json"),
        ({"regex": ""}, r"structured_outputs.regex is ''"),
        ({"lark": 3}, "structured_outputs.lark is 3"),
        ({"json": 3}, "structured_outputs.json"),
        ({"json": {"a": float("nan")}}, "structured_outputs.json is no JSON"),
        ({"json": {"a": object()}}, "structured_outputs.json is no JSON"),
        ({"choice": "yes"}, "structured_outputs.choice is 'yes'"),
        ({"choice": ()}, "structured_outputs.choice has 0"),
        ({"choice": ("a", "")}, r"structured_outputs.choice\[1\]"),
        ({"json_object": 1}, "structured_outputs.json_object"),
        ({"json": {"enum": ["x" * (10 << 20)]}}, f"at most {MOST_BYTES:,}"),
        ({"regex": "a" * (MOST_BYTES + 1)}, f"at most {MOST_BYTES:,}"),
        ({"regex": "\ud800"}, "no Unicode text"),
    ],
)
def test_a_constraint_that_is_none_is_refused_at_once(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        StructuredOutputs(**fields)


def test_kinds_by_name() -> None:
    assert StructuredOutputs.of({"regex": "a"}) == StructuredOutputs(regex="a")
    assert SamplingParams.of({"structured_outputs": {"choice": ["a"]}}).structured_outputs == StructuredOutputs(
        choice=("a",)
    )
    with pytest.raises(RequestError, match=r"structured_outputs\.xml is no kind of constraint"):
        StructuredOutputs.of({"xml": "<a/>"})
    nested: Any = {}
    for _ in range(10_000):
        nested = {"items": nested}
    with pytest.raises(RequestError, match=r"structured_outputs\.json"):
        StructuredOutputs(json=nested)


@contextmanager
def busy(compiler: GuideCompiler) -> Iterator[None]:
    """The only thread that compiles is held up: what is asked for meanwhile waits."""
    release = Event()
    compiler._compiling.submit(release.wait)
    try:
        yield
    finally:
        release.set()


def test_limits_are_kept(handle: ModelHandle) -> None:
    tokenizer, vocabulary = handle.tokenizer, handle.config.vocabulary
    enum = StructuredOutputs(json={"enum": [f"{i:x}" * 9 for i in range(9000)]})
    with GuideCompiler(tokenizer, vocabulary, GuideLimits(build_fuel=1000)) as small:
        with pytest.raises(RequestError, match=r"json cannot be compiled: .*too big"):
            small.compile(enum)
        assert small.compile(StructuredOutputs(regex="a")).mask().any(), "others go on"
    for limits, spec, message in (
        (
            GuideLimits(states=10),
            StructuredOutputs(regex="(.{1,1000}){1,1000}"),
            "beyond the limits .* too many states",
        ),
        (
            GuideLimits(grammar_symbols=3),
            StructuredOutputs(json_object=True),
            "json_object cannot be compiled: grammar",
        ),
    ):
        with GuideCompiler(tokenizer, vocabulary, limits) as narrow, pytest.raises(RequestError, match=message):
            narrow.compile(spec)
    with GuideCompiler(tokenizer, vocabulary, GuideLimits(seconds=1e-6, workers=1)) as hasty:
        with busy(hasty), pytest.raises(RequestError, match="json was not compiled within 1e-06 s"):
            hasty.compile(enum)
        assert hasty.submit(enum).result(BOUND_S).copy().mask().any(), "it goes on, and is there afterwards"
    with GuideCompiler(tokenizer, vocabulary, GuideLimits(pending=1, workers=1)) as narrow:
        with busy(narrow):
            first = narrow.submit(enum)
            with pytest.raises(RequestError, match="1 constraints wait"):
                narrow.submit(StructuredOutputs(regex="b"))
            assert narrow.submit(enum) is first, "an equal one is not compiled twice"
        first.result(BOUND_S)
    with GuideCompiler(tokenizer, vocabulary, GuideLimits(kept=1)) as forgetful:
        one = forgetful.submit(StructuredOutputs(regex="a"))
        forgetful.submit(StructuredOutputs(regex="b")).result(BOUND_S)
        assert forgetful.submit(StructuredOutputs(regex="a")) is not one
    with pytest.raises(SettingsError, match="guide limit depth"):
        GuideLimits(depth=0)


def test_a_step_beyond_its_limits_fails_the_answer(handle: ModelHandle) -> None:
    """A mask that costs too much is a typed error of that answer, not a mask that allows too much or nothing."""
    limits = GuideLimits(step_items=40)
    with GuideCompiler(handle.tokenizer, handle.config.vocabulary, limits) as compiler:
        guide = compiler.compile(StructuredOutputs(lark='start: start start | start start start | "a"'))
        (a,) = handle.tokenizer.encode("a", add_special=False, parse_special=False)

        def go_on() -> None:
            for _ in range(60):
                assert guide.allows(a)
                guide.accept(a)

        with pytest.raises(GuideFailed, match="structured_outputs"):
            go_on()


# In a step


def test_a_guide_fills_the_slot_of_its_row(compiler: GuideCompiler, handle: ModelHandle) -> None:
    vocabulary = handle.config.vocabulary
    spec = StructuredOutputs(choice=("yes", "no"))
    params = SamplingParams(structured_outputs=spec)
    assert params.suffix is Suffix.FULL
    guide = compiler.compile(spec)
    shape = SamplerShape(2, vocabulary, 4)
    slots = SamplerSlots(Suffix.FULL, shape).fill({1: SamplerRow(0, params, mask=guide.mask())})
    assert slots[MASK].shape == slot_types(Suffix.FULL, shape)[MASK].shape
    assert slots[MASK][1].tolist() == guide.mask().tolist() and (slots[MASK][0] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_of_a_model_are_what_was_asked_for(
    compiler: GuideCompiler, handle: ModelHandle, temperature: float
) -> None:
    """A model of random weights, which would say anything, through the driver's steps."""
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "name": {"enum": ["né", "東", "plain"]}},
        "required": ["ok", "name"],
        "additionalProperties": False,
    }
    specs = [
        StructuredOutputs(json=schema),
        StructuredOutputs(regex="[a-f]{3}-[0-9]{2}"),
        StructuredOutputs(choice=("é",)),
    ]
    with fixture.driving(handle, capacity=128) as rig:
        for seed, spec in enumerate(specs):
            params = SamplingParams(temperature=temperature, seed=seed, structured_outputs=spec)
            stream = rig.driver.generate([104, 277, 102], params, guide=compiler.compile(spec))
            tokens = [given.token for given in stream]
            text = handle.tokenizer.decode(tokens)
            if spec.json is not None:
                value = json.loads(text)
                assert type(value["ok"]) is bool and value["name"] in ("né", "東", "plain")
            elif spec.regex is not None:
                assert re.fullmatch(spec.regex, text)
            else:
                assert text == "é"
            assert tokens[-1] in handle.tokenizer.eos_ids

"""What is refused: by its field, in OpenAI's shape, before the 200, whatever the route."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.device("vpu")

USER = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def error(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refusal, in its shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    value = response.json()["error"]
    assert set(value) == {"message", "type", "param", "code"}
    assert value["message"]
    return value


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"mesages": USER}, "mesages", "unknown_parameter"),
        ({}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_value"),
        ({"messages": [*USER, {"role": "user"}]}, "messages[1].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood", "unknown_parameter"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]", "unsupported_capability"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content", "missing_required_parameter"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
                           "function": {"name": "f", "arguments": "{"}}]}]},
            "messages[0].tool_calls[0].function.arguments", "invalid_value",
        ),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"n": 129}, "n", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"stop": 10_000 * ["x"]}, "stop", "invalid_value"),
        ({"stop": [""]}, "stop[0]", "invalid_value"),
        ({"logit_bias": {"a": 1}}, "logit_bias", None),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "invalid_value"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", None),
        ({"stop_token_ids": [99999]}, "stop_token_ids", None),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
        ({"functions": []}, "functions", "unsupported_parameter"),
        ({"store": True}, "store", "invalid_value"),
        ({"tools": [TOOL, TOOL]}, "tools", "invalid_value"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "sometimes", "tools": [TOOL]}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", None),
        ({"tools": [TOOL], "guided_regex": "a"}, "tools", None),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", None),
        ({"structured_outputs": {"rhyme": True}}, "structured_outputs.rhyme", "unknown_parameter"),
        ({"guided_choice": []}, "structured_outputs.choice", None),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", None),
        ({"model": "another"}, "model", "model_not_found"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_field_is_refused_by_its_name(
    client: httpx.Client, body: dict[str, Any], param: str, code: str | None, stream: bool
) -> None:
    whole = body if "messages" in body or "mesages" in body or not body else {"messages": USER} | body
    if stream and "stream" not in whole and "stream_options" not in whole:
        whole = whole | {"stream": True}
    status = 404 if code == "model_not_found" else 400
    refusal = error(client.post(CHAT, json=whole), status)
    assert refusal["param"] == param and param in refusal["message"]
    if code is not None:
        assert refusal["code"] == code
    assert refusal["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "constraint",
    [
        {"guided_regex": "("},
        {"guided_regex": "(?=a)b"},
        {"guided_json": {"type": "nothing"}},
        {"guided_json": "{"},
        {"guided_json": False},
        {"guided_json": {"$ref": "https://example.com/schema"}},
        {"guided_grammar": "root ::= missing"},
        {"guided_grammar": ""},
        {"structured_outputs": {"lark": "start: %%"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}}},
    ],
    ids=lambda constraint: json.dumps(constraint)[:40],
)
def test_a_constraint_that_cannot_compile_fails_its_request_alone(
    client: httpx.Client, constraint: dict[str, Any]
) -> None:
    for stream in (False, True):
        refusal = error(client.post(CHAT, json={"messages": USER, "stream": stream} | constraint), 400)
        assert refusal["param"].startswith(("structured_outputs", next(iter(constraint))))
    assert client.post(CHAT, json={"messages": USER, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'{"messages": NaN}', 400),
        (b'{"messages": "\xff\xfe"}', 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"messages":' + 5000 * b"[" + 5000 * b"]" + b"}", 400),
        (b'{"messages": [{"role": "user", "content": "x"}], "guided_json":' + 150 * b'{"a":' + b"1" + 151 * b"}", 400),
        (b'{"x": "' + 300_000 * b"y" + b'"}', 413),
    ],
    ids=["empty", "cut", "list", "null", "nan", "utf-8", "surrogate", "deep", "deep schema", "large"],
)
def test_what_is_no_body_is_refused(client: httpx.Client, data: bytes, status: int) -> None:
    for path in (CHAT, "/v1/completions", "/v1/responses", "/tokenize"):
        error(client.post(path, content=data, headers={"content-type": "application/json"}), status)


def test_a_body_without_a_length_is_bounded_too(client: httpx.Client) -> None:
    def parts() -> Any:
        for _ in range(40):
            yield 10_000 * b" "

    error(client.post(CHAT, content=parts(), headers={"content-type": "application/json"}), 413)


def test_a_body_is_json_by_its_type(client: httpx.Client) -> None:
    """What a page of another origin may send without asking is refused."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        refusal = error(client.post(CHAT, content=b"{}", headers={"content-type": kind}), 415)
        assert refusal["code"] == "not_json"
    error(client.post(CHAT, content=b"{}"), 415)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": 4200 * "x "}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": 100_000 * "x"}]}, "messages"),
        ("/v1/completions", {"prompt": 4200 * [5]}, "prompt"),
        ("/v1/completions", {"prompt": ["short", 100_000 * "x"]}, "prompt[1]"),
        ("/v1/responses", {"input": 4200 * "x "}, "input"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_prompt_beyond_the_context_has_both_numbers(
    client: httpx.Client, path: str, body: dict[str, Any], param: str, stream: bool
) -> None:
    refusal = error(client.post(path, json=body | {"stream": stream}), 400)
    assert refusal["code"] == "context_length_exceeded"
    assert refusal["param"] == param
    numbers = [int(word) for word in refusal["message"].split() if word.isdigit()]
    assert numbers[-1] == 4096 and numbers[0] >= 4096


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "echo": True, "logprobs": 1}, "logprobs"),
        ({"prompt": "x", "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, None),
        ({"prompt": [1, "x"]}, "prompt[0]"),
        ({"prompt": [99999]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": ""}, None),
    ],
)
def test_completions_refuse_by_name(client: httpx.Client, body: dict[str, Any], param: str | None) -> None:
    refusal = error(client.post("/v1/completions", json=body), 400)
    if param is not None:
        assert refusal["param"] == param


def test_paths_and_methods_that_there_are_not(client: httpx.Client) -> None:
    assert error(client.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error(client.post("/v1/completionsX", json={}), 404)["code"] == "not_found"
    response = client.delete(CHAT)
    assert error(response, 405)["code"] == "method_not_allowed" and "POST" in response.headers["allow"]
    assert error(client.get("/v1/models/another"), 404)["code"] == "model_not_found"


def test_an_encoders_routes_say_what_the_model_is(client: httpx.Client) -> None:
    for path, body in (("/v1/embeddings", {"input": "x"}), ("/v1/rerank", {"query": "x", "documents": ["y"]})):
        assert error(client.post(path, json=body), 400)["code"] == "unsupported_capability"


def test_openai_raises_what_it_should(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        api.chat.completions.create(model="tiny", messages=[{"role": "user", "content": 4200 * "x "}])
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("another")


def test_every_answer_has_a_name(client: httpx.Client) -> None:
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    made = client.post(CHAT, json={}).headers["x-request-id"]
    assert made.startswith("req-")
    assert client.get("/health", headers={"x-request-id": 200 * "x"}).headers["x-request-id"] != 200 * "x"

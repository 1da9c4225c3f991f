"""POST /v1/chat/completions over real sockets: whole and streamed, parameters, tools, structures."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.device("vpu")

USER = [{"role": "user", "content": "the quick brown fox"}]
GREEDY = {"messages": USER, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}


def events_of(text: str) -> list[Any]:
    """The data of a stream's events."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def joined(events: list[Any], place: int = 0) -> str:
    """The text of one answer of a stream."""
    choices = [choice for event in events[:-1] for choice in event["choices"] if choice["index"] == place]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def chat(client: httpx.Client, **body: Any) -> Any:
    """A whole answer."""
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_whole_answer_has_every_part(client: httpx.Client) -> None:
    answer = chat(client, **GREEDY, model="tiny")
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion" and answer["model"] == "tiny" and answer["id"].startswith("chatcmpl-")
    assert choice["message"]["role"] == "assistant" and choice["message"]["content"]
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    usage = answer["usage"]
    assert usage["completion_tokens"] == 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + 12


def test_a_stream_is_the_whole_answer(client: httpx.Client) -> None:
    whole = chat(client, **GREEDY)
    response = client.post(
        "/v1/chat/completions", json=GREEDY | {"stream": True, "stream_options": {"include_usage": True}}
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.text)
    assert events[-1] == "[DONE]"
    assert joined(events) == whole["choices"][0]["message"]["content"]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-2]["choices"] == [] and events[-2]["usage"] == whole["usage"]
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-2]]
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}
    texts = [event["choices"][0]["delta"].get("content") for event in events[1:-3]]
    assert all(texts), "no delta is empty"
    assert len({event["id"] for event in events[:-1]}) == 1


def test_usage_is_in_a_stream_only_on_request(client: httpx.Client) -> None:
    events = events_of(client.post("/v1/chat/completions", json=GREEDY | {"stream": True}).text)
    assert all("usage" not in event for event in events[:-1])


def test_a_seed_repeats_an_answer(client: httpx.Client) -> None:
    body = GREEDY | {"temperature": 1.5, "seed": 7, "n": 2}
    first, second = chat(client, **body), chat(client, **body)
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts == [choice["message"]["content"] for choice in second["choices"]]
    assert texts[0] != texts[1], "the answers of one request are drawn apart"
    assert [choice["index"] for choice in first["choices"]] == [0, 1]
    assert chat(client, **body | {"seed": -9223372036854775808, "n": 1})["choices"]
    assert first["usage"]["completion_tokens"] == 24


def test_several_answers_stream_beside_one_another(client: httpx.Client) -> None:
    body = GREEDY | {"temperature": 1.5, "seed": 7, "n": 2}
    whole = chat(client, **body)
    events = events_of(client.post("/v1/chat/completions", json=body | {"stream": True}).text)
    for place in (0, 1):
        assert joined(events, place) == whole["choices"][place]["message"]["content"]
    assert sum(event["choices"][0]["finish_reason"] == "length" for event in events[:-1]) == 2


def test_stop_strings_never_show(client: httpx.Client) -> None:
    text = chat(client, **GREEDY)["choices"][0]["message"]["content"]
    stop = text[4:7]
    (choice,) = chat(client, **GREEDY, stop=[stop, "never said"])["choices"]
    assert choice["message"]["content"] == text[: text.index(stop)] and choice["finish_reason"] == "stop"
    events = events_of(client.post("/v1/chat/completions", json=GREEDY | {"stop": stop, "stream": True}).text)
    assert joined(events) == choice["message"]["content"]


def test_logprobs_are_of_the_tokens_that_were_chosen(client: httpx.Client) -> None:
    body = GREEDY | {"logprobs": True, "top_logprobs": 3}
    (choice,) = chat(client, **body)["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 12
    assert b"".join(bytes(one["bytes"]) for one in content).decode(errors="replace") == choice["message"]["content"]
    for one in content:
        assert len(one["top_logprobs"]) == 3
        assert one["logprob"] == one["top_logprobs"][0]["logprob"] <= 0
    events = events_of(client.post("/v1/chat/completions", json=body | {"stream": True}).text)
    streamed = [one for event in events[:-1] for one in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == content


def test_bias_decides(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"prompt": "z"}).json()["tokens"]
    (choice,) = chat(client, **GREEDY, logit_bias={str(ids[0]): 100})["choices"]
    assert choice["message"]["content"] == 12 * "z"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_is_one(api: openai.OpenAI, choice: Any) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": USER, "tools": [TOOL], "tool_choice": choice, "seed": 3}
    answer = api.chat.completions.create(**body)
    (call,) = answer.choices[0].message.tool_calls or []
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and set(arguments) == {"city", "days"} and arguments["days"] in (1, 2, 3)
    assert answer.choices[0].finish_reason == "tool_calls" and answer.choices[0].message.content is None
    parts = [chunk.choices[0].delta.tool_calls for chunk in api.chat.completions.create(**body, stream=True)]
    calls = [part for some in parts for part in some or ()]
    assert "".join(part.function.arguments for part in calls if part.function) == call.function.arguments
    assert [part.id for part in calls if part.id] and {part.index for part in calls} == {0}


def test_a_strict_function_may_be_called(api: openai.OpenAI) -> None:
    """Where the model may choose, what it calls follows the schema; what it says else is text."""
    tool: Any = TOOL | {"function": TOOL["function"] | {"strict": True}}
    for choice in ("auto", None):
        answer = api.chat.completions.create(
            model="tiny", messages=USER, tools=[tool], max_tokens=8, **({"tool_choice": choice} if choice else {})
        )  # type: ignore[call-overload]
        message = answer.choices[0].message
        assert message.content is not None or message.tool_calls


def test_a_call_and_its_result_go_back(api: openai.OpenAI) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    answer = api.chat.completions.create(
        model="tiny", max_tokens=4, tools=[TOOL], tool_choice="none",
        messages=[*USER, {"role": "assistant", "tool_calls": [call]},
                  {"role": "tool", "tool_call_id": "call_1", "content": "sun"}],
    )  # fmt: skip
    assert answer.choices[0].message.tool_calls is None


def test_json_is_by_its_schema(api: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}},
        "required": ["ok", "n"],
        "additionalProperties": False,
    }
    answer = api.chat.completions.create(
        model="tiny", messages=USER, seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    )  # fmt: skip
    assert set(json.loads(answer.choices[0].message.content or "")) == {"ok", "n"}


@pytest.mark.parametrize(
    "constraint",
    [
        {"guided_choice": ["yes", "no"]},
        {"guided_regex": "yes|no"},
        {"guided_grammar": 'root ::= "yes" | "no"'},
        {"guided_json": {"enum": ["yes", "no"]}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"lark": 'start: "yes" | "no"'}},
    ],
    ids=lambda constraint: next(iter(constraint)),
)
def test_answers_are_what_was_asked_for(client: httpx.Client, constraint: dict[str, Any]) -> None:
    (choice,) = chat(client, messages=USER, seed=1, **constraint)["choices"]
    assert choice["message"]["content"].strip('"') in ("yes", "no")
    assert choice["finish_reason"] == "stop"


def test_the_template_gets_variables(client: httpx.Client) -> None:
    assert chat(client, **GREEDY, chat_template_kwargs={"enable_thinking": False})["choices"]

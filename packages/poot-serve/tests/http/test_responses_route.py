"""POST /v1/responses, as OpenAI's own client reads it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.device("vpu")

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"days": {"enum": [1, 2, 3]}},
        "required": ["days"],
        "additionalProperties": False,
    },
    "strict": True,
}


def test_a_stream_builds_the_response(api: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "tiny", "input": "the quick", "max_output_tokens": 8, "temperature": 0}
    whole = api.responses.create(**body)
    assert whole.object == "response" and whole.usage is not None
    events = list(api.responses.create(**body, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == ("response.incomplete" if whole.status == "incomplete" else "response.completed")
    assert last.response.output_text == whole.output_text
    # What the second answer finds of the prompt is another matter.
    counts = [answer.usage.model_dump(exclude={"input_tokens_details"}) for answer in (last.response, whole)]
    assert counts[0] == counts[1]
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text


def test_a_forced_call_is_an_item(api: openai.OpenAI) -> None:
    body: dict[str, Any] = {
        "model": "tiny", "input": "x", "tools": [TOOL], "tool_choice": "required", "temperature": 0,
    }  # fmt: skip
    (item,) = api.responses.create(**body).output
    assert item.type == "function_call" and item.name == "weather"
    assert json.loads(item.arguments)["days"] in (1, 2, 3)
    events = list(api.responses.create(**body, stream=True))
    deltas = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert deltas == item.arguments
    again = api.responses.create(
        model="tiny", max_output_tokens=4,
        input=[{"role": "user", "content": [{"type": "input_text", "text": "x"}]},
               {"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": item.arguments},
               {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}],
    )  # fmt: skip
    assert again.status in ("completed", "incomplete")


def test_text_is_by_its_schema(api: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    text: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    answer = api.responses.create(model="tiny", input="x", instructions="count", text=text)
    assert json.loads(answer.output_text)["n"] in (1, 2)
    assert answer.status == "completed"


def test_logprobs_on_request(api: openai.OpenAI) -> None:
    answer = api.responses.create(
        model="tiny", input="x", max_output_tokens=4, include=["message.output_text.logprobs"], top_logprobs=2
    )
    (item,) = answer.output
    assert item.type == "message" and item.content[0].type == "output_text"
    assert all(len(one.top_logprobs) == 2 for one in item.content[0].logprobs or ())
    assert item.content[0].logprobs


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "x", "store": True}, "store"),
        ({"input": "x", "background": True}, "background"),
        ({"input": "x", "reasoning": {"effort": "low"}}, "reasoning"),
        ({"input": "x", "truncation": "auto"}, "truncation"),
        ({"input": "x", "include": ["file_search_call.results"]}, "include[0]"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": "x", "tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
    ],
)
def test_what_is_not_kept_or_known_is_refused(client: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = client.post("/v1/responses", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param

"""The package openai against the server: what its users call, on SmolLM2."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

pytestmark = [pytest.mark.slow, pytest.mark.device("vpu")]

RECORDED = json.loads((Path(__file__).resolve().parents[4] / "references" / "smollm2_greedy.json").read_text("utf-8"))
CASES = {case["name"]: case for case in RECORDED["cases"]}
MODEL = "smollm2"
TOKENS = 12
"""Of most answers: what is asked for is how they are told, not how long they are."""
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    """What structured outputs are asked for."""

    name: str
    size: Literal["small", "large"]
    capital: bool


def test_the_models(api) -> None:
    assert [model.id for model in api.models.list()] == [MODEL]
    assert api.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        api.models.retrieve("other")


@pytest.mark.parametrize("name", ["english-fact", "accented", "chat-chinese"])
def test_a_completion_is_the_recorded_one(api, name) -> None:
    """What transformers computed in float32 from the same file."""
    case = CASES[name]
    answer = api.completions.create(model=MODEL, prompt=case["prompt_ids"], max_tokens=TOKENS, temperature=0)
    assert len(answer.choices[0].text) > TOKENS // 2
    assert case["text"].startswith(answer.choices[0].text)
    assert answer.usage.prompt_tokens == len(case["prompt_ids"])
    assert answer.usage.completion_tokens == TOKENS
    assert answer.choices[0].finish_reason == "length"


def test_a_chat(api) -> None:
    answer = api.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=TOKENS)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_is_the_whole_answer(api) -> None:
    given = {"model": MODEL, "messages": QUESTION, "temperature": 0.8, "seed": 11, "max_tokens": TOKENS}
    whole = api.chat.completions.create(**given, logprobs=True, top_logprobs=2)
    chunks = list(
        api.chat.completions.create(
            **given, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}
        )
    )
    pieces = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(piece.delta.content or "" for piece in pieces) == whole.choices[0].message.content
    assert [piece.finish_reason for piece in pieces][-1] == whole.choices[0].finish_reason
    streamed = [entry for piece in pieces if piece.logprobs for entry in piece.logprobs.content]
    kept = whole.choices[0].logprobs.content
    assert [entry.token for entry in streamed] == [entry.token for entry in kept]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in kept], abs=2e-3)
    assert all(len(entry.top_logprobs) == 2 for entry in kept)
    assert b"".join(bytes(entry.bytes) for entry in kept).decode() == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_stop_and_several_choices(api) -> None:
    answer = api.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, n=2, stop=["Paris"])
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert texts[0] == texts[1] and texts[0] and "Paris" not in texts[0]
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


def test_a_tool_must_be_called(api) -> None:
    given = {
        "model": MODEL, "messages": [{"role": "user", "content": "How warm is it in Rome?"}], "tools": [WEATHER],
        "tool_choice": "required", "temperature": 0, "max_tokens": 40,
    }  # fmt: skip
    (call,) = api.chat.completions.create(**given).choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("celsius", "fahrenheit")
    with api.chat.completions.stream(**given) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert json.loads(final.message.tool_calls[0].function.arguments) == arguments
    follow = [
        *given["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"},
    ]
    after = api.chat.completions.create(model=MODEL, messages=follow, temperature=0, max_tokens=4)
    assert after.choices[0].message.content


def test_structured_outputs_by_pydantic(api) -> None:
    messages = [{"role": "user", "content": "Describe Paris as JSON: name, size, capital."}]
    answer = api.chat.completions.parse(
        model=MODEL, messages=messages, response_format=City, temperature=0, max_tokens=60
    )
    assert isinstance(answer.choices[0].message.parsed, City)
    json_object = api.chat.completions.create(
        model=MODEL, messages=messages, response_format={"type": "json_object"}, temperature=0, max_tokens=60
    )
    if json_object.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(json_object.choices[0].message.content), dict)


def test_responses(api) -> None:
    given = {"model": MODEL, "input": QUESTION[0]["content"], "temperature": 0, "max_output_tokens": TOKENS}
    whole = api.responses.create(**given)
    assert whole.status == "completed" and "Paris" in whole.output_text
    with api.responses.stream(**given) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    parsed = api.responses.parse(
        model=MODEL, input="Describe Paris as JSON.", text_format=City, temperature=0, max_output_tokens=60
    )
    assert isinstance(parsed.output_parsed, City)


def test_responses_call_a_tool(api) -> None:
    tool = {"type": "function", "strict": True, **WEATHER["function"]}
    answer = api.responses.create(
        model=MODEL, input="How warm is it in Rome?", tools=[tool], tool_choice="required", temperature=0,
        max_output_tokens=40,
    )  # fmt: skip
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "get_weather" and set(json.loads(call.arguments)) == {"city", "unit"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"extra_body": {"unheard_of": 1}}, "unheard_of"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}}},
            "structured",
        ),
    ],
)
def test_a_refusal_names_the_field(api, fields, param) -> None:
    for stream in (False, True):
        given = {"model": MODEL, "messages": QUESTION, "max_tokens": 5, "stream": stream, **fields}
        with pytest.raises(openai.BadRequestError) as refusal:
            api.chat.completions.create(**given)
        assert refusal.value.param.startswith(param), refusal.value.body


def test_a_prompt_beyond_the_context(api) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        api.completions.create(model=MODEL, prompt="word " * 3000, max_tokens=5)
    assert refusal.value.code == "context_length_exceeded"
    assert "1024" in refusal.value.message and "3001" in refusal.value.message


def test_many_at_once_are_each_what_they_are_alone(url, api) -> None:
    prompts = [f"Count from {number} to ten:" for number in range(4)]
    given = {"model": MODEL, "temperature": 0.7, "seed": 5, "max_tokens": 6, "logprobs": 0}
    alone = [api.completions.create(prompt=prompt, **given).choices[0].text for prompt in prompts]

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:

            async def one(prompt: str) -> str:
                stream = await client.completions.create(prompt=prompt, stream=True, **given)
                return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])

            return await asyncio.gather(*map(one, prompts))

    assert asyncio.run(together()) == alone


def test_a_stream_that_is_closed_gives_everything_back(api, metric) -> None:
    before = metric("poot_requests_cancelled_total")
    stream = api.completions.create(
        model=MODEL, prompt="Once", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 240
    while metric("poot_batch_size") or metric("poot_inflight_requests"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert metric("poot_requests_cancelled_total") == before + 1

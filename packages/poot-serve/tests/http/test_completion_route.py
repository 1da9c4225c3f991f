"""POST /v1/completions, /tokenize, /detokenize and GET /v1/models over real sockets."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.device("vpu")

GREEDY = {"prompt": "the quick brown", "temperature": 0, "max_tokens": 10, "ignore_eos": True}


def complete(client: httpx.Client, **body: Any) -> Any:
    """A whole answer."""
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(client: httpx.Client, **body: Any) -> list[Any]:
    """The chunks of a stream, without its end."""
    text = client.post("/v1/completions", json=body | {"stream": True}).text
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data[:-1]]


def joined(chunks: list[Any], place: int = 0) -> str:
    """The text of one answer."""
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == place)


def test_a_stream_is_the_whole_answer(client: httpx.Client) -> None:
    answer = complete(client, **GREEDY)
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    chunks = streamed(client, **GREEDY, stream_options={"include_usage": True})
    assert joined(chunks) == choice["text"]
    counted = chunks[-1]["usage"]
    # What the second answer finds of the prompt is another matter.
    assert counted | {"prompt_tokens_details": {}} == answer["usage"] | {"prompt_tokens_details": {}}
    assert chunks[-1]["choices"] == []


def test_sixteen_tokens_where_nothing_is_said(client: httpx.Client) -> None:
    assert complete(client, prompt="x", ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_several_prompts_have_their_answers_in_order(client: httpx.Client) -> None:
    prompts = ["the quick", "the other dog", "x"]
    alone = [complete(client, **GREEDY | {"prompt": one})["choices"][0]["text"] for one in prompts]
    together = complete(client, **GREEDY | {"prompt": prompts})
    assert [choice["text"] for choice in together["choices"]] == alone
    chunks = streamed(client, **GREEDY | {"prompt": prompts})
    assert [joined(chunks, place) for place in range(3)] == alone


def test_ids_are_a_prompt_too(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"prompt": GREEDY["prompt"]}).json()["tokens"]
    texts = [complete(client, **GREEDY | {"prompt": prompt})["choices"][0]["text"] for prompt in (ids, [ids])]
    assert texts == 2 * [complete(client, **GREEDY)["choices"][0]["text"]]


def test_an_echo_comes_first(client: httpx.Client) -> None:
    text = complete(client, **GREEDY)["choices"][0]["text"]
    assert complete(client, **GREEDY, echo=True)["choices"][0]["text"] == GREEDY["prompt"] + text
    assert joined(streamed(client, **GREEDY, echo=True)) == GREEDY["prompt"] + text


def test_logprobs_are_parallel_lists(client: httpx.Client) -> None:
    (choice,) = complete(client, **GREEDY, logprobs=2)["choices"]
    lists = choice["logprobs"]
    assert {len(values) for values in lists.values()} == {10}
    assert all(len(top) == 2 for top in lists["top_logprobs"])
    for name, value, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        assert top[name] == value == max(top.values())
    assert lists["text_offset"][0] == 0 and sorted(lists["text_offset"]) == lists["text_offset"]
    chunks = streamed(client, **GREEDY, logprobs=2)
    for name, values in lists.items():
        assert [one for chunk in chunks for one in chunk["choices"][0]["logprobs"][name]] == values


def test_an_id_ends_an_answer(client: httpx.Client) -> None:
    whole = complete(client, **GREEDY, logprobs=0)["choices"][0]
    third = whole["logprobs"]["tokens"][2]
    (id,) = client.post("/tokenize", json={"prompt": third}).json()["tokens"][:1]
    (choice,) = complete(client, **GREEDY, stop_token_ids=[id])["choices"]
    assert choice["finish_reason"] == "stop" and whole["text"].startswith(choice["text"])
    assert len(choice["text"]) < len(whole["text"])


def test_openai_streams(api: openai.OpenAI) -> None:
    body: dict[str, Any] = {"model": "tiny", "prompt": "the quick", "max_tokens": 5, "temperature": 0}
    text = "".join(chunk.choices[0].text for chunk in api.completions.create(**body, stream=True))
    assert text == api.completions.create(**body).choices[0].text


def test_a_template_is_tokenized(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "<|im_end|>"}]
    answer = client.post("/tokenize", json={"messages": messages, "return_token_strs": True}).json()
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["token_strs"].count("<|im_end|>") == 1, "what a user says is no control token"
    text = client.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == "<|im_start|>user\n<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    hidden = client.post("/detokenize", json={"tokens": answer["tokens"], "skip_special_tokens": True}).json()
    assert hidden["prompt"] == "user\n<|im_end|>\nassistant\n"


def test_the_model_has_its_names(api: openai.OpenAI) -> None:
    assert [model.id for model in api.models.list()] == ["tiny", "alias"]
    assert api.models.retrieve("alias").id == "alias"
    answer = api.completions.create(model="alias", prompt="x", max_tokens=1)
    assert answer.model == "alias"

"""Errors as clients see them, and the fields that they name, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from poot_executor.errors import DeviceLost, RequestError, SettingsError, Unsupported
from poot_serve.engine.errors import (
    ContextExceeded,
    DeadlineExceeded,
    Draining,
    EngineLost,
    NotReady,
    Overloaded,
    RequestFailed,
    SlowReader,
)
from poot_serve.http.access import Access
from poot_serve.http.body import validated
from poot_serve.http.errors import ApiError, from_poot
from poot_serve.http.requests.chat import ChatRequest
from poot_serve.http.requests.completions import CompletionRequest
from poot_serve.http.sampling import sampling_params, structure_of
from poot_serve.http.settings import HttpSettings

CASES: list[tuple[BaseException, int, str | None, str | None]] = [
    (RequestError("temperature is 200: from 0 to 100"), 400, None, "temperature"),
    (RequestError("prompt_ids[3] is 9: ids are 0 to 5"), 400, None, "messages[3]"),
    (RequestError("structured_outputs.regex cannot be compiled"), 400, None, "structured_outputs.regex"),
    (RequestError("Something else"), 400, None, None),
    (ContextExceeded(900, 512), 400, "context_length_exceeded", "messages"),
    (Unsupported("embeddings of x", "it scores pairs"), 400, "unsupported_capability", None),
    (Overloaded(7, 3), 429, "overloaded", None),
    (NotReady("loading", 4), 503, "not_ready", None),
    (Draining("the server ends"), 503, "shutting_down", None),
    (EngineLost("gone"), 503, "engine_lost", None),
    (DeadlineExceeded(2), 504, "deadline_exceeded", None),
    (SlowReader(9), 408, "slow_reader", None),
    (RequestFailed("NonFiniteLogits", "NaN"), 500, "non_finite_logits", None),
    (DeviceLost("gone"), 503, "device_error", None),
    (ZeroDivisionError("secret"), 500, "internal_error", None),
]


@pytest.mark.parametrize(("error", "status", "code", "param"), CASES, ids=lambda case: type(case).__name__)
def test_every_error_has_its_answer(error: BaseException, status: int, code: str | None, param: str | None) -> None:
    answer = from_poot(error, "messages")
    assert (answer.status, answer.code, answer.param) == (status, code, param)
    body = answer.body()["error"]
    assert set(body) == {"message", "type", "param", "code"} and "secret" not in body["message"]
    assert json.loads(json.dumps(body)) == body
    assert from_poot(answer) is answer


def test_overload_says_when_to_come_back() -> None:
    assert from_poot(Overloaded(7, 3)).headers == {"Retry-After": "3"}
    assert from_poot(NotReady("never", None)).headers == {}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages": [{"role": "user", "content": "x"}], "temprature": 1}', "temprature"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "messages[0].content[0].text"),
        (b'{"messages": [{"role": "tool", "content": "x"}]}', "messages[0].tool_call_id"),
        (b'{"messages": [{"role": "user", "content": "x"}], "stop": ["a", 5]}', "stop[1]"),
        (b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"5": "x"}}', "logit_bias.5"),
        (b"[1", None),
        (b"\xff", None),
    ],
)
def test_a_field_is_named_where_it_stands(body: bytes, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        validated(body, ChatRequest)
    assert refused.value.status == 400 and refused.value.param == param


def test_fields_become_parameters() -> None:
    body = validated(
        b'{"prompt": "x", "top_p": 0, "seed": -1, "stop": "a", "logit_bias": {"3": -5}, "n": 2}', CompletionRequest
    )
    params = sampling_params(body, max_tokens=body.limit, logprobs=None, structure=None)
    assert (params.temperature, params.top_p) == (0, 1), "what keeps one token alone is greedy"
    assert (params.seed, params.stop, params.logit_bias) == ((1 << 64) - 1, ("a",), {3: -5})
    assert (params.n, params.max_tokens) == (2, 16)
    plain = validated(b'{"prompt": "x"}', CompletionRequest)
    assert sampling_params(plain, max_tokens=4, logprobs=None, structure=None).temperature == 1


def test_two_structures_are_one_too_many() -> None:
    body = validated(
        b'{"prompt": "x", "guided_regex": "a", "response_format": {"type": "json_object"}}', CompletionRequest
    )
    with pytest.raises(ApiError) as refused:
        structure_of(body, body.response_format)
    assert refused.value.param == "response_format"


@pytest.mark.parametrize(
    "given",
    [
        {"port": -1},
        {"body_bytes": 1},
        {"drain_seconds": 0},
        {"write_seconds": float("inf")},
        {"api_keys": ("short",)},
        {"api_keys": ("with a space in it",)},
        {"names": ("a", "a")},
        {"names": ("",)},
    ],
    ids=str,
)
def test_settings_are_refused_by_name(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(SettingsError, match=name):
        HttpSettings(**given)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_loopback_is_known(host: str) -> None:
    assert HttpSettings(host=host).loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "box.example"])
def test_what_others_reach_is_no_loopback(host: str) -> None:
    assert not HttpSettings(host=host).loopback


def test_a_rate_counts_each_by_itself() -> None:
    from starlette.datastructures import Headers

    access = Access(HttpSettings(host="0.0.0.0", requests_per_minute=2))

    def post(client: str) -> None:
        access.check({"method": "POST", "path": "/v1/completions", "client": (client, 1)}, Headers({}))

    for _ in range(2):
        post("10.0.0.1")
    with pytest.raises(ApiError, match="more than 2 requests"):
        post("10.0.0.1")
    post("10.0.0.2")

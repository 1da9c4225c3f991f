"""Requests that are drawn from the server's own OpenAPI document, good ones and bad ones: none is a 5xx."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode

pytestmark = [pytest.mark.device("vpu"), pytest.mark.sweep]

ROUTES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/tokenize",
    "/detokenize",
)  # fmt: skip

GENERATING = ROUTES[:3]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["good", "bad"])
@pytest.mark.parametrize("route", ROUTES)
def test_no_request_is_a_fault_of_the_server(
    server: Any, client: httpx.Client, rng: Any, route: str, mode: Any
) -> None:
    document = client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    (operation,) = [one.ok() for one in schema.get_all_operations() if one.ok().path == route]
    statuses = set()

    @seed(int(rng.integers(1 << 32)))
    @settings(
        max_examples=10, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def draw(case: Any) -> None:
        if isinstance(case.body, dict):
            # Long answers are tried elsewhere: this is about what is asked.
            limit = {"/v1/responses": "max_output_tokens"}.get(route, "max_tokens")
            if route in GENERATING and mode is GenerationMode.POSITIVE:
                case.body[limit] = 2
                case.body.pop("max_completion_tokens", None)
        response = case.call(timeout=240)
        statuses.add(response.status_code)
        case.validate_response(response, checks=[not_a_server_error])

    draw()
    assert statuses
    assert client.get("/ready").status_code == 200

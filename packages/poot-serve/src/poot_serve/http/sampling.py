"""From a body's fields to the parameters of the driver, with OpenAI's defaults."""

from __future__ import annotations

from typing import Any

from poot_llm.guided.spec import StructuredOutputs
from poot_llm.sampling import SamplingParams
from poot_serve.http.errors import refused
from poot_serve.http.requests.response_format import JsonObjectFormat, JsonSchemaFormat, TextFormat
from poot_serve.http.requests.sampling_fields import SamplingFields

TEMPERATURE = 1.0
Format = TextFormat | JsonObjectFormat | JsonSchemaFormat | None


def sampling_params(
    body: SamplingFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    structure: StructuredOutputs | None,
    show_controls: bool = False,
) -> SamplingParams:
    """The parameters of a body. A `top_p` of 0 keeps the likeliest token alone, which is greedy. Negative seeds are
    taken as their 64 bits. `show_controls`: control tokens have text, unless the body says otherwise. Raises
    RequestError naming the field.
    """
    given: dict[str, Any] = {
        "n": body.n,
        "temperature": TEMPERATURE if body.temperature is None else body.temperature,
        "top_p": body.top_p,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "logit_bias": body.logit_bias,
        "seed": None if body.seed is None else body.seed & ((1 << 64) - 1),
        "stop": body.stop,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "min_tokens": body.min_tokens,
        "stop_token_ids": body.stop_token_ids,
        "allowed_token_ids": body.allowed_token_ids,
        "ignore_eos": body.ignore_eos,
        "skip_special_tokens": not show_controls if body.skip_special_tokens is None else body.skip_special_tokens,
        "max_tokens": max_tokens,
        "logprobs": logprobs,
        "structured_outputs": structure,
    }
    if body.top_p == 0:
        given |= {"temperature": 0.0, "top_p": None}
    return SamplingParams.of({name: value for name, value in given.items() if value is not None})


def structure_of(body: SamplingFields, response_format: Format) -> StructuredOutputs | None:
    """What the answer must be, as the body says it. Raises ApiError where it says so twice, RequestError naming the
    field for what is no constraint.
    """
    found: dict[str, StructuredOutputs] = {}
    if body.structured_outputs is not None:
        given = body.structured_outputs.model_dump(exclude_none=True, by_alias=True)
        if "choice" in given:
            given["choice"] = tuple(given["choice"])
        found["structured_outputs"] = StructuredOutputs.of(given)
    if body.guided_json is not None:
        found["guided_json"] = StructuredOutputs(json=body.guided_json)
    if body.guided_regex is not None:
        found["guided_regex"] = StructuredOutputs(regex=body.guided_regex)
    if body.guided_choice is not None:
        found["guided_choice"] = StructuredOutputs(choice=tuple(body.guided_choice))
    if body.guided_grammar is not None:
        found["guided_grammar"] = StructuredOutputs(grammar=body.guided_grammar)
    match response_format:
        case JsonObjectFormat():
            found["response_format"] = StructuredOutputs(json_object=True)
        case JsonSchemaFormat():
            found["response_format"] = StructuredOutputs(json=response_format.json_schema.schema_)
    if len(found) > 1:
        first, second, *_ = found
        raise refused(f"{second}: {first} says already what the answer must be", second, "invalid_value")
    return next(iter(found.values()), None)

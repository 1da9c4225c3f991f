"""What completions and chats share: how many answers, how they are drawn, where they end, how they are sent."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from poot_llm.sampling.keys import MOST_LOGPROBS
from poot_llm.sampling.params import MAX_CHOICES, MAX_SEED, MAX_STOPS, MAX_TOKENS, MAX_TOP_K, MOST_BIAS
from poot_serve.http.requests.strict import Strict, Timeout

TokenId = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Stop = Annotated[str, Field(min_length=1)]


class StreamOptions(Strict):
    """What a stream holds beside the answer."""

    include_usage: bool | None = None
    """A last chunk with the counts of tokens."""
    include_obfuscation: bool | None = None
    """Accepted and without effect: poot does not pad its chunks."""


class StructuredOutputsField(Strict):
    """Exactly one of these: what the answer must be."""

    json_schema: dict[str, Any] | bool | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    lark: str | None = None


class SamplingFields(Strict):
    """The shared fields. None is the default of each, as if it was not given."""

    model: str | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]] | None = None
    seed: int | None = Field(None, ge=-(1 << 63), le=MAX_SEED)
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    # Beyond OpenAI's: the first by the name that proxies and clients have for it, the others by those of vLLM.
    timeout: Timeout | None = None
    top_k: int | None = Field(None, ge=-1, le=MAX_TOP_K)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: StructuredOutputsField | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("stream_options", "stream_options goes with stream: true alone")
        return self

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the counts of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)


LogprobCount = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]

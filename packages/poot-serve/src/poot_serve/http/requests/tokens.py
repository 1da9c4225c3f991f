"""The bodies of POST /tokenize and POST /detokenize, by the names of vLLM."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from poot_serve.http.requests.messages import Messages
from poot_serve.http.requests.sampling_fields import TokenId
from poot_serve.http.requests.strict import Strict
from poot_serve.http.requests.tools import Tools


class TokenizeRequest(Strict):
    """A prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "one of prompt and messages is needed")
        return self


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=1 << 20)]
    skip_special_tokens: bool | None = None

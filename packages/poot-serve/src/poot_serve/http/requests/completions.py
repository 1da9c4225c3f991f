"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from poot_llm.sampling.params import MAX_TOKENS
from poot_serve.http.requests.response_format import ResponseFormat
from poot_serve.http.requests.sampling_fields import LogprobCount, SamplingFields, TokenId
from poot_serve.http.requests.strict import NotOffered

MOST_PROMPTS = 128
DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""

Ids = Annotated[list[TokenId], Field(min_length=1)]
Prompts = Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS)]
IdPrompts = Annotated[list[Ids], Field(min_length=1, max_length=MOST_PROMPTS)]


class CompletionRequest(SamplingFields):
    """OpenAI's fields and poot's own. A prompt is text or token ids; there may be several."""

    prompt: str | Prompts | Ids | IdPrompts
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    echo: bool | None = None
    logprobs: LogprobCount | None = None
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = None
    """What follows the answer, with a model that fills in what is between."""
    response_format: ResponseFormat | None = None
    add_special_tokens: bool | None = None
    """Whether a prompt in text gets what the checkpoint puts around one; true where it is left out."""
    prompt_logprobs: NotOffered = None

    @model_validator(mode="after")
    def _fields_that_go_together(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise PydanticCustomError("best_of", "best_of is {best}, and n is {n}: poot returns every answer it makes",
                                      {"best": self.best_of, "n": self.n or 1})  # fmt: skip
        if self.suffix is not None and self.echo:
            raise PydanticCustomError("suffix", "suffix does not go with echo")
        if self.suffix is not None and not isinstance(self.prompt, str):
            raise PydanticCustomError("suffix", "suffix goes with one prompt in text")
        if self.echo and self.logprobs is not None:
            raise PydanticCustomError("logprobs", "logprobs of a prompt that is echoed are not offered")
        return self

    @property
    def limit(self) -> int:
        """The longest answer in tokens."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from poot_llm.sampling.params import MAX_TOKENS
from poot_serve.http.requests.messages import Messages
from poot_serve.http.requests.response_format import ResponseFormat
from poot_serve.http.requests.sampling_fields import LogprobCount, SamplingFields
from poot_serve.http.requests.strict import NotOffered
from poot_serve.http.requests.tools import NamedTool, ToolChoice, Tools


class ChatRequest(SamplingFields):
    """OpenAI's fields and poot's own."""

    messages: Messages
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the chat template, by name."""

    # Accepted: they say nothing about the answer itself.
    metadata: dict[str, str] | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1)] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    audio: NotOffered = None
    function_call: NotOffered = None
    functions: NotOffered = None
    moderation: NotOffered = None
    prediction: NotOffered = None
    prompt_cache_retention: NotOffered = None
    reasoning_effort: NotOffered = None
    verbosity: NotOffered = None
    web_search_options: NotOffered = None

    @model_validator(mode="after")
    def _fields_that_go_together(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("top_logprobs", "top_logprobs goes with logprobs: true alone")
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            if name not in {tool.function.name for tool in self.tools or ()}:
                raise PydanticCustomError(
                    "tool_choice", "tool_choice names {name}, which is none of tools", {"name": name}
                )
        elif self.tool_choice == "required" and not self.tools:
            raise PydanticCustomError("tool_choice", "tool_choice is required, and there are no tools")
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise PydanticCustomError("tools", "tools has two functions of one name")
        return self

    @property
    def limit(self) -> int | None:
        """The longest answer in tokens; None goes on until the context is full."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

"""The body of POST /v1/responses: text and functions, nothing kept between requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from poot_llm.sampling.params import MAX_TOKENS
from poot_serve.http.requests.messages import text_alone
from poot_serve.http.requests.sampling_fields import LogprobCount
from poot_serve.http.requests.strict import NotOffered, Strict, Timeout
from poot_serve.http.requests.tools import MOST_TOOLS, Name

LOGPROBS = "message.output_text.logprobs"


class InputText(Strict):
    """Text of a message, given or answered."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputRefusal(Strict):
    """What an assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[Annotated[InputText | InputRefusal, Field(discriminator="type")], BeforeValidator(text_alone)]
Parts = Annotated[list[Part], Field(min_length=1)]


class InputMessage(Strict):
    """A message of a conversation."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class InputCall(Strict):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: Annotated[str, Field(min_length=1)]
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: str | None = None


class InputCallOutput(Strict):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Parts
    id: str | None = None
    status: str | None = None


def _kind(item: Any) -> str | None:
    """The tag of an item: its type, which a message may leave out."""
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    return "message" if kind is None else kind


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[InputCall, Tag("function_call")]
    | Annotated[InputCallOutput, Tag("function_call_output")],
    Discriminator(_kind),
]


class FunctionTool(Strict):
    """A function; `parameters` is the JSON schema of its arguments."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenFunction(Strict):
    """The one function that must be called."""

    type: Literal["function"]
    name: Name


class TextFormat(Strict):
    """Text as it comes."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    """JSON by a schema, which is always followed to the letter."""

    type: Literal["json_schema"]
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None


class TextField(Strict):
    """What the text of an answer must be."""

    format: Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: NotOffered = None


class StreamField(Strict):
    """What a stream holds beside the answer: nothing."""

    include_obfuscation: bool | None = None
    """Accepted and without effect: poot does not pad its events."""


class ResponsesRequest(Strict):
    """OpenAI's fields."""

    model: str | None = None
    input: str | Annotated[list[Item], Field(min_length=1, max_length=4096)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, ge=0, le=1)
    top_logprobs: LogprobCount | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextField | None = None
    stream: bool | None = None
    stream_options: StreamField | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None

    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    service_tier: Literal["auto", "default"] | None = None
    truncation: Literal["disabled"] | None = None
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    user: str | None = None
    timeout: Timeout | None = None

    conversation: NotOffered = None
    max_tool_calls: NotOffered = None
    previous_response_id: NotOffered = None
    prompt: NotOffered = None
    reasoning: NotOffered = None

    @model_validator(mode="after")
    def _fields_that_go_together(self) -> Self:
        names = [tool.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise PydanticCustomError("tools", "tools has two functions of one name")
        if isinstance(self.tool_choice, ChosenFunction) and self.tool_choice.name not in names:
            raise PydanticCustomError(
                "tool_choice", "tool_choice names {name}, which is none of tools", {"name": self.tool_choice.name}
            )
        if self.tool_choice == "required" and not names:
            raise PydanticCustomError("tool_choice", "tool_choice is required, and there are no tools")
        return self

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text comes with logprobs."""
        return LOGPROBS in (self.include or ())

"""The messages of a chat, by role."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from poot_serve.http.requests.strict import NotOffered, Strict

_KINDS = {
    "image_url": "image",
    "image": "image",
    "input_image": "image",
    "video_url": "video",
    "video": "video",
    "input_video": "video",
    "audio_url": "audio",
    "audio": "audio",
    "input_audio": "audio",
    "file": "file",
    "input_file": "file",
}


def text_alone(part: Any) -> Any:
    """A part that is no text is refused by what it is: it is never left out in silence."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _KINDS:
        raise PydanticCustomError("unsupported_capability", "the model reads no {kind} parts", {"kind": _KINDS[kind]})
    return part


class TextPart(Strict):
    """Text of a message."""

    type: Literal["text"]
    text: str


class RefusalPart(Strict):
    """What an assistant said instead of an answer."""

    type: Literal["refusal"]
    refusal: str


Text = Annotated[TextPart, BeforeValidator(text_alone)]
TextOrRefusal = Annotated[Annotated[TextPart | RefusalPart, Field(discriminator="type")], BeforeValidator(text_alone)]
Parts = Annotated[list[Text], Field(min_length=1)]


class FunctionCall(Strict):
    """A call of a function that an assistant made; the arguments are a JSON object as text."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str


class ToolCall(Strict):
    """A call as a message holds it."""

    id: str
    type: Literal["function"]
    function: FunctionCall
    index: int | None = None


class SystemMessage(Strict):
    """Instructions; `developer` is the name that newer clients give them."""

    role: Literal["system", "developer"]
    content: str | Parts
    name: str | None = None


class UserMessage(Strict):
    """What a user says."""

    role: Literal["user"]
    content: str | Parts
    name: str | None = None


class AssistantMessage(Strict):
    """What the model said, or the calls that it made."""

    role: Literal["assistant"]
    content: str | Annotated[list[TextOrRefusal], Field(min_length=1)] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(min_length=1)] | None = None
    reasoning_content: str | None = None
    audio: NotOffered = None
    function_call: NotOffered = None
    annotations: list[Any] | None = None
    """Accepted from answers that are sent back, and not given to the model."""


class ToolMessage(Strict):
    """What a call gave."""

    role: Literal["tool"]
    content: str | Parts
    tool_call_id: str
    name: str | None = None


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
Messages = Annotated[list[Message], Field(min_length=1, max_length=4096)]

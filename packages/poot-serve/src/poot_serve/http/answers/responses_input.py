"""The input of a response as the messages and fields of a chat."""

from __future__ import annotations

from collections.abc import Sequence

from poot_serve.http.requests.messages import (
    AssistantMessage,
    FunctionCall,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from poot_serve.http.requests.response_format import JsonObjectFormat, JsonSchemaFormat, NamedSchema, TextFormat
from poot_serve.http.requests.responses import (
    ChosenFunction,
    InputCall,
    InputCallOutput,
    InputMessage,
    InputText,
    Part,
    ResponsesRequest,
)
from poot_serve.http.requests.responses import JsonObjectFormat as JsonObjectText
from poot_serve.http.requests.responses import JsonSchemaFormat as JsonSchemaText
from poot_serve.http.requests.tools import FunctionDefinition, NamedFunction, NamedTool, Tool, ToolChoice


def messages_of(body: ResponsesRequest) -> list[Message]:
    """The conversation. Calls that follow one another, or what an assistant said, are one message."""
    found: list[Message] = []
    if body.instructions is not None:
        found.append(SystemMessage(role="system", content=body.instructions))
    if isinstance(body.input, str):
        return [*found, UserMessage(role="user", content=body.input)]
    for item in body.input:
        match item:
            case InputMessage():
                found.append(_message(item))
            case InputCallOutput():
                found.append(ToolMessage(role="tool", content=_text(item.output), tool_call_id=item.call_id))
            case InputCall():
                _add_call(found, item)
    return found


def _message(item: InputMessage) -> Message:
    text = _text(item.content)
    if item.role == "user":
        return UserMessage(role="user", content=text)
    if item.role == "assistant":
        return AssistantMessage(role="assistant", content=text)
    return SystemMessage(role=item.role, content=text)


def _add_call(found: list[Message], item: InputCall) -> None:
    call = ToolCall(id=item.call_id, type="function", function=FunctionCall(name=item.name, arguments=item.arguments))
    last = found[-1] if found else None
    if isinstance(last, AssistantMessage):
        found[-1] = last.model_copy(update={"tool_calls": [*(last.tool_calls or ()), call]})
    else:
        found.append(AssistantMessage(role="assistant", tool_calls=[call]))


def _text(content: str | Sequence[Part]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, InputText) else part.refusal for part in content)


def tools_of(body: ResponsesRequest) -> list[Tool]:
    """The functions, as chats have them."""
    return [
        Tool(
            type="function",
            function=FunctionDefinition(
                name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
            ),
        )
        for tool in body.tools or ()
    ]


def choice_of(body: ResponsesRequest) -> ToolChoice | None:
    """Which function must be called, as chats have it."""
    if isinstance(body.tool_choice, ChosenFunction):
        return NamedTool(type="function", function=NamedFunction(name=body.tool_choice.name))
    return body.tool_choice


def format_of_text(body: ResponsesRequest) -> TextFormat | JsonObjectFormat | JsonSchemaFormat | None:
    """What the text must be, as chats have it."""
    match body.text.format if body.text else None:
        case JsonObjectText():
            return JsonObjectFormat(type="json_object")
        case JsonSchemaText() as given:
            named = NamedSchema.model_validate({"name": given.name, "schema": given.schema_, "strict": given.strict})
            return JsonSchemaFormat(type="json_schema", json_schema=named)
    return None

"""The tools that a request offers, and which of them an answer must call."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from poot_serve.http.requests.strict import Strict

MOST_TOOLS = 256
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-zA-Z0-9_.-]+$")]


class FunctionDefinition(Strict):
    """A function; `parameters` is the JSON schema of its arguments, an object with none where it is left out."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool: poot knows functions."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Strict):
    """The function's name."""

    name: Name


class NamedTool(Strict):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Field(max_length=MOST_TOOLS)]
ToolChoice = Literal["auto", "none", "required"] | NamedTool

"""What the tools of a chat mean for its answer: what is offered, what is looked for, and what is forced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poot_llm.guided.spec import StructuredOutputs
from poot_llm.tokenizer import Tokenizer
from poot_serve.http.errors import refused
from poot_serve.http.requests.tools import NamedTool, Tool, ToolChoice
from poot_serve.http.tools.format import ToolFormat, allowing, forcing, forcing_or


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`offered` are told to the model, calls of `names` are looked for in the answer, which is `structure`."""

    format: ToolFormat
    offered: Sequence[Tool]
    names: frozenset[str]
    structure: StructuredOutputs | None

    def shows_controls(self, tokenizer: Tokenizer) -> bool:
        """Whether control tokens need text, as one of them begins calls."""
        return bool(self.names) and self.format.begin in tokenizer.control_texts


def tool_use(
    tools: Sequence[Tool] | None,
    choice: ToolChoice | None,
    format: ToolFormat,
    structure: StructuredOutputs | None,
    *,
    several: bool | None,
) -> ToolUse:
    """For tools and a choice that go together. A call that is forced takes the place of any other structure; where the
    model may choose, the answer is JSON by that structure or calls. Where it may choose and nothing else is said, calls
    follow their schemas if one of the functions is `strict`. `several`: whether it may call more than once.

    Raises ApiError where tools and a structure that is no JSON are both given, RequestError for a schema that is none.
    """
    offered = list(tools or ())
    if not offered or choice == "none":
        return ToolUse(format, offered if choice != "none" else (), frozenset(), structure)
    names = frozenset(tool.function.name for tool in offered)
    functions = [tool.function for tool in offered]
    if isinstance(choice, NamedTool):
        functions = [one for one in functions if one.name == choice.function.name]
        return ToolUse(format, offered, names, forcing(format, functions, several=False))
    if choice == "required":
        return ToolUse(format, offered, names, forcing(format, functions, several=bool(several)))
    if structure is None and several is not False and not any(function.strict for function in functions):
        return ToolUse(format, offered, names, None)
    if structure is None:
        return ToolUse(format, offered, names, allowing(format, functions, several=several is not False))
    if structure.kind not in ("json", "json_object"):
        raise refused(f"tools: an answer that may call them cannot be bound by {structure.kind}", "tools")
    return ToolUse(format, offered, names, forcing_or(format, functions, structure.text))

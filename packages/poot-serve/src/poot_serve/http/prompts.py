"""Prompts as token ids: plain text, and chats through the checkpoint's template."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from poot_llm.registry import ModelHandle
from poot_serve.http.errors import refused, too_long, unsupported
from poot_serve.http.infill import Infill
from poot_serve.http.requests.messages import AssistantMessage, Message, TextPart
from poot_serve.http.requests.tools import Tool
from poot_serve.http.tools.format import ToolFormat, format_of

SMALL = 4096
"""Characters that are made into ids at once; longer texts go to a thread, so that other requests go on meanwhile."""
RESERVED = frozenset({"messages", "tools", "add_generation_prompt"})
Result = TypeVar("Result")


class Prompts:
    """Makes prompts for one model."""

    def __init__(self, handle: ModelHandle) -> None:
        self._handle = handle
        self.tools: ToolFormat = format_of(handle.template.source)
        """How the model writes calls."""
        self._infill = Infill.of(handle.tokenizer)

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token: a text has at least as many tokens as it is times longer than that."""
        tokenizer = self._handle.tokenizer
        return max(len(tokenizer.piece(token, skip_special=False)) for token in range(self._handle.config.vocabulary))

    async def text(self, text: str, capacity: int, *, add_special: bool = True, field: str = "prompt") -> list[int]:
        """Ids of a text; its control tokens are ordinary text. Raises ApiError for one that is far too long, without
        making ids of it, and RequestError for one that is no Unicode.
        """
        tokenizer = self._handle.tokenizer
        return await self._made(
            len(text), capacity, field, lambda: tokenizer.encode(text, add_special=add_special, parse_special=False)
        )

    async def hole(
        self, before: str, after: str, capacity: int, *, add_special: bool, field: str
    ) -> tuple[list[int], tuple[int, ...]]:
        """Ids of a prompt whose answer goes between two texts, and ids that end it beside the checkpoint's own. Raises
        ApiError as `text` does, and where the checkpoint was not taught that.
        """
        if self._infill is None:
            raise unsupported("suffix", "this model has no marks for what is to be filled in: leave it out")
        first = await self.text(before, capacity, add_special=False, field=field)
        last = await self.text(after, capacity, add_special=False, field="suffix")
        ids = self._infill.prompt(first, last)
        return self._handle.tokenizer.complete(ids) if add_special else ids, self._infill.ends

    async def chat(
        self,
        messages: Sequence[Message],
        capacity: int,
        *,
        tools: Sequence[Tool] = (),
        variables: dict[str, Any] | None = None,
        generate: bool = True,
    ) -> list[int]:
        """Ids of a chat. Raises ApiError as `text` does, RequestError where the template refuses."""
        taken = RESERVED.intersection(variables or ())
        if taken:
            name = min(taken)
            raise refused(f"chat_template_kwargs.{name}: the request says that itself", f"chat_template_kwargs.{name}")
        plain = [_plain(message, f"messages[{place}]", self.tools) for place, message in enumerate(messages)]
        offered = [tool.model_dump(exclude_none=True) for tool in tools]
        if offered and not self.tools.taught:
            plain, offered = _taught(plain, offered), []
        size = sum(len(message["content"] or "") for message in plain)
        return await self._made(size, capacity, "messages", lambda: self._handle.template.encode(
            plain, self._handle.tokenizer, tools=offered or None, add_generation_prompt=generate, **(variables or {})
        ))  # fmt: skip

    async def _made(self, size: int, capacity: int, field: str, make: Callable[[], list[int]]) -> list[int]:
        if size <= SMALL:
            return make()

        def bounded() -> list[int]:
            if (least := size // self._longest) > capacity:
                raise too_long(least, capacity, field, at_least=True)
            return make()

        return await asyncio.to_thread(bounded)


def text_of(content: str | Sequence[Any] | None) -> str | None:
    """A message's content as one text: parts follow one another."""
    if content is None or isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _plain(message: Message, where: str, format: ToolFormat) -> dict[str, Any]:
    """A message as templates expect it: text, arguments as objects, `system` for `developer`."""
    plain: dict[str, Any] = {"role": message.role, "content": text_of(message.content)}
    if message.role == "developer":
        plain["role"] = "system"
    if message.name is not None:
        plain["name"] = message.name
    if message.role == "tool":
        plain["tool_call_id"] = message.tool_call_id
    if isinstance(message, AssistantMessage):
        _add_calls(plain, message, where)
    if not format.taught:
        plain = _untaught(plain)
    if plain["content"] is None:
        plain["content"] = ""
    return plain


def _add_calls(plain: dict[str, Any], message: AssistantMessage, where: str) -> None:
    if message.content is None and message.refusal is not None:
        plain["content"] = message.refusal
    if message.reasoning_content is not None:
        plain["reasoning_content"] = message.reasoning_content
    if message.tool_calls is None:
        if plain["content"] is None:
            raise refused(f"{where}.content: it is needed where there are no tool_calls", f"{where}.content",
                          "missing_required_parameter")  # fmt: skip
        return
    calls = []
    for place, call in enumerate(message.tool_calls):
        field = f"{where}.tool_calls[{place}].function.arguments"
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except (ValueError, RecursionError):
            raise refused(f"{field}: it is no JSON", field, "invalid_value") from None
        if not isinstance(arguments, dict):
            raise refused(f"{field}: it is no JSON object", field, "invalid_value")
        calls.append({"id": call.id, "type": "function",
                      "function": {"name": call.function.name, "arguments": arguments}})  # fmt: skip
    plain["tool_calls"] = calls


def _untaught(plain: dict[str, Any]) -> dict[str, Any]:
    """A message for a template that knows neither calls nor what they give: both are written out."""
    if plain["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{plain['content']}\n</tool_response>"}
    if "tool_calls" in plain:
        blocks = [f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>"
                  for call in plain.pop("tool_calls")]  # fmt: skip
        plain["content"] = "\n".join([*([plain["content"]] if plain["content"] else []), *blocks])
    return plain


def _taught(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with what tools there are, for a template that does not say so."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = (
        f"You can call these functions, one JSON object a line:\n{lines}\n"
        "To call one, answer with a block of this form and nothing else:\n"
        '<tool_call>\n{"name": "the function\'s name", "arguments": {the arguments as its schema says}}\n</tool_call>'
    )
    if messages[0]["role"] == "system":
        first = messages[0] | {"content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]

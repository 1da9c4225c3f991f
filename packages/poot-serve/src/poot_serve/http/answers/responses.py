"""An answer as a response: its items, and the events by which a stream builds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from poot_serve.http.answers.chat import Delta
from poot_serve.http.sse import frame


@dataclass(slots=True)
class _Text:
    """A message that is being written."""

    id: str
    place: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": "".join(self.texts), "annotations": [], "logprobs": self.logprobs}

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}


class ResponseAnswer:
    """Takes deltas and gives events; `output` are the items so far that are finished."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] = []
        self.finish_reason: str | None = None
        self._text: _Text | None = None
        self._number = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event of the stream, with its number."""
        data = frame({"type": kind, "sequence_number": self._number, **fields}, kind)
        self._number += 1
        return data

    def take(self, delta: Delta) -> Iterator[bytes]:
        """The events of a delta."""
        if delta.text:
            yield from self._add_text(delta)
        if delta.call is not None:
            yield from self._end_text("completed")
            yield from self._add_call(delta)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            if self._text is None and not self.output:
                yield from self._begin_text()
            if self._text is not None:
                self._text.logprobs += delta.logprobs
            yield from self._end_text("incomplete" if delta.finish_reason == "length" else "completed")

    def _begin_text(self) -> Iterator[bytes]:
        text = self._text = _Text(f"msg_{uuid4().hex}", len(self.output))
        yield self.event("response.output_item.added", output_index=text.place, item=text.item("in_progress"))
        yield self.event(
            "response.content_part.added", item_id=text.id, output_index=text.place, content_index=0, part=text.part
        )

    def _add_text(self, delta: Delta) -> Iterator[bytes]:
        if self._text is None:
            yield from self._begin_text()
        text = self._text
        assert text is not None
        text.texts.append(delta.text)
        text.logprobs += delta.logprobs
        yield self.event(
            "response.output_text.delta", item_id=text.id, output_index=text.place, content_index=0, delta=delta.text,
            logprobs=delta.logprobs,
        )  # fmt: skip

    def _end_text(self, status: str) -> Iterator[bytes]:
        text, self._text = self._text, None
        if text is None:
            return
        where: dict[str, Any] = {"item_id": text.id, "output_index": text.place, "content_index": 0}
        yield self.event("response.output_text.done", **where, text=text.part["text"], logprobs=text.logprobs)
        yield self.event("response.content_part.done", **where, part=text.part)
        self.output.append(text.item(status))
        yield self.event("response.output_item.done", output_index=text.place, item=self.output[-1])

    def _add_call(self, delta: Delta) -> Iterator[bytes]:
        call, place = delta.call, len(self.output)
        assert call is not None
        item = {"id": f"fc_{uuid4().hex}", "type": "function_call", "status": "completed", "call_id": call.id,
                "name": call.name, "arguments": call.arguments}  # fmt: skip
        begun = item | {"status": "in_progress", "arguments": ""}
        where = {"item_id": item["id"], "output_index": place}
        yield self.event("response.output_item.added", output_index=place, item=begun)
        yield self.event("response.function_call_arguments.delta", **where, delta=call.arguments)
        yield self.event("response.function_call_arguments.done", **where, name=call.name, arguments=call.arguments)
        self.output.append(item)
        yield self.event("response.output_item.done", output_index=place, item=item)

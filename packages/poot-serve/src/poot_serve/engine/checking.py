"""What can be refused before an engine sees it."""

from __future__ import annotations

from collections.abc import Sequence

from poot_executor.errors import RequestError
from poot_llm.driver.requests import Requests
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams
from poot_serve.engine.errors import ContextExceeded
from poot_serve.engine.messages import EngineFacts


def check_request(
    prompt_ids: Sequence[int], params: SamplingParams, facts: EngineFacts, handle: ModelHandle
) -> tuple[int, ...]:
    """The prompt's ids, where `Driver.check` would take them and the parameters.

    Raises RequestError naming the field, and ContextExceeded for a prompt that leaves no room for an answer.
    """
    if facts.encodes:
        raise RequestError(f"model: {facts.model} encodes texts, it generates none")
    if len(prompt_ids) + 1 > facts.capacity:
        raise ContextExceeded(len(prompt_ids), facts.capacity)
    return Requests(handle, facts.capacity).check(prompt_ids, params, {})


def check_texts(
    items: Sequence[tuple[Sequence[int], int]], facts: EngineFacts
) -> tuple[tuple[tuple[int, ...], int], ...]:
    """Texts as `Encoder.encode` takes them. Raises RequestError by place."""
    if not facts.encodes:
        raise RequestError(f"model: {facts.model} generates, it encodes no texts")
    if not items:
        raise RequestError("input: it is empty, at least one text is needed")
    checked = []
    for place, (given, second) in enumerate(items):
        ids = tuple(given)
        if not 1 <= len(ids) <= facts.capacity:
            raise RequestError(f"input[{place}] has {len(ids)} tokens: 1 to {facts.capacity}")
        if wrong := [token for token in ids if not 0 <= token < facts.vocabulary]:
            raise RequestError(f"input[{place}] holds {wrong[0]}: token ids are 0 to {facts.vocabulary - 1}")
        checked.append((ids, second))
    return tuple(checked)

"""What requests ask of a model, checked before anything is computed, and made into sequences."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from poot_executor.errors import RequestError
from poot_llm.driver.inputs import InputRows, checked_inputs, checked_prompt
from poot_llm.driver.sequence import Guide, Sequence
from poot_llm.registry import ModelHandle
from poot_llm.sampling import History, SamplingParams

if TYPE_CHECKING:
    from poot_llm.guided.compiler import GuideCompiler


class Requests:
    """Requests of one model, with room for `capacity` ids each."""

    def __init__(self, handle: ModelHandle, capacity: int) -> None:
        self._handle = handle
        self._capacity = capacity
        self._guides: GuideCompiler | None = None

    def check(self, prompt_ids: Items[int], params: SamplingParams, inputs: Mapping[str, InputRows]) -> tuple[int, ...]:
        """See `Driver.check`."""
        vocabulary = self._handle.config.vocabulary
        ids = checked_prompt(prompt_ids, self._capacity, vocabulary)
        params.check_vocabulary(vocabulary)
        self.inputs(inputs, len(ids))
        if params.min_tokens and params.allowed_token_ids is not None:
            ends = self._ends(params)
            if ends.issuperset(params.allowed_token_ids):
                raise RequestError("allowed_token_ids: all of them end the answer, and min_tokens forbids that")
        return ids

    def inputs(self, inputs: Mapping[str, InputRows], prompt: int) -> dict[str, InputRows]:
        """Those of a prompt of so many ids, as `checked_inputs` gives them."""
        family = self._handle.family
        return checked_inputs(inputs, family.inputs, self._handle.config, family.name, prompt)

    def guide(self, params: SamplingParams) -> Guide | None:
        """See `Driver.guide`."""
        if params.structured_outputs is None:
            return None
        if self._guides is None:
            from poot_llm.guided.compiler import GuideCompiler

            self._guides = GuideCompiler(self._handle.tokenizer, self._handle.config.vocabulary)
        return self._guides.compile(params.structured_outputs)

    def sequence(
        self,
        prompt_ids: Items[int],
        params: SamplingParams,
        inputs: Mapping[str, InputRows],
        guide: Guide | None,
        reserve: bool,
    ) -> Sequence:
        """A request that has no room yet. Raises what `check` and `guide` do."""
        ids = self.check(prompt_ids, params, inputs)
        limit = self._capacity - len(ids)
        return Sequence(
            prompt_ids=ids,
            params=params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            stop_ids=self._ends(params),
            limit=limit if params.max_tokens is None else min(limit, params.max_tokens),
            inputs=self.inputs(inputs, len(ids)),
            guide=self.guide(params) if guide is None else guide,
            history=History(ids) if params.penalizes else None,
            reserve=reserve,
        )

    def _ends(self, params: SamplingParams) -> frozenset[int]:
        """Ids that end an answer."""
        own = frozenset() if params.ignore_eos else self._handle.tokenizer.eos_ids
        return own | frozenset(params.stop_token_ids)

    def close(self) -> None:
        """Let what compiles constraints end; idempotent."""
        if self._guides is not None:
            self._guides.close()

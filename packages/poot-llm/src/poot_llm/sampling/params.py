"""A request's parameters: how one prompt is answered, every field checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Self

from poot_executor.errors import RequestError
from poot_llm.guided.spec import StructuredOutputs
from poot_llm.sampling.fields import biases, flag, number, texts, token_ids, whole
from poot_llm.sampling.keys import BIAS_ENTRIES, MOST_LOGPROBS, Suffix

MAX_SEED = (1 << 64) - 1
MAX_TOP_K = (1 << 31) - 1
MAX_TOKENS = (1 << 31) - 1
MAX_STOPS = 64
MAX_CHOICES = 128
MOST_BIAS = 100.0
LEAST_TEMPERATURE = 1e-5
"""Below it 1 / temperature times a logit leaves float32; 0 itself is greedy."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is answered, by the names that OpenAI and vLLM use. Raises RequestError naming the field that is
    out of range; `of` also refuses names that are none.

    - `n`: answers to one prompt.
    - `temperature`: 0 is greedy; `top_k`: 0 (or -1) keeps all; `top_p` in (0, 1]; `min_p` in [0, 1].
    - `repetition_penalty`, 0.01 to 100: divides positive logits of ids in prompt or answer, multiplies negative ones.
    - `presence_penalty`, `frequency_penalty`, -2 to 2: taken off logits of ids in the answer, once and per occurrence.
    - `logit_bias`: up to 300 ids with -100 to 100, added to their logits before anything else.
    - `allowed_token_ids`: nothing else is chosen; without an id that ends the answer, it goes on to its limit.
    - `seed`: 0 to 2^64 - 1; None draws one when the request is opened. Answer i of several has seed + i.
    - `max_tokens`: None goes on until the capacity is full. `min_tokens`: what ends an answer is not chosen before.
    - `stop`: texts that end the answer and are not part of it; `stop_token_ids`: ids that do.
    - `ignore_eos`: the checkpoint's own end-of-sequence ids do not end the answer.
    - `logprobs`: None gives none; 0 to 20 gives the chosen token's, and those of as many of the most likely ones.
    - `prompt_logprobs`: None; anything else is refused.
    - `skip_special_tokens`: control tokens have no text.
    - `structured_outputs`: what the answer must be: a JSON schema, a regular expression, a grammar, a choice.
    """

    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        whole("n", self.n, 1, MAX_CHOICES)
        temperature = number("temperature", self.temperature, 0, 100)
        if 0 < temperature < LEAST_TEMPERATURE:
            raise RequestError(f"temperature is {temperature:g}: 0 (greedy) or {LEAST_TEMPERATURE:g} to 100")
        if number("top_p", self.top_p, 0, 1) == 0:
            raise RequestError("top_p is 0: above 0, at most 1")
        number("min_p", self.min_p, 0, 1)
        self._set("top_k", max(whole("top_k", self.top_k, -1, MAX_TOP_K), 0))
        number("repetition_penalty", self.repetition_penalty, 0.01, 100)
        number("presence_penalty", self.presence_penalty, -2, 2)
        number("frequency_penalty", self.frequency_penalty, -2, 2)
        self._set("logit_bias", biases("logit_bias", self.logit_bias, BIAS_ENTRIES, MAX_TOKENS, MOST_BIAS))
        if self.allowed_token_ids is not None:
            allowed = token_ids("allowed_token_ids", self.allowed_token_ids, MAX_TOKENS)
            if not allowed:
                raise RequestError("allowed_token_ids is empty: nothing could be chosen; None allows every id")
            self._set("allowed_token_ids", allowed)
        if self.seed is not None:
            whole("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        whole("min_tokens", self.min_tokens, 0, MAX_TOKENS if self.max_tokens is None else self.max_tokens)
        self._set("stop", texts("stop", self.stop, MAX_STOPS))
        self._set("stop_token_ids", token_ids("stop_token_ids", self.stop_token_ids, MAX_TOKENS))
        flag("ignore_eos", self.ignore_eos)
        if self.logprobs is not None:
            whole("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        if self.prompt_logprobs is not None:
            raise RequestError(f"prompt_logprobs is {self.prompt_logprobs!r}: not supported, leave it out")
        flag("skip_special_tokens", self.skip_special_tokens)
        if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputs):
            raise RequestError("structured_outputs: a StructuredOutputs is needed")
        if self.structured_outputs is not None:
            others = {"min_tokens": 0, "allowed_token_ids": None, "ignore_eos": False}
            for name, neutral in others.items():
                if getattr(self, name) != neutral:
                    raise RequestError(f"{name} with structured_outputs: the structure says what may come, and its end")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The parameters of a request's fields. Raises RequestError also for a field that there is none of.

        `structured_outputs` may be a map of that class's own fields.
        """
        known = [item.name for item in fields(cls)]
        for name in values:
            if name not in known:
                close = get_close_matches(f"{name}", known, 1)
                hint = f"; did you mean {close[0]}?" if close else f": fields are {', '.join(known)}"
                raise RequestError(f"{name} is no sampling parameter{hint}")
        given = dict(values)
        structure = given.get("structured_outputs")
        if isinstance(structure, Mapping):
            given["structured_outputs"] = StructuredOutputs.of(structure)
        return cls(**given)

    def check_vocabulary(self, vocabulary: int) -> None:
        """Raises RequestError naming the field that holds an id which a model of `vocabulary` ids has not."""
        named = {
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids or (),
            "stop_token_ids": self.stop_token_ids,
        }
        for name, ids in named.items():
            for id in ids:
                if id >= vocabulary:
                    raise RequestError(f"{name} has id {id}: this model's ids are 0 to {vocabulary - 1}")

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is always taken."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """Whether the choice depends on which ids were there before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def masks(self) -> bool:
        """Whether some ids are ever ruled out."""
        return bool(self.min_tokens or self.allowed_token_ids is not None or self.structured_outputs is not None)

    @property
    def suffix(self) -> Suffix:
        """The least suffix that this request needs."""
        if self.penalizes or self.masks or self.logit_bias or self.logprobs is not None:
            return Suffix.FULL
        return Suffix.GREEDY if self.greedy else Suffix.SAMPLED

    def settings(self) -> tuple[float, float, float, float]:
        """The row of the slot `params`: 1 / temperature, min_p, top_p, noise scale."""
        if self.greedy:
            return 1.0, 0.0, 1.0, 0.0
        return 1.0 / self.temperature, self.min_p, self.top_p, 1.0

    def penalties(self) -> tuple[float, float, float]:
        """The row of the slot `penalties`."""
        return self.repetition_penalty, self.presence_penalty, self.frequency_penalty

    def banned(self, count: int, ends: Collection[int]) -> tuple[int, ...]:
        """Ids that may not be chosen as the answer's token number `count` (from 0), given those that would end it."""
        return tuple(ends) if count < self.min_tokens else ()

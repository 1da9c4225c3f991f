"""How the next token is chosen: a request's parameters, and the suffix that a step graph gets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from poot_executor.dtype import F32, I32, U32, DType
from poot_executor.errors import RequestError
from poot_executor.graph import primitives as p
from poot_executor.graph.functional import non_finite
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.traced import Traced
from poot_llm.blocks.step import LAST_TOKEN, Step

SEED = SlotKey(SlotKind.SAMPLER, "seed")
PARAMS = SlotKey(SlotKind.SAMPLER, "params")
TOP_K = SlotKey(SlotKind.SAMPLER, "top_k")

MAX_SEED = (1 << 64) - 1
MAX_TOP_K = (1 << 31) - 1
MAX_TOKENS = (1 << 31) - 1
MAX_STOPS = 64
LEAST_TEMPERATURE = 1e-5
"""Below it 1 / temperature times a logit leaves float32; 0 itself is greedy."""


class Suffix(Enum):
    """What is appended to a step: GREEDY takes the argmax, SAMPLED draws by a row's settings (a row
    of temperature 0 is greedy in it too).
    """

    GREEDY = "greedy"
    SAMPLED = "sampled"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is answered. Raises RequestError naming the field that is out of range.

    - `temperature`: 0 is greedy; `top_k`: 0 keeps all; `top_p` in (0, 1]; `min_p` in [0, 1].
    - `seed`: 0 to 2^64 - 1; None draws one when the request is opened.
    - `max_tokens`: None goes on until the capacity is full.
    - `stop`: texts that end the answer and are not part of it; `stop_token_ids`: ids that do.
    - `ignore_eos`: the checkpoint's own end-of-sequence ids do not end the answer.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        temperature = _number("temperature", self.temperature)
        if temperature != 0 and not LEAST_TEMPERATURE <= temperature <= 100:
            raise RequestError(f"temperature is {temperature:g}: 0 (greedy) or {LEAST_TEMPERATURE:g} to 100")
        if not 0 < _number("top_p", self.top_p) <= 1:
            raise RequestError(f"top_p is {self.top_p:g}: above 0, at most 1")
        if not 0 <= _number("min_p", self.min_p) <= 1:
            raise RequestError(f"min_p is {self.min_p:g}: 0 to 1")
        _whole("top_k", self.top_k, 0, MAX_TOP_K)
        if self.seed is not None:
            _whole("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        object.__setattr__(self, "stop", _stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos is {self.ignore_eos!r}: true or false")

    @property
    def greedy(self) -> bool:
        """Whether the largest logit is always taken."""
        return self.temperature == 0

    @property
    def suffix(self) -> Suffix:
        """The suffix that this request needs."""
        return Suffix.GREEDY if self.greedy else Suffix.SAMPLED

    def settings(self) -> tuple[float, float, float, float]:
        """The row of PARAMS: 1 / temperature, min_p, top_p, noise scale."""
        if self.greedy:
            return 1.0, 0.0, 1.0, 0.0
        return 1.0 / self.temperature, self.min_p, self.top_p, 1.0


def append_suffix(step: Step, suffix: Suffix, logits: Traced) -> None:
    """Choose each row's token from logits f32[rows, vocabulary], on the device.

    Outputs `token` i32[rows] and `non_finite` i32[rows] (1: the raw logits hold NaN or +inf, and the
    token means nothing); the state `last_token` takes the token of rows that are not spare. Random
    bits are keyed by the position that the chosen token will have.
    """
    builder, rows = step.builder, step.shape.rows
    if suffix is Suffix.GREEDY:
        token = p.argmax(logits, 1)
    else:
        slots = {key: builder.slot(key, kind) for key, kind in sampler_types(rows).items()}
        chosen = step.position + step.last + 1
        token = p.sample_token(logits, slots[SEED], chosen, slots[PARAMS], slots[TOP_K])
    builder.output("token", token)
    builder.output("non_finite", non_finite(logits))
    before = builder.state(LAST_TOKEN, TensorType((rows,), I32))
    builder.next_state(LAST_TOKEN, p.select(step.last >= 0, token, before))


def sampler_types(rows: int) -> Mapping[SlotKey, TensorType]:
    """The slots of the suffix SAMPLED."""
    return MappingProxyType(
        {
            SEED: TensorType((rows, 2), U32),
            PARAMS: TensorType((rows, 4), F32),
            TOP_K: TensorType((rows,), I32),
        }
    )


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """One row of the sampler's slots."""

    seed: int
    params: SamplingParams


def sampler_inputs(rows: Mapping[int, SamplerRow], count: int) -> dict[SlotKey, NDArray[np.generic]]:
    """The slots of `count` rows; rows that are not given are greedy."""
    seed = np.zeros((count, 2), DType.U32.numpy)
    params = np.tile(np.array([1, 0, 1, 0], np.float32), (count, 1))
    top_k = np.zeros(count, DType.I32.numpy)
    for place, row in rows.items():
        seed[place] = row.seed & 0xFFFFFFFF, row.seed >> 32
        params[place] = row.params.settings()
        top_k[place] = 0 if row.params.greedy else row.params.top_k
    return {SEED: seed, PARAMS: params, TOP_K: top_k}


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{name} is {value!r}: a finite number is needed")
    return value


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(f"{name} is {value!r}: a whole number from {least} to {most}")


def _stops(values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RequestError(f"stop is {values!r}: a list of strings")
    stops = tuple(values)
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop has {len(stops)} strings, at most {MAX_STOPS}")
    for index, text in enumerate(stops):
        if not isinstance(text, str) or not text:
            raise RequestError(f"stop[{index}] is {text!r}: a string that is not empty")
    return stops


def _ids(values: object) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RequestError(f"stop_token_ids is {values!r}: a list of token ids")
    ids = tuple(values)
    for index, id in enumerate(ids):
        _whole(f"stop_token_ids[{index}]", id, 0, MAX_TOKENS)
    return ids

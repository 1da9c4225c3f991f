"""The suffixes of a step, and the slots that each of them has: what a driver fills and a graph reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from poot_executor.dtype import F32, I32, U32
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind

SEED = SlotKey(SlotKind.SAMPLER, "seed")
PARAMS = SlotKey(SlotKind.SAMPLER, "params")
TOP_K = SlotKey(SlotKind.SAMPLER, "top_k")
PENALTIES = SlotKey(SlotKind.SAMPLER, "penalties")
HISTORY = SlotKey(SlotKind.SAMPLER, "history")
COUNTS = SlotKey(SlotKind.SAMPLER, "counts")
AHEAD = SlotKey(SlotKind.SAMPLER, "ahead")
BIAS_IDS = SlotKey(SlotKind.SAMPLER, "bias_ids")
BIAS_VALUES = SlotKey(SlotKind.SAMPLER, "bias_values")
MASK = SlotKey(SlotKind.SAMPLER, "mask")

BIAS_ENTRIES = 300
"""Ids that a row can bias."""
MOST_LOGPROBS = 20
"""Most likely ids that a row's logprobs are given for."""
NO_ID = -1
"""In HISTORY and BIAS_IDS: the entry is not used."""


class Suffix(Enum):
    """What is appended to a step, from the cheapest to the one that serves every request.

    GREEDY takes the argmax. SAMPLED draws by a row's settings (a row of temperature 0 is greedy in it too). FULL also
    has bias, penalties, masks and logprobs, with neutral values where a row does not use one. Each serves every row
    that one before it does, with the same tokens.
    """

    GREEDY = "greedy"
    SAMPLED = "sampled"
    FULL = "full"

    def serves(self, other: Suffix) -> bool:
        """Whether a step with this suffix can answer a row that needs the other one."""
        order = list(Suffix)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class SamplerShape:
    """What the sampler slots of a step depend on: rows, ids of the vocabulary, and distinct ids that a row's history
    can hold (the span of the step: a row never holds more tokens).
    """

    rows: int
    vocabulary: int
    history: int

    @property
    def mask_words(self) -> int:
        """u32 words of a row's mask."""
        return -(-self.vocabulary // 32)


def slot_types(suffix: Suffix, shape: SamplerShape) -> Mapping[SlotKey, TensorType]:
    """The slots of a suffix; docs/contract.md says what they mean."""
    rows = shape.rows
    types: dict[SlotKey, TensorType] = {}
    if suffix is not Suffix.GREEDY:
        types[SEED] = TensorType((rows, 2), U32)
        types[PARAMS] = TensorType((rows, 4), F32)
        types[TOP_K] = TensorType((rows,), I32)
    if suffix is Suffix.FULL:
        types[PENALTIES] = TensorType((rows, 3), F32)
        types[HISTORY] = TensorType((rows, shape.history), I32)
        types[COUNTS] = TensorType((rows, shape.history), I32)
        types[AHEAD] = TensorType((rows,), I32)
        types[BIAS_IDS] = TensorType((rows, BIAS_ENTRIES), I32)
        types[BIAS_VALUES] = TensorType((rows, BIAS_ENTRIES), F32)
        types[MASK] = TensorType((rows, shape.mask_words), U32)
    return types

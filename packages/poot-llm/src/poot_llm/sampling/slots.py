"""The sampler's slots as arrays: one place where a step's rows become what the device reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import BindError, RequestError
from poot_executor.graph.keys import SlotKey
from poot_llm.sampling.history import History
from poot_llm.sampling.keys import (
    AHEAD,
    BIAS_IDS,
    BIAS_VALUES,
    COUNTS,
    HISTORY,
    MASK,
    NO_ID,
    PARAMS,
    PENALTIES,
    SEED,
    TOP_K,
    SamplerShape,
    Suffix,
    slot_types,
)
from poot_llm.sampling.params import SamplingParams

EVERY_BIT = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, eq=False)
class SamplerRow:
    """What one row's token is chosen by.

    - `history`: needed where the parameters penalize. `ahead` says that the row's `last_token` state is a token of the
      answer which the history has not: the step is submitted before that one is known.
    - `mask`: u32[ceil(vocabulary / 32)], the ids that a guide allows; None allows all.
    - `banned`: ids that are ruled out on top (`SamplingParams.banned`).
    """

    seed: int
    params: SamplingParams
    history: History | None = None
    ahead: bool = False
    mask: NDArray[np.uint32] | None = None
    banned: tuple[int, ...] = ()


class SamplerSlots:
    """The slots of one suffix and shape. Arrays are made once; `fill` writes the rows that change.

    One step's arrays are the next one's: hand them to the executor, which takes the bytes, before filling again.
    """

    __slots__ = ("_arrays", "_fixed", "shape", "suffix")

    def __init__(self, suffix: Suffix, shape: SamplerShape) -> None:
        self.suffix = suffix
        self.shape = shape
        types = slot_types(suffix, shape)
        self._arrays: dict[SlotKey, NDArray[Any]] = {key: np.zeros(t.shape, t.dtype.numpy) for key, t in types.items()}
        self._fixed: list[tuple[int, SamplingParams] | None] = [None] * shape.rows
        """By row, the seed and parameters whose values the arrays hold; None is neutral."""
        if suffix is not Suffix.GREEDY:
            for row in range(shape.rows):
                self._write_fixed(row, None)
        if suffix is Suffix.FULL:
            self._arrays[HISTORY].fill(NO_ID)
            self._arrays[MASK].fill(EVERY_BIT)

    def fill(self, rows: Mapping[int, SamplerRow]) -> Mapping[SlotKey, NDArray[Any]]:
        """The slots of a step with these rows; the others are greedy and neutral.

        Raises BindError for a row that this suffix does not serve, that is beyond the shape, or whose history is
        missing or too long; RequestError for a row of which nothing may be chosen.
        """
        for row, item in rows.items():
            self._check(row, item)
        if self.suffix is Suffix.GREEDY:
            return self._arrays
        for row in range(self.shape.rows):
            item = rows.get(row)
            fixed = None if item is None else (item.seed, item.params)
            held = self._fixed[row]
            same = held is fixed or (held and fixed and held[0] == fixed[0] and held[1] is fixed[1])
            if not same:
                self._write_fixed(row, fixed)
            if self.suffix is Suffix.FULL:
                self._write_history(row, item)
                self._write_mask(row, item)
        return self._arrays

    def _check(self, row: int, item: SamplerRow) -> None:
        if not 0 <= row < self.shape.rows:
            raise BindError(f"row {row} of a step of {self.shape.rows} rows")
        if not self.suffix.serves(item.params.suffix):
            raise BindError(f"row {row} needs the suffix {item.params.suffix.value}, the step has {self.suffix.value}")
        if item.params.penalizes and item.history is None:
            raise BindError(f"row {row} penalizes what came before, and no history is given")
        if item.history is not None and len(item.history) > self.shape.history:
            raise BindError(f"row {row} holds {len(item.history)} ids, the step {self.shape.history}")
        if self.suffix is not Suffix.FULL and (item.mask is not None or item.banned):
            raise BindError(f"row {row} has a mask, and the step's suffix {self.suffix.value} has none")

    def _write_fixed(self, row: int, fixed: tuple[int, SamplingParams] | None) -> None:
        self._fixed[row] = fixed
        seed, params = (0, NEUTRAL) if fixed is None else fixed
        arrays = self._arrays
        arrays[SEED][row] = seed & 0xFFFFFFFF, seed >> 32
        arrays[PARAMS][row] = params.settings()
        arrays[TOP_K][row] = 0 if params.greedy else params.top_k
        if self.suffix is Suffix.FULL:
            arrays[PENALTIES][row] = params.penalties()
            bias = params.logit_bias
            arrays[BIAS_IDS][row] = NO_ID
            arrays[BIAS_VALUES][row] = 0
            arrays[BIAS_IDS][row, : len(bias)] = list(bias)
            arrays[BIAS_VALUES][row, : len(bias)] = list(bias.values())

    def _write_history(self, row: int, item: SamplerRow | None) -> None:
        ids, counts = self._arrays[HISTORY][row], self._arrays[COUNTS][row]
        history = item.history if item is not None and item.params.penalizes else None
        length = 0 if history is None else len(history)
        if history is not None:
            ids[:length] = history.ids
            counts[:length] = history.counts
        self._arrays[AHEAD][row] = history is not None and item is not None and item.ahead
        ids[length:] = NO_ID
        counts[length:] = 0

    def _write_mask(self, row: int, item: SamplerRow | None) -> None:
        words = self._arrays[MASK][row]
        if item is None or (item.mask is None and not item.banned and item.params.allowed_token_ids is None):
            words[:] = EVERY_BIT
            return
        words[:] = allowed_bits(self.shape.vocabulary, item.params.allowed_token_ids)
        if item.mask is not None:
            if item.mask.shape != words.shape or item.mask.dtype != words.dtype:
                raise BindError(f"row {row} has a mask {item.mask.dtype}{item.mask.shape}, not uint32{words.shape}")
            words &= item.mask
        for id in item.banned:
            if 0 <= id < self.shape.vocabulary:
                words[id >> 5] &= np.uint32(EVERY_BIT ^ (1 << (id & 31)))
        if not words.any():
            raise RequestError(f"row {row}: its mask, allowed_token_ids and min_tokens leave no token to choose")


NEUTRAL = SamplingParams()
"""The parameters of a row that is not used."""


def allowed_bits(vocabulary: int, ids: tuple[int, ...] | None = None) -> NDArray[np.uint32]:
    """u32[ceil(vocabulary / 32)]: a bit for each id that is allowed, and none beyond the vocabulary. None is all."""
    flags = np.zeros(-(-vocabulary // 32) * 32, np.uint8)
    if ids is None:
        flags[:vocabulary] = 1
    else:
        flags[[id for id in ids if id < vocabulary]] = 1
    return np.packbits(flags, bitorder="little").view("<u4").astype(np.uint32)


def sampler_inputs(rows: Mapping[int, SamplerRow], count: int) -> dict[SlotKey, NDArray[Any]]:
    """New arrays for the suffix SAMPLED of `count` rows; those that are not given are greedy. `SamplerSlots` does the
    same for every suffix without making arrays in each step.
    """
    return dict(SamplerSlots(Suffix.SAMPLED, SamplerShape(count, 1, 1)).fill(rows))

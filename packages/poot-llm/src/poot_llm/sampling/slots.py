"""The sampler's slots as arrays: one place where a step's rows become what the device reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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


class SamplerRow(NamedTuple):
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


NEUTRAL = SamplingParams()
"""The parameters of a row that is not used."""


@dataclass(slots=True)
class _Held:
    """What the arrays hold of one row: seed and parameters, whether these penalize and which ids they allow, which
    history and how many of its additions, and whether the mask rules anything out. `item` is the row that all of it is
    of, where nothing of that but the history can have changed as long as it is the same one. `ids` and `counts` are the
    row's of the slots HISTORY and COUNTS, empty where the suffix has none.
    """

    ids: NDArray[np.int32]
    counts: NDArray[np.int32]
    item: SamplerRow | None = None
    seed: int = 0
    params: SamplingParams = NEUTRAL
    penalizes: bool = False
    allowed: NDArray[np.uint32] | None = None
    history: History | None = None
    additions: int = 0
    ahead: bool = False
    masked: bool = False


class SamplerSlots:
    """The slots of one suffix and shape. Arrays are made once; `fill` writes what changes.

    One step's arrays are the next one's: hand them to the executor, which takes the bytes, before filling again.
    """

    __slots__ = ("_all", "_arrays", "_held", "_histories", "_mask", "_rows", "_used", "shape", "suffix")

    def __init__(self, suffix: Suffix, shape: SamplerShape) -> None:
        self.suffix = suffix
        self.shape = shape
        types = slot_types(suffix, shape)
        self._arrays: dict[SlotKey, NDArray[Any]] = {key: np.zeros(t.shape, t.dtype.numpy) for key, t in types.items()}
        none = np.zeros((shape.rows, 0), np.int32)
        histories = (self._arrays.get(key, none) for key in (HISTORY, COUNTS))
        self._held = [_Held(ids, counts) for ids, counts in zip(*histories, strict=True)]
        self._used: set[int] = set()
        self._rows: Mapping[int, SamplerRow] | None = None
        self._histories: list[tuple[int, _Held, History]] = []
        if suffix is Suffix.FULL:
            self._all = allowed_bits(shape.vocabulary)
            self._mask = self._arrays[MASK]
            self._arrays[HISTORY].fill(NO_ID)
            self._mask.fill(EVERY_BIT)
        for row, held in enumerate(self._held):
            self._write_params(row, held)

    def fill(self, rows: Mapping[int, SamplerRow]) -> Mapping[SlotKey, NDArray[Any]]:
        """The slots of a step with these rows; the others are greedy and neutral. Of a mapping that is handed in twice
        in a row only histories are looked at again: nothing else of it may have changed.

        Raises BindError for a row that this suffix does not serve, that is beyond the shape, or whose history or mask
        is missing or does not fit; RequestError for a row of which nothing may be chosen.
        """
        if rows is not self._rows:
            self._rows = None
            self._fill_rows(rows)
            self._rows = rows
        most = self.shape.history
        for row, held, history in self._histories:
            if history.length > most:
                raise BindError(f"row {row} holds {history.length} ids, the step {most}")
            # Mostly one token is new: two numbers are written faster than arrays of them are made for all rows.
            held.additions = history.write_changes(held.additions, held.ids, held.counts)
        return self._arrays

    def _fill_rows(self, rows: Mapping[int, SamplerRow]) -> None:
        full = self.suffix is Suffix.FULL
        for row in self._used.difference(rows):
            self._held[row].item = None
            self._take(row, 0, NEUTRAL)
            if full:
                self._write_history(row, None, ahead=False)
                self._write_mask(row, None, ())
        self._histories.clear()
        for row, item in rows.items():
            if not 0 <= row < self.shape.rows:
                raise BindError(f"row {row} of a step of {self.shape.rows} rows")
            held = self._held[row]
            if held.item is not item:
                self._fill_row(row, held, item)
            if held.history is not None:
                self._histories.append((row, held, held.history))
        self._used = set(rows)

    def _fill_row(self, row: int, held: _Held, item: SamplerRow) -> None:
        held.item = None
        if held.params is not item.params or held.seed != item.seed:
            self._take(row, item.seed, item.params)
        if self.suffix is Suffix.FULL:
            self._write_history(row, item.history, ahead=item.ahead)
            self._write_mask(row, item.mask, item.banned)
        elif item.mask is not None or item.banned:
            raise BindError(f"row {row} has a mask, and the step's suffix {self.suffix.value} has none")
        if item.mask is None:
            held.item = item

    def _take(self, row: int, seed: int, params: SamplingParams) -> None:
        if not self.suffix.serves(params.suffix):
            raise BindError(f"row {row} needs the suffix {params.suffix.value}, the step has {self.suffix.value}")
        self._used.add(row)
        held = self._held[row]
        held.seed, held.params, held.penalizes = seed, params, params.penalizes
        self._write_params(row, held)

    def _write_params(self, row: int, held: _Held) -> None:
        arrays, params = self._arrays, held.params
        if self.suffix is Suffix.GREEDY:
            return
        arrays[SEED][row] = held.seed & 0xFFFFFFFF, held.seed >> 32
        arrays[PARAMS][row] = params.settings()
        arrays[TOP_K][row] = 0 if params.greedy else params.top_k
        if self.suffix is Suffix.FULL:
            arrays[PENALTIES][row] = params.penalties()
            bias, allowed = params.logit_bias, params.allowed_token_ids
            arrays[BIAS_IDS][row] = NO_ID
            arrays[BIAS_VALUES][row] = 0
            arrays[BIAS_IDS][row, : len(bias)] = list(bias)
            arrays[BIAS_VALUES][row, : len(bias)] = list(bias.values())
            held.allowed = None if allowed is None else allowed_bits(self.shape.vocabulary, allowed)

    def _write_history(self, row: int, history: History | None, *, ahead: bool) -> None:
        held = self._held[row]
        if not held.penalizes:
            history = None
        elif history is None:
            raise BindError(f"row {row} penalizes what came before, and no history is given")
        late = history is not None and ahead
        if late is not held.ahead:
            self._arrays[AHEAD][row] = held.ahead = late
        if history is held.history:
            return
        ids, counts = held.ids, held.counts
        if held.history is not None:
            ids.fill(NO_ID)
            counts.fill(0)
        held.history, held.additions = history, 0
        if history is not None:
            length = min(history.length, self.shape.history)
            ids[:length], counts[:length] = history.ids[:length], history.counts[:length]
            held.additions = history.additions

    def _write_mask(self, row: int, mask: NDArray[np.uint32] | None, banned: tuple[int, ...]) -> None:
        held = self._held[row]
        if mask is None and not banned and held.allowed is None:
            if held.masked:
                self._mask[row] = EVERY_BIT
                held.masked = False
            return
        words = self._mask[row]
        if mask is not None and (mask.shape != words.shape or mask.dtype != words.dtype):
            raise BindError(f"row {row} has a mask {mask.dtype}{mask.shape}, not uint32{words.shape}")
        held.masked = True
        allowed = self._all if held.allowed is None else held.allowed
        np.bitwise_and(allowed, allowed if mask is None else mask, words)
        for id in banned:
            if 0 <= id < self.shape.vocabulary:
                words[id >> 5] &= np.uint32(EVERY_BIT ^ (1 << (id & 31)))
        if not words.any():
            raise RequestError(f"row {row}: its mask, allowed_token_ids and min_tokens leave no token to choose")


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

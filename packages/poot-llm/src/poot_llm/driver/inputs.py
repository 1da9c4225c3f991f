"""What a request and a step are given: prompts checked, slots filled."""

from __future__ import annotations

from collections.abc import Sequence as Items
from operator import index as to_int
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import RequestError
from poot_executor.graph.keys import SlotKey
from poot_llm.blocks.step import FROM_STATE, LAST, POS, SPARE, TOKEN, StepShape
from poot_llm.driver.sequence import Sequence
from poot_llm.sampling import SamplerRow, Suffix, sampler_inputs

SlotArrays = dict[SlotKey, NDArray[Any]]


def checked_prompt(prompt_ids: Items[int], capacity: int, vocabulary: int) -> tuple[int, ...]:
    """The prompt's ids. Raises RequestError for one that is empty, holds what is no token id, or
    leaves no room for one more token (with both numbers).
    """
    try:
        ids = tuple(map(to_int, prompt_ids))
    except TypeError as error:
        raise RequestError(f"prompt: token ids are whole numbers ({error})") from None
    if not ids:
        raise RequestError("prompt: it is empty, at least one token is needed")
    if len(ids) + 1 > capacity:
        raise RequestError(
            f"prompt: {len(ids)} tokens and one to generate are {len(ids) + 1}, the capacity is {capacity}"
        )
    for place, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            raise RequestError(f"prompt[{place}] is {token}: token ids are 0 to {vocabulary - 1}")
    return ids


def step_inputs(sequences: Items[Sequence], shape: StepShape, suffix: Suffix) -> SlotArrays:
    """The slots of a step in which each sequence takes as many pending ids as fit; the other rows
    are spare.
    """
    tokens = np.zeros((shape.rows, shape.tokens), np.int32)
    position = np.zeros(shape.rows, np.int32)
    last = np.full(shape.rows, SPARE, np.int32)
    for sequence in sequences:
        ids = sequence.next_ids(shape.tokens)
        tokens[sequence.row, : len(ids)] = ids
        position[sequence.row] = sequence.cached
        last[sequence.row] = len(ids) - 1
    inputs: SlotArrays = {TOKEN: tokens, POS: position, LAST: last}
    if suffix is Suffix.SAMPLED:
        rows = {s.row: SamplerRow(s.seed, s.params) for s in sequences}
        inputs.update(sampler_inputs(rows, shape.rows))
    return inputs


def following_inputs(sequence: Sequence, shape: StepShape, suffix: Suffix) -> SlotArrays:
    """The slots of the decode step that comes after the one which caches all pending ids: its token
    is read from the state.
    """
    inputs = step_inputs([sequence], shape, suffix)
    inputs[TOKEN][sequence.row] = FROM_STATE
    inputs[POS][sequence.row] = len(sequence)
    inputs[LAST][sequence.row] = 0
    return inputs

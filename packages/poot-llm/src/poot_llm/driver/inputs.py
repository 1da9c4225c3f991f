"""What a request and a step are given: prompts and inputs checked, slots filled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from operator import index as to_int
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.errors import BindError, RequestError
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_llm.blocks.step import StepShape

SlotArrays = dict[SlotKey, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class InputRows:
    """Values for an input that a model declares: `rows` f32[n, width] in place of what it computes for the prompt's
    positions `at`, which ascend.
    """

    at: tuple[int, ...]
    rows: NDArray[np.float32]

    def within(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Those of positions [start, stop), with their places from `start`."""
        at = np.asarray(self.at, np.int64)
        inside = (at >= start) & (at < stop)
        return at[inside] - start, self.rows[inside]


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


def checked_inputs(
    given: Mapping[str, InputRows],
    declared: Mapping[str, Callable[[Any], int]],
    config: Any,
    family: str,
    prompt: int,
) -> dict[str, InputRows]:
    """The inputs of a prompt of so many ids, with rows of their own. An input of no positions is left out.

    Raises BindError naming an input that the family does not declare, and RequestError naming one of a wrong shape or
    dtype, at a position outside the prompt, or that holds NaN or infinity.
    """
    checked = {}
    for name, item in given.items():
        if name not in declared:
            known = ", ".join(declared) or "none"
            raise BindError(f"family {family} declares no input {name!r}: its inputs are {known}")
        width, rows, at = declared[name](config), np.asarray(item.rows), tuple(map(to_int, item.at))
        if rows.dtype != np.float32 or rows.shape != (len(at), width):
            raise RequestError(
                f"input {name} is {rows.dtype}{list(rows.shape)}, not float32{[len(at), width]} for {len(at)} positions"
            )
        if any(b <= a for a, b in zip((-1, *at), at, strict=False)) or (at and at[-1] >= prompt):
            raise RequestError(f"input {name}: positions ascend within the prompt, 0 to {prompt - 1}, not {list(at)}")
        if not np.isfinite(rows).all():
            row = int(np.argmin(np.isfinite(rows).all(1)))
            raise RequestError(f"input {name}: the row of position {at[row]} holds NaN or infinity")
        if at:
            checked[name] = InputRows(at, rows.copy())
    return checked


def supplied_slots(
    shape: StepShape, widths: Mapping[str, int], rows: Items[tuple[int, int, int, Mapping[str, InputRows]]]
) -> SlotArrays:
    """The slots of inputs by name and width: of each (row, start, count, inputs) those in [start, start + count)."""
    slots: SlotArrays = {}
    for name, width in widths.items():
        values = np.zeros((shape.rows, shape.tokens, width), np.float32)
        given = np.zeros((shape.rows, shape.tokens), np.int32)
        for row, start, count, inputs in rows:
            if name in inputs:
                places, found = inputs[name].within(start, start + count)
                values[row, places], given[row, places] = found, 1
        slots[SlotKey(SlotKind.INPUT, name)] = values
        slots[SlotKey(SlotKind.INPUT, f"{name}.given")] = given
    return slots

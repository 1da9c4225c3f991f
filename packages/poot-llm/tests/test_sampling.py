"""Sampling parameters refused by field, and the suffix that a step gets for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from poot_eval import eval
from poot_executor.dtype import F32, I32
from poot_executor.errors import RequestError
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.sampling import sampled_tokens
from poot_llm.blocks.step import LAST, LAST_TOKEN, POS, TOKEN, StepShape, begin_step
from poot_llm.sampling import (
    PARAMS,
    SEED,
    TOP_K,
    SamplerRow,
    SamplerShape,
    SamplingParams,
    Suffix,
    append_suffix,
    sampler_inputs,
    slot_types,
)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": None}, "top_p"),
        ({"min_p": -0.01}, "min_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1 << 31}, "top_k"),
        ({"top_k": 2.0}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ("a", "")}, r"stop\[1\]"),
        ({"stop": (3,)}, r"stop\[0\]"),
        ({"stop": ("a",) * 65}, "stop has 65"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": (4, -1)}, r"stop_token_ids\[1\]"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
)
def test_a_field_out_of_range_is_named(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(RequestError, match=f"^{name}"):
        SamplingParams(**fields)


def test_the_limits_themselves_are_fine() -> None:
    SamplingParams(temperature=1e-5, top_p=1, min_p=1, top_k=(1 << 31) - 1, seed=(1 << 64) - 1, max_tokens=1)
    SamplingParams(temperature=100, top_p=1e-9, min_p=0, top_k=0, seed=0)
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2])  # type: ignore[arg-type]
    assert params.stop == ("a", "b") and params.stop_token_ids == (1, 2)


def test_temperature_zero_is_greedy_whatever_else_is_set() -> None:
    greedy = SamplingParams(top_k=5, top_p=0.5, min_p=0.5)
    assert greedy.greedy and greedy.suffix is Suffix.GREEDY
    assert greedy.settings() == (1.0, 0.0, 1.0, 0.0)
    drawn = SamplingParams(temperature=0.5, top_p=0.9, min_p=0.05)
    assert drawn.suffix is Suffix.SAMPLED and drawn.settings() == (2.0, 0.05, 0.9, 1.0)


def test_slots_of_rows() -> None:
    seed = 0x89ABCDEF_01234567
    rows = {1: SamplerRow(seed, SamplingParams(temperature=0.25, top_k=7)), 2: SamplerRow(5, SamplingParams(top_k=9))}
    inputs = sampler_inputs(rows, 4)
    assert inputs[SEED].tolist() == [[0, 0], [0x01234567, 0x89ABCDEF], [5, 0], [0, 0]]
    assert inputs[TOP_K].tolist() == [0, 7, 0, 0]
    assert inputs[PARAMS].tolist() == [[1, 0, 1, 0], [4, 0, 1, 1], [1, 0, 1, 0], [1, 0, 1, 0]]
    for key, kind in slot_types(Suffix.SAMPLED, SamplerShape(4, 1, 1)).items():
        assert (inputs[key].shape, inputs[key].dtype) == (kind.shape, kind.dtype.numpy)


LOGITS = SlotKey(SlotKind.INPUT, "logits")


def choose(
    logits: np.ndarray, suffix: Suffix, position: list[int], last: list[int], sampler: dict[SlotKey, Any]
) -> tuple[list[int], list[int], list[int]]:
    """Tokens, non-finite flags and the next last_token (before it: 90, 91 ...) for given logits."""
    rows, vocabulary = logits.shape
    builder = Builder("suffix")
    step = begin_step(builder, StepShape(rows, 4, 64, 64), vocabulary, F32)
    append_suffix(step, suffix, builder.slot(LOGITS, TensorType(logits.shape, F32)))
    graph = builder.build()
    inputs: dict[Any, Any] = {
        TOKEN: np.zeros((rows, 4), np.int32), POS: np.int32(position), LAST: np.int32(last),
        LAST_TOKEN: np.arange(90, 90 + rows, dtype=np.int32), LOGITS: logits, **sampler,
    }  # fmt: skip
    result = eval(graph, inputs)
    assert graph.outputs["token"].type == TensorType((rows,), I32)
    outputs = result.outputs
    return outputs["token"].tolist(), outputs["non_finite"].tolist(), result.state[LAST_TOKEN].tolist()


def test_greedy_takes_the_lowest_of_the_largest() -> None:
    logits = np.float32([[1, 3, 3, 2], [-5, -np.inf, -5, -6], [0, 0, 0, 1]])
    assert choose(logits, Suffix.GREEDY, [0, 3, 0], [0, 3, -1], {}) == ([1, 0, 3], [0, 0, 0], [1, 0, 92])


@pytest.mark.parametrize("suffix", [Suffix.GREEDY, Suffix.SAMPLED])
def test_non_finite_rows_are_told(suffix: Suffix) -> None:
    logits = np.float32([[1, 3, 2], [1, np.nan, 2], [1, np.inf, 2], [1, -np.inf, 2]])
    sampler = {} if suffix is Suffix.GREEDY else sampler_inputs({}, 4)
    chosen, flags, _ = choose(logits, suffix, [0] * 4, [0] * 4, sampler)
    assert flags == [0, 1, 1, 0]
    assert (chosen[0], chosen[3]) == (1, 2) and all(0 <= token < 3 for token in chosen)


def test_a_row_draws_by_its_own_settings_and_position(rng: np.random.Generator) -> None:
    """The bits are keyed by the position that the token will have, not by the row."""
    logits = rng.normal(0, 2, (3, 50)).astype(np.float32)
    logits[1] = logits[0]
    params = SamplingParams(temperature=0.8, top_k=20, top_p=0.95, min_p=0.01)
    row = SamplerRow(12345, params)
    sampler = sampler_inputs({0: row, 1: row}, 3)
    position, last = [7, 9, 2], [2, 0, 1]
    chosen, _, _ = choose(logits, Suffix.SAMPLED, position, last, sampler)
    expected = sampled_tokens(
        logits, sampler[SEED], np.int32([10, 10, 4]), sampler[PARAMS], sampler[TOP_K], Arithmetic("f64", "ascending")
    )
    assert chosen == expected.tolist()
    assert chosen[0] == chosen[1] and chosen[2] == int(logits[2].argmax())

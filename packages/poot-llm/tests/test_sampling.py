"""Sampling parameters refused by field, and the suffix that a step gets for them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from poot_eval import eval
from poot_executor.dtype import F32, I32
from poot_executor.errors import BindError, RequestError
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.sampling import sampled_tokens
from poot_llm.blocks.step import LAST, LAST_TOKEN, POS, TOKEN, StepShape, begin_step
from poot_llm.guided.spec import StructuredOutputs
from poot_llm.sampling import (
    MASK,
    PARAMS,
    SEED,
    TOP_K,
    History,
    SamplerRow,
    SamplerShape,
    SamplerSlots,
    SamplingParams,
    Suffix,
    allowed_bits,
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
        ({"n": 0}, "n is 0"),
        ({"n": 129}, "n is 129"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": "1"}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty"),
        ({"logit_bias": [3]}, "logit_bias"),
        ({"logit_bias": {-1: 0.0}}, "logit_bias id"),
        ({"logit_bias": {"x": 0.0}}, "logit_bias id"),
        ({"logit_bias": {"3": 1.0, 3: 1.0}}, "logit_bias has id 3 twice"),
        ({"logit_bias": {3: 100.5}}, r"logit_bias\[3\]"),
        ({"logit_bias": {3: None}}, r"logit_bias\[3\]"),
        ({"logit_bias": dict.fromkeys(range(301), 1.0)}, "logit_bias has 301"),
        ({"allowed_token_ids": ()}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": (1, 2.5)}, r"allowed_token_ids\[1\]"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"skip_special_tokens": None}, "skip_special_tokens"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": StructuredOutputs(regex="a"), "min_tokens": 1}, "min_tokens with structured_outputs"),
        ({"structured_outputs": StructuredOutputs(regex="a"), "ignore_eos": True}, "ignore_eos with structured"),
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


def test_a_field_that_is_none_is_refused() -> None:
    assert SamplingParams.of({"top_k": -1, "stop": "end", "logit_bias": {"7": -100}}) == SamplingParams(
        top_k=0, stop=("end",), logit_bias={7: -100.0}
    )
    with pytest.raises(RequestError, match=r"temprature is no sampling parameter; did you mean temperature\?"):
        SamplingParams.of({"temprature": 1.0})
    with pytest.raises(RequestError, match="best_of_breed is no sampling parameter"):
        SamplingParams.of({"best_of_breed": 1})


def test_ids_beyond_the_vocabulary_are_named() -> None:
    for fields, name in (
        ({"logit_bias": {9: 1.0, 10: 1.0}}, "logit_bias"), ({"allowed_token_ids": (3, 10)}, "allowed_token_ids"),
        ({"stop_token_ids": (10,)}, "stop_token_ids"),
    ):  # fmt: skip
        params = SamplingParams.of(fields)
        params.check_vocabulary(11)
        with pytest.raises(RequestError, match=f"^{name} has id 10: this model's ids are 0 to 9"):
            params.check_vocabulary(10)


def test_the_least_suffix_that_serves() -> None:
    assert Suffix.FULL.serves(Suffix.GREEDY) and Suffix.SAMPLED.serves(Suffix.SAMPLED)
    assert not Suffix.GREEDY.serves(Suffix.SAMPLED) and not Suffix.SAMPLED.serves(Suffix.FULL)
    for fields in (
        {"repetition_penalty": 1.1}, {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"logit_bias": {1: 1.0}},
        {"allowed_token_ids": (1,)}, {"min_tokens": 1}, {"logprobs": 0},
        {"structured_outputs": StructuredOutputs(regex="a")},
    ):  # fmt: skip
        assert SamplingParams.of(fields).suffix is Suffix.FULL, fields
        assert SamplingParams.of({**fields, "temperature": 1.0}).suffix is Suffix.FULL
    assert SamplingParams(min_tokens=3).banned(2, {4, 5}) in ((4, 5), (5, 4))
    assert SamplingParams(min_tokens=3).banned(3, {4}) == ()


def test_parameters_cross_a_process() -> None:
    params = SamplingParams(logit_bias={3: 1.0}, stop=("a",), structured_outputs=StructuredOutputs(choice=("x", "y")))
    assert pickle.loads(pickle.dumps(params)) == params


def test_a_history_counts_the_answer() -> None:
    history = History([5, 3, 5], [3, 3, 9])
    assert history.ids.tolist() == [5, 3, 9] and history.counts.tolist() == [0, 2, 1]
    for token in range(100, 140):
        history.add(token)
    history.add(9)
    assert len(history) == 43 and history.counts.tolist() == [0, 2, 2, *[1] * 40]
    assert history.ids.tolist() == [5, 3, 9, *range(100, 140)]


def test_slots_follow_rows_that_come_and_go(rng: np.random.Generator) -> None:
    """Arrays that are filled again and again hold what new ones would."""
    shape = SamplerShape(4, 70, 12)
    kept = SamplerSlots(Suffix.FULL, shape)
    choices = [
        SamplingParams(), SamplingParams(temperature=0.7, top_k=3, seed=1), SamplingParams(presence_penalty=1.0),
        SamplingParams(logit_bias={3: 2.0, 69: -1.0}, logprobs=3), SamplingParams(allowed_token_ids=(0, 69)),
        SamplingParams(min_tokens=2, repetition_penalty=1.5, temperature=1.0),
    ]  # fmt: skip
    for _ in range(150):
        rows = {}
        for place in range(4):
            if rng.random() < 0.7:
                params = choices[rng.integers(len(choices))]
                history = History(
                    rng.integers(0, 70, rng.integers(6)).tolist(), rng.integers(0, 70, rng.integers(6)).tolist()
                )
                mask = allowed_bits(70, (0, 1, 2, 69)) if rng.random() < 0.3 else None
                banned = (1, 2) if rng.random() < 0.3 else ()
                rows[place] = SamplerRow(int(rng.integers(1 << 40)), params, history, rng.random() < 0.5, mask, banned)
        again, new = kept.fill(rows), SamplerSlots(Suffix.FULL, shape).fill(rows)
        types = slot_types(Suffix.FULL, shape)
        assert set(again) == set(new) == set(types)
        for key, type in types.items():
            assert (again[key].shape, again[key].dtype) == (type.shape, type.dtype.numpy)
            assert again[key].tolist() == new[key].tolist(), key
        for place, row in rows.items():
            held = np.flatnonzero(np.unpackbits(again[MASK][place].view(np.uint8), bitorder="little"))
            expected = set(range(96)) if row.mask is None and not row.banned else set(range(70))
            if row.mask is not None:
                expected &= {0, 1, 2, 69}
            if row.params.allowed_token_ids is not None:
                expected &= {0, 69}
            assert set(held.tolist()) == expected - set(row.banned)


def test_rows_that_do_not_fit_are_refused() -> None:
    shape = SamplerShape(2, 40, 3)
    full, sampled, greedy = (SamplerSlots(suffix, shape) for suffix in (Suffix.FULL, Suffix.SAMPLED, Suffix.GREEDY))
    penalizing = SamplingParams(presence_penalty=1.0)
    for slots, row, message in (
        (full, SamplerRow(0, penalizing), "no history"),
        (full, SamplerRow(0, penalizing, History([1, 2, 3, 4])), "holds 4 ids, the step 3"),
        (sampled, SamplerRow(0, penalizing, History([1])), "needs the suffix full"),
        (greedy, SamplerRow(0, SamplingParams(temperature=1.0)), "needs the suffix sampled"),
        (sampled, SamplerRow(0, SamplingParams(), mask=allowed_bits(40)), "has a mask"),
        (full, SamplerRow(0, SamplingParams(), mask=allowed_bits(80)), "not uint32"),
    ):
        with pytest.raises(BindError, match=message):
            slots.fill({0: row})
    with pytest.raises(BindError, match="row 2 of a step of 2"):
        full.fill({2: SamplerRow(0, SamplingParams())})
    with pytest.raises(RequestError, match="leave no token"):
        full.fill({1: SamplerRow(0, SamplingParams(allowed_token_ids=(3,)), banned=(3,))})


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

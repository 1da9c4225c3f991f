"""The suffix FULL against numpy: bias, penalties, mask, logprobs, each row by its own values, on every device."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval import eval
from poot_eval.conformance.matching import assert_device_matches
from poot_eval.conformance.opening import open_or_skip
from poot_executor.device import Device
from poot_executor.dtype import F32
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.numerics import Arithmetic
from poot_executor.graph.sampling import sampled_tokens
from poot_llm.blocks.step import FROM_STATE, LAST, LAST_TOKEN, POS, TOKEN, StepShape, begin_step
from poot_llm.sampling import (
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
)
from poot_llm.sampling.logprobs import read_logprobs

LOGITS = SlotKey(SlotKind.INPUT, "logits")
SPAN = 16
EXACT = Arithmetic("f64", "ascending")
Arrays = dict[Any, NDArray[Any]]


def full_step(rows: int, vocabulary: int) -> Graph:
    """A decode step of given logits with the suffix FULL."""
    builder = Builder("full")
    step = begin_step(builder, StepShape(rows, 1, SPAN, SPAN), vocabulary, F32)
    append_suffix(step, Suffix.FULL, builder.slot(LOGITS, TensorType((rows, vocabulary), F32)))
    return builder.build()


def full_inputs(logits: NDArray[np.float32], rows: Mapping[int, SamplerRow], last_token: list[int]) -> Arrays:
    """A row's position is 5 more than its number; rows that are ahead take their token from the state."""
    count, vocabulary = logits.shape
    slots = SamplerSlots(Suffix.FULL, SamplerShape(count, vocabulary, SPAN)).fill(rows)
    tokens = np.zeros((count, 1), np.int32)
    tokens[[row for row, item in rows.items() if item.ahead]] = FROM_STATE
    last = np.where(np.isin(np.arange(count), list(rows)), 0, -1)
    return {
        TOKEN: tokens, POS: np.arange(5, 5 + count, dtype=np.int32), LAST: last.astype(np.int32),
        LAST_TOKEN: np.int32(last_token), LOGITS: logits, **slots,
    }  # fmt: skip


def by_hand(logits: NDArray[np.float32], row: SamplerRow, prompt: list[int], answer: list[int]) -> NDArray[np.float32]:
    """The adjusted logits of one row, an id at a time, in float64."""
    params = row.params
    adjusted = logits.astype(np.float64)
    for id, bias in params.logit_bias.items():
        adjusted[id] += bias
    for id in range(len(adjusted)):
        if id in prompt or id in answer:
            stretch = params.repetition_penalty
            adjusted[id] = adjusted[id] / stretch if adjusted[id] > 0 else adjusted[id] * stretch
        if id in answer:
            adjusted[id] -= params.presence_penalty + params.frequency_penalty * answer.count(id)
    for id in range(len(adjusted)):
        legal = row.mask is None or int(row.mask[id // 32]) >> (id % 32) & 1
        listed = params.allowed_token_ids is None or id in params.allowed_token_ids
        if not (legal and listed) or id in row.banned:
            adjusted[id] = -np.inf
    return adjusted.astype(np.float32)


def cases(rng: np.random.Generator, vocabulary: int) -> tuple[dict[int, SamplerRow], list[tuple[list[int], list[int]]]]:
    """Rows that differ in every parameter, with prompt and answer of each; row 4 is spare."""

    def ids(count: int) -> list[int]:
        return rng.integers(0, vocabulary, count).tolist()

    def bias(count: int) -> dict[int, float]:
        chosen = rng.choice(vocabulary, count, replace=False).tolist()
        return dict(zip(chosen, rng.uniform(-4, 4, count).tolist(), strict=True))

    texts = [(ids(6), [3, 3, 3, *ids(4)]), (ids(9), []), (ids(3), [5, 5, 7]), (ids(2), ids(3)), ([], []), ([1], [2])]
    mask = allowed_bits(vocabulary, tuple(range(0, vocabulary, 3)))
    every = {
        "temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "seed": 3, "repetition_penalty": 1.3,
        "presence_penalty": 0.7, "frequency_penalty": -0.4, "logit_bias": bias(min(300, vocabulary)), "logprobs": 5,
    }  # fmt: skip
    params = [
        SamplingParams(**every),
        SamplingParams(repetition_penalty=0.6, logprobs=0),
        SamplingParams(temperature=1.3, frequency_penalty=1.9, presence_penalty=-1.5, min_tokens=4),
        SamplingParams(logit_bias=bias(5), allowed_token_ids=tuple(range(1, vocabulary, 2))),
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.5),
    ]
    histories = [History(*text) if item.penalizes else None for item, text in zip(params, texts, strict=True)]
    rows = {i: SamplerRow(77 + i, p, h) for i, (p, h) in enumerate(zip(params, histories, strict=True)) if i != 4}
    rows[0] = SamplerRow(1 << 40, params[0], histories[0], mask=mask)
    rows[2] = SamplerRow(9, params[2], histories[2], banned=(0, 8, vocabulary - 1))
    return rows, texts


def expect(logits: NDArray[np.float32], rows: Mapping[int, SamplerRow], texts: Any, inputs: Arrays) -> list[int]:
    adjusted = logits.copy()
    for place, row in rows.items():
        adjusted[place] = by_hand(logits[place], row, *texts[place])
    position = inputs[POS] + inputs[LAST] + 1
    chosen = sampled_tokens(adjusted, inputs[SEED], position, inputs[PARAMS], inputs[TOP_K], EXACT)
    return chosen.tolist()


def check_outputs(outputs: Mapping[str, NDArray[Any]], logits: NDArray[np.float32]) -> None:
    """Flags, and logprobs of the raw logits."""
    assert not outputs["non_finite"].any()
    wide = logits.astype(np.float64)
    logprobs = (
        wide - np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1, keepdims=True)) - wide.max(1, keepdims=True)
    )
    count = min(20, logits.shape[1])
    order = np.argsort(-wide, axis=1, kind="stable")[:, :count]
    assert outputs["top_ids"].tolist() == order.tolist()
    np.testing.assert_allclose(outputs["top_logprobs"], np.take_along_axis(logprobs, order, 1), atol=2e-5)
    own = np.take_along_axis(logprobs, outputs["token"].astype(int)[:, None], 1)[:, 0]
    np.testing.assert_allclose(outputs["logprob"], own, atol=2e-5)


@pytest.mark.parametrize("vocabulary", [11, 67, 1000])
def test_every_row_by_its_own_parameters(rng: np.random.Generator, vocabulary: int) -> None:
    logits = rng.normal(0, 3, (6, vocabulary)).astype(np.float32)
    rows, texts = cases(rng, vocabulary)
    inputs = full_inputs(logits, rows, [0] * 6)
    result = eval(full_step(6, vocabulary), inputs)
    chosen = expect(logits, rows, texts, inputs)
    assert result.outputs["token"].tolist() == chosen
    assert result.state[LAST_TOKEN].tolist() == [*chosen[:4], 0, chosen[5]]
    check_outputs(result.outputs, logits)


def test_a_token_under_way_counts_as_one_of_the_answer(rng: np.random.Generator) -> None:
    """Submitted ahead, with the token in the state, a row chooses as it does once the host knows it."""
    vocabulary = 40
    rows, texts = cases(rng, vocabulary)
    logits = rng.normal(0, 3, (6, vocabulary)).astype(np.float32)
    graph = full_step(6, vocabulary)
    # One that the answer holds, one of the prompt alone, one that is new.
    for token in (3, texts[0][0][0], 39):
        ahead = {row: SamplerRow(i.seed, i.params, i.history, True, i.mask, i.banned) for row, i in rows.items()}
        early = eval(graph, full_inputs(logits, ahead, [token] * 6)).outputs["token"].tolist()
        known = {
            row: SamplerRow(i.seed, i.params, History(texts[row][0], [*texts[row][1], token]), False, i.mask, i.banned)
            for row, i in rows.items()
        }
        assert early == eval(graph, full_inputs(logits, known, [0] * 6)).outputs["token"].tolist()
        assert early == expect(logits, known, [(a, [*b, token]) for a, b in texts], full_inputs(logits, known, [0] * 6))


def test_neutral_values_change_nothing(rng: np.random.Generator) -> None:
    """A row of FULL that asks for nothing chooses as one of SAMPLED, whatever the other rows ask for."""
    logits = rng.normal(0, 3, (6, 67)).astype(np.float32)
    params = SamplingParams(temperature=0.8, top_k=9, top_p=0.8)
    rows, _ = cases(rng, 67)
    inputs = full_inputs(logits, {**rows, 5: SamplerRow(4, params)}, [0] * 6)
    token = eval(full_step(6, 67), inputs).outputs["token"][5]
    plain = sampled_tokens(
        logits[5:], np.uint32([[4, 0]]), np.int32([11]), np.float32([params.settings()]), np.int32([9]), EXACT
    )
    assert token == plain[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_mask_hides_no_number_that_is_none(bad: float, rng: np.random.Generator) -> None:
    logits = rng.normal(0, 1, (2, 40)).astype(np.float32)
    logits[0, 7] = bad
    params = SamplingParams(allowed_token_ids=(1, 2, 3))
    result = eval(full_step(2, 40), full_inputs(logits, {0: SamplerRow(0, params), 1: SamplerRow(0, params)}, [0, 0]))
    assert result.outputs["non_finite"].tolist() == [1, 0]
    assert result.outputs["token"][1] == 1 + int(logits[1, 1:4].argmax())


def test_logprobs_are_read_by_row(rng: np.random.Generator) -> None:
    logits = rng.normal(0, 1, (2, 25)).astype(np.float32)
    rows = {1: SamplerRow(0, SamplingParams(logprobs=3))}
    outputs = eval(full_step(2, 25), full_inputs(logits, rows, [0, 0])).outputs
    read = read_logprobs(outputs, {1: 3})[1]
    assert [id for id, _ in read.top] == np.argsort(-logits[1])[:3].tolist()
    assert read.logprob == read.top[0][1] == max(logprob for _, logprob in read.top)
    # Each row has as many as it wants, up to those that there are, whatever others want.
    both = read_logprobs(outputs, {1: 0, 0: 25})
    assert both[1].top == () and both[1].logprob == read.logprob
    assert [id for id, _ in both[0].top] == np.argsort(-logits[0])[:20].tolist()
    # What it says stays the same where the step's outputs do not, and in another process.
    before = (read.logprob, read.top)
    again = pickle.loads(pickle.dumps(read))
    for name in ("logprob", "top_ids", "top_logprobs"):
        outputs[name][:] = 0
    assert (read.logprob, read.top) == before == (again.logprob, again.top)
    assert again == read != both[0] and len({again, read, both[0]}) == 2


@pytest.fixture(
    scope="module", params=["reference", *(pytest.param(n, marks=pytest.mark.device(n)) for n in ("wgpu", "vulkan"))]
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_or_skip(request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("vocabulary", [67, 1000])
def test_devices_choose_as_numpy_does(device: Device, rng: np.random.Generator, vocabulary: int) -> None:
    """Every output within its bound of the oracle, and the tokens those of the steps written out by hand."""
    logits = rng.normal(0, 3, (6, vocabulary)).astype(np.float32)
    rows, texts = cases(rng, vocabulary)
    inputs = full_inputs(logits, rows, [0] * 6)
    match = assert_device_matches(device, full_step(6, vocabulary), inputs, undecided=0.05)
    check_outputs(match.result.outputs, logits)
    chosen = expect(logits, rows, texts, inputs)
    decided = ~np.isinf(match.bounds.output("token"))
    assert match.result.outputs["token"][decided].tolist() == np.array(chosen)[decided].tolist()
    print(f"{match.program.target.kind}: {len(match.program.commands)} commands, {', '.join(match.regions)}")

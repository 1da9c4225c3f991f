"""What the samplers draw follows the exact probabilities: chi-square over thousands of rows, on every device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval.conformance.opening import open_or_skip
from poot_eval.conformance.session import open_session
from poot_executor.device import Device
from poot_executor.dtype import F32, I32, U32
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.threefry import random_words
from poot_llm.blocks.step import LAST, LAST_TOKEN, POS, TOKEN, StepShape, begin_step
from poot_llm.sampling import (
    History,
    SamplerRow,
    SamplerShape,
    SamplerSlots,
    SamplingParams,
    Suffix,
    append_suffix,
)

LOGITS = SlotKey(SlotKind.INPUT, "logits")
ROWS = {"reference": 480, "wgpu": 3000, "vulkan": 3000}
"""The interpreter of the reference device takes a millisecond a row."""
SPAN = 8
ROW = np.array([2.0, 1.5, 1.25, 1.0, 0.5, 0.0, 0.0, -0.5, -1.0, -2.0, -3.0, -30.0], np.float32)
PROMPT, ANSWER = [1, 5], [0, 0, 4]


@pytest.fixture(
    scope="module", params=["reference", *(pytest.param(n, marks=pytest.mark.device(n)) for n in ("wgpu", "vulkan"))]
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_or_skip(request.param)
    yield opened
    opened.close()


def kept_probabilities(params: SamplingParams) -> NDArray[np.float64]:
    """The exact probabilities of one row, in float64 and by sorting, which no kernel does."""
    logits = ROW.astype(np.float64)
    for id, bias in params.logit_bias.items():
        logits[id] += bias
    for id in {*PROMPT, *ANSWER}:
        stretch = params.repetition_penalty
        logits[id] = logits[id] / stretch if logits[id] > 0 else logits[id] * stretch
    for id in set(ANSWER):
        logits[id] -= params.presence_penalty + params.frequency_penalty * ANSWER.count(id)
    if params.allowed_token_ids is not None:
        logits[[id for id in range(len(logits)) if id not in params.allowed_token_ids]] = -np.inf
    scores = logits / params.temperature
    weights = np.exp(scores - scores.max())
    weights[weights < params.min_p] = 0
    falling = np.sort(weights)[::-1]
    if params.top_k:
        weights[weights < falling[params.top_k - 1]] = 0
    if params.top_p < 1:
        total = weights.sum()
        above = np.array([weights[weights > weight].sum() for weight in weights])
        weights[above >= params.top_p * total] = 0
    return weights / weights.sum()


def most_likely_chi_square(freedom: int) -> float:
    """What chi-square exceeds once in 10,000 times (Wilson and Hilferty 1931)."""
    share = 2 / (9 * freedom)
    return freedom * (1 - share + 3.719 * np.sqrt(share)) ** 3


SAMPLERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "hot": {"temperature": 2.5},
    "top_k": {"temperature": 1.0, "top_k": 4},
    "top_k of ties": {"temperature": 1.0, "top_k": 6},
    "top_p": {"temperature": 0.9, "top_p": 0.75},
    "min_p": {"temperature": 1.1, "min_p": 0.12},
    "all three": {"temperature": 1.4, "min_p": 0.03, "top_k": 8, "top_p": 0.85},
    "repetition": {"temperature": 0.8, "repetition_penalty": 1.6},
    "presence and frequency": {"temperature": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "bias": {"temperature": 1.0, "logit_bias": {9: 3.0, 0: -1.0, 11: 31.0}},
    "allowed": {"temperature": 1.2, "allowed_token_ids": (3, 4, 7, 11)},
    "everything": {
        "temperature": 1.3, "top_k": 7, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2,
        "presence_penalty": -0.4, "frequency_penalty": 0.3, "logit_bias": {8: 2.0}, "logprobs": 2,
    },
}  # fmt: skip


def test_draws_follow_the_exact_probabilities(device: Device) -> None:
    """Every sampler in one step: rows differ in all of their parameters."""
    parameters = [SamplingParams(**fields) for fields in SAMPLERS.values()]
    most = ROWS[device.target.kind]
    seeds = np.random.default_rng(20_261_130).integers(0, 1 << 63, most).tolist()
    history = History(PROMPT, ANSWER)
    count = len(parameters)
    rows = count * (most // count)
    builder = Builder("draws")
    step = begin_step(builder, StepShape(rows, 1, SPAN, SPAN), len(ROW), F32)
    append_suffix(step, Suffix.FULL, builder.slot(LOGITS, TensorType((rows, len(ROW)), F32)))
    taken = {row: SamplerRow(seeds[row], parameters[row % count], history) for row in range(rows)}
    inputs: dict[Any, NDArray[Any]] = {
        TOKEN: np.zeros((rows, 1), np.int32), LAST: np.zeros(rows, np.int32), LAST_TOKEN: np.zeros(rows, np.int32),
        LOGITS: np.tile(ROW, (rows, 1)), **SamplerSlots(Suffix.FULL, SamplerShape(rows, len(ROW), SPAN)).fill(taken),
    }  # fmt: skip
    drawn = np.zeros((count, len(ROW)), np.int64)
    inputs[POS] = np.zeros(rows, np.int32)
    with open_session(device, builder.build(), inputs) as session:
        recording = session.lower()
        # The same seeds at other positions draw anew.
        for position in range(SPAN - 1):
            inputs[POS] = np.full(rows, position, np.int32)
            session.set_inputs(inputs)
            token = session.run(recording).outputs["token"]
            for place in range(count):
                drawn[place] += np.bincount(token[place::count], minlength=len(ROW))
    for name, params, counts in zip(SAMPLERS, parameters, drawn, strict=True):
        expected = kept_probabilities(params) * counts.sum()
        possible = expected > 0
        assert not counts[~possible].any(), f"{name}: {counts.tolist()} where {possible.tolist()} are kept"
        # Ids that are expected less than 5 times count as one.
        rare = possible & (expected < 5)
        groups = [(counts[i], expected[i]) for i in np.flatnonzero(possible & ~rare)]
        if rare.any():
            groups.append((counts[rare].sum(), max(expected[rare].sum(), 1.0)))
        statistic = sum((seen - mean) ** 2 / mean for seen, mean in groups)
        assert len(groups) > 1
        assert statistic <= most_likely_chi_square(len(groups) - 1), (name, statistic, counts.tolist())


def test_random_bits_are_equal_everywhere(device: Device) -> None:
    """Every bit, over many ids and extreme seeds and positions."""
    seed = np.array([[0, 0], [0xFFFFFFFF, 0xFFFFFFFF], [0x13198A2E, 0x03707344]], np.uint32)
    position = np.array([0, 2**31 - 1, 131_071], np.int32)
    builder = Builder("bits")
    keys = [SlotKey(SlotKind.INPUT, name) for name in ("seed", "position")]
    slots = (builder.slot(keys[0], TensorType((3, 2), U32)), builder.slot(keys[1], TensorType((3,), I32)))
    builder.output("bits", p.random_bits(*slots, 5000))
    with open_session(device, builder.build(), dict(zip(keys, (seed, position), strict=True))) as session:
        bits = session.run(session.lower()).outputs["bits"]
    assert np.array_equal(bits, random_words(seed, position, 5000))

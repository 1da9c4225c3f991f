"""The suffix that a step graph gets: from logits to chosen tokens, on the device."""

from __future__ import annotations

from poot_executor.dtype import I32
from poot_executor.graph import primitives as p
from poot_executor.graph.functional import non_finite
from poot_executor.graph.graph import TensorType
from poot_executor.graph.traced import Traced
from poot_llm.blocks.step import LAST_TOKEN, SPARE, Step, last_token
from poot_llm.sampling.adjust import biased, masked, penalized
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
from poot_llm.sampling.logprobs import output_logprobs


def append_suffix(step: Step, suffix: Suffix, logits: Traced) -> None:
    """Choose each row's token from logits f32[rows, vocabulary], on the device.

    Outputs `token` i32[rows] and `non_finite` i32[rows] (1: the raw logits hold NaN or +inf, and the
    token means nothing); the state `last_token` takes the token of rows that are not spare. Random
    bits are keyed by the position that the chosen token will have. FULL also outputs `logprob` f32[rows],
    `top_ids` i32[rows, k] and `top_logprobs` f32[rows, k], k = 20 or all ids: of the raw logits.

    The order is bias, penalties, mask, then what `graph.sampling` does. Where the slot `ahead` is 1, the row's
    `last_token` counts as one of the answer, in addition to those of the slot `history`.
    """
    builder, rows = step.builder, step.shape.rows
    shape = SamplerShape(rows, logits.shape[1], step.shape.span)
    slots = {key: builder.slot(key, kind) for key, kind in slot_types(suffix, shape).items()}
    before = last_token(builder, step.shape, step.row)
    if suffix is Suffix.GREEDY:
        token = p.argmax(logits, 1)
    else:
        adjusted = logits
        if suffix is Suffix.FULL:
            adjusted = biased(adjusted, slots[BIAS_IDS], slots[BIAS_VALUES])
            under_way = p.select(slots[AHEAD] > 0, before, builder.splat(NO_ID, before.type))
            adjusted = penalized(adjusted, slots[PENALTIES], slots[HISTORY], slots[COUNTS], under_way)
            adjusted = masked(adjusted, slots[MASK])
        chosen = step.position + step.last + 1
        token = p.sample_token(adjusted, slots[SEED], chosen, slots[PARAMS], slots[TOP_K])
    builder.output("token", token)
    builder.output("non_finite", non_finite(logits))
    if suffix is Suffix.FULL:
        output_logprobs(logits, token)
    if step.row is None:
        builder.next_state(LAST_TOKEN, p.select(step.last >= 0, token, before))
    else:
        place = p.select(step.last >= 0, step.row, builder.splat(SPARE, step.row.type))
        whole = builder.state(LAST_TOKEN, TensorType((step.shape.last_tokens,), I32))
        builder.next_state(LAST_TOKEN, p.scatter_update(whole, place, token))

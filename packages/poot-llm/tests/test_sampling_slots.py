"""Slots that are filled step after step hold what new ones would: rows come, go, grow and change places."""

from __future__ import annotations

import numpy as np
import pytest

from poot_executor.errors import BindError
from poot_llm.sampling import History, SamplerRow, SamplerShape, SamplerSlots, SamplingParams, Suffix, allowed_bits

ROWS, VOCABULARY, HELD = 4, 50, 24


def test_what_is_written_bit_by_bit_is_what_is_written_at_once(rng: np.random.Generator) -> None:
    shape = SamplerShape(ROWS, VOCABULARY, HELD)
    kept = SamplerSlots(Suffix.FULL, shape)
    kinds = [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(presence_penalty=0.5, temperature=0.7, logit_bias={3: 1.5}),
        SamplingParams(logprobs=2),
        SamplingParams(frequency_penalty=0.1, allowed_token_ids=(1, 2, 3)),
    ]
    live = [(k, History(rng.integers(0, 9, 5).tolist()), int(rng.integers(1 << 40))) for k in kinds * 2]
    again: dict[tuple[int, bool], SamplerRow] = {}
    for _ in range(300):
        place = int(rng.integers(len(live)))
        for _ in range(int(rng.integers(3))):
            live[place][1].add(int(rng.integers(0, 20)))
        if rng.random() < 0.05:
            live[place] = (kinds[place % 4], History(rng.integers(0, 20, 8).tolist()), int(rng.integers(1 << 40)))
        chosen = rng.permutation(len(live))[: int(rng.integers(ROWS + 1))]
        rows = {}
        for row, at in zip(rng.permutation(ROWS), chosen, strict=False):
            params, history, seed = live[at]
            mask = allowed_bits(VOCABULARY, (1, 2, 7)) if rng.random() < 0.2 else None
            item = SamplerRow(seed, params, history, bool(rng.random() < 0.5), mask)
            # A row that is handed in again as it was is not looked at, unless it penalizes.
            rows[int(row)] = item if rng.random() < 0.5 else again.setdefault((seed, item.ahead), item)
        if rng.random() < 0.1:
            with pytest.raises(BindError, match="row 4 of a step of 4 rows"):
                kept.fill(rows | {ROWS: SamplerRow(0, SamplingParams())})
        for _ in range(2):
            mine, fresh = kept.fill(rows), SamplerSlots(Suffix.FULL, shape).fill(rows)
            for key, value in fresh.items():
                np.testing.assert_array_equal(mine[key], value, err_msg=str(key))
            # The same mapping is handed in again, with longer histories.
            for at in chosen:
                live[at][1].add(int(rng.integers(0, 20)))

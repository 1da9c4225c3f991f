"""Many clients at once, some of which leave, read slowly, are late, or ask for what cannot be had."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from poot_executor.errors import RequestError
from poot_llm.guided.spec import StructuredOutputs
from poot_llm.sampling import SamplingParams
from poot_serve.engine.client import EngineClient
from poot_serve.engine.errors import DeadlineExceeded

pytestmark = pytest.mark.device("vpu")

CLIENTS = 64
EACH = 6
PROMPT = [104, 277, 102, 110, 35, 101, 117, 114, 122, 113]
DRAWN = SamplingParams(max_tokens=16, ignore_eos=True, temperature=1.0)


class Counts:
    """What clients saw."""

    def __init__(self) -> None:
        self.whole = self.left = self.late = self.refused = 0
        self.texts: dict[tuple[int, int], set[str]] = {}


async def one_request(client: EngineClient, rng: np.random.Generator, counts: Counts) -> None:
    """A request of a random kind."""
    kind, start, seed = rng.integers(0, 10), int(rng.integers(0, 5)), int(rng.integers(0, 3))
    params = replace(DRAWN, seed=seed)
    if kind == 0:
        bad = replace(params, ignore_eos=False, structured_outputs=StructuredOutputs(regex="(" * (seed + 1)))
        with pytest.raises(RequestError):
            await client.submit(PROMPT[start:], bad)
        counts.refused += 1
        return
    seconds = 0.001 if kind == 1 else None
    async with await client.submit(PROMPT[start:], params, seconds=seconds) as generation:
        text = ""
        try:
            async for piece in generation:
                text += piece.text
                if kind in (2, 3) and rng.random() < 0.5:
                    counts.left += 1
                    return
                if kind == 4:
                    await asyncio.sleep(0.02)
        except DeadlineExceeded:
            assert seconds is not None
            counts.late += 1
            return
    counts.texts.setdefault((start, seed), set()).add(text)
    counts.whole += 1


def test_many_clients_that_come_and_go(engines: Any, rng: np.random.Generator) -> None:
    """What one seed gives is one text, beside whatever it runs; and everything comes back."""
    with engines.client(driver={"rows": 4}, queue=CLIENTS) as client:
        counts = Counts()

        async def soak() -> None:
            await client.ready()
            await one_request(client, np.random.default_rng(5), Counts())
            baseline = client.stats

            async def one(seed: int) -> None:
                own = np.random.default_rng(seed)
                for _ in range(EACH):
                    await one_request(client, own, counts)

            await asyncio.gather(*(one(int(seed)) for seed in rng.integers(0, 1 << 40, CLIENTS)))
            async with asyncio.timeout(240):
                while client.stats.running or client.stats.waiting:  # noqa: ASYNC110 - reports come
                    await asyncio.sleep(0.01)
            await asyncio.sleep(1.1)
            await one_request(client, np.random.default_rng(5), Counts())
            stats = client.stats
            assert client.open_requests == 0 and client.losses == 0
            assert stats.device_bytes == baseline.device_bytes
            ended = stats.finished + stats.cancelled + stats.failed - baseline.finished - baseline.cancelled
            assert ended - baseline.failed == CLIENTS * EACH + 1
            assert stats.finished - baseline.finished >= counts.whole

        engines.run(soak())
        assert counts.whole + counts.left + counts.late + counts.refused == CLIENTS * EACH
        assert min(counts.whole, counts.left, counts.refused) > 0
        assert {key: texts for key, texts in counts.texts.items() if len(texts) > 1} == {}

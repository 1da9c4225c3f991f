"""SmolLM2 in batches on a device's kernels: paged KV, joined prefixes and a preemption give the recorded tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poot_eval.conformance.opening import open_or_skip
from poot_executor.engine import Engine
from poot_executor.errors import RequestError
from poot_llm.driver import Driver, DriverOptions, Layout, Request, Scheduler
from poot_llm.registry import Models
from poot_llm.sampling import SamplingParams, Suffix

RECORDED = Path(__file__).parents[3] / "references" / "smollm2_greedy.json"
CASES: list[dict[str, Any]] = json.loads(RECORDED.read_text("utf-8"))["cases"]
TOKENS = 16

pytestmark = [pytest.mark.slow, pytest.mark.device("vulkan")]


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    """Three rows, and a pool that is too small for all of them."""
    try:
        handle = Models().open("smollm2")
    except RequestError as missing:
        pytest.skip(str(missing))
    options = DriverOptions(rows=3, capacity=128, chunk=32, layout=Layout.PAGED, pool_blocks=10)
    with open_or_skip("vulkan") as device, Engine(device) as engine, Driver(handle, engine, options) as made:
        made.prepare_batch(3, Suffix.GREEDY)
        yield made


def test_batches_give_the_recorded_tokens(driver: Driver) -> None:
    """The same prompt comes twice, and finds its beginning computed."""
    cases = sorted(CASES, key=lambda case: len(case["prompt_ids"]))[:4]
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    scheduler = Scheduler(driver, spare=0)
    wanted: dict[Request, list[int]] = {}
    for case in [*cases, cases[-1]]:
        wanted[scheduler.add(case["prompt_ids"], params)] = case["tokens"][:TOKENS]
    got: dict[Request, list[int]] = {request: [] for request in wanted}
    first = next(iter(wanted))
    while scheduler.busy:
        for delivery in scheduler.step():
            assert delivery.failure is None
            got[delivery.request] += delivery.tokens
        if first.sequence is not None and len(first.sequence.tokens) == 14 and first.sequence.lease is not None:
            driver.preempt(first.sequence)
            assert driver.resume(first.sequence)
    for request, tokens in wanted.items():
        assert got[request] == tokens
    use = driver.use()
    assert (use.rows_taken, use.blocks_held) == (0, 0) and use.reused > 0

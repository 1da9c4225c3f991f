"""SmolLM2 on OpenVINO's CPU plug-in: exact tokens are the recorded ones, fast ones are counted where they flip."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poot_eval.conformance import open_or_skip
from poot_executor.engine import Engine
from poot_executor.errors import RequestError
from poot_executor.settings import read_settings
from poot_llm.driver import Driver, DriverOptions
from poot_llm.generation import complete
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams

RECORDED = Path(__file__).parents[1] / "references" / "smollm2_greedy.json"
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in json.loads(RECORDED.read_text("utf-8"))["cases"]}
ALWAYS = "english-fact", "long"
"""What every run answers: a short prompt, and one of many chunks. The others differ in text alone: a sweep."""
FAST_CASES = ("english-fact", "code", "chat-chinese")
MOST_MARGIN = 1.0
"""Of logits: what activations in 8 bits may turn around. A flip of a greater margin is a mistake and no rounding."""
MOST_FLIPS = 0.1

pytestmark = [pytest.mark.slow, pytest.mark.device("vpu")]


@pytest.fixture(scope="module")
def handle() -> ModelHandle:
    try:
        return Models().open("smollm2")
    except RequestError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def exact(handle: ModelHandle) -> Iterator[Driver]:
    with (
        open_or_skip("vpu:cpu", read_settings()) as device,
        Engine(device) as engine,
        Driver(handle, engine, DriverOptions(capacity=1024)) as made,
    ):
        yield made


@pytest.mark.parametrize(
    "name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.sweep(most=2)) for n in CASES]
)
def test_exact_tokens_are_the_recorded_ones(exact: Driver, name: str) -> None:
    case = CASES[name]
    params = SamplingParams(max_tokens=len(case["tokens"]), ignore_eos=True)
    tokens = complete(exact, case["prompt_ids"], params).tokens
    wrong = [
        (place, got, expected, case["margins"][place])
        for place, (got, expected) in enumerate(zip(tokens, case["tokens"], strict=True))
        if got != expected
    ]
    assert not wrong[:1], "first difference: place, token, the reference's, its margin"


def test_few_programs_are_prepared(exact: Driver) -> None:
    """Each takes seconds and memory of its own: one of a token and one of a chunk, whatever prompts came."""
    complete(exact, [1, 2, 3], SamplingParams(max_tokens=2))
    complete(exact, list(range(1, 40)), SamplingParams(max_tokens=2))
    assert sorted(key.shape.tokens for key in exact.prepared) == [1, exact.options.chunk]


def test_fast_flips_are_near_ties(handle: ModelHandle) -> None:
    """Each answer is forced to the reference's, so that every place is judged on its own."""
    options = DriverOptions(capacity=512, ahead=False)
    flips: list[tuple[str, int, float]] = []
    places = 0
    with (
        open_or_skip("vpu:cpu-fast", read_settings()) as device,
        Engine(device) as engine,
        Driver(handle, engine, options) as driver,
    ):
        for name in FAST_CASES:
            case = CASES[name]
            params = SamplingParams(max_tokens=len(case["tokens"]) + 1, ignore_eos=True)
            sequence = driver.open(case["prompt_ids"], params)
            assert sequence is not None
            for place, expected in enumerate(case["tokens"]):
                token = None
                while token is None:
                    (result,) = driver.step([sequence])
                    token = result.token
                places += 1
                if token != expected:
                    flips.append((name, place, case["margins"][place]))
                driver.commit(sequence, expected)
            driver.release(sequence)
    print(f"fast: {len(flips)} flips of {places} places: {flips}")
    assert len(flips) <= MOST_FLIPS * places
    assert all(margin < MOST_MARGIN for _, _, margin in flips)


CHILD = """
import json, sys
from poot_executor.discover import open_device
from poot_executor.engine import Engine
from poot_executor.settings import read_settings
from poot_llm.driver import Driver, DriverOptions
from poot_llm.registry import Models
from poot_llm.sampling import SamplingParams
handle = Models().open("smollm2")
device, _ = open_device("vpu:cpu", read_settings().device)
with device, Engine(device) as engine, Driver(handle, engine, DriverOptions(capacity=1024)) as driver:
    made = list(driver.generate(list(range(100, 200)), SamplingParams(max_tokens=24, ignore_eos=True)))
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(json.dumps({"file": handle.stored_bytes, "resident": int(fields["VmRSS"].split()[0]) << 10}))
"""
RESIDENT = 400 << 20
"""Beside the file. The plug-in keeps weights once more for each of the two compiled steps, in its own order and with
scales in float32: 111 MB each."""


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set is read from /proc")
def test_what_decoding_takes_of_memory(exact: Driver, handle: ModelHandle) -> None:
    """Both steps are read as `exact` has them kept, a prompt is read, tokens are decoded, at a capacity of 1,024.

    Compiling in the same process would leave what its memory allocator does not return.
    """
    complete(exact, list(range(1, 40)), SamplingParams(max_tokens=2))
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, timeout=300)
    took = json.loads(done.stdout.splitlines()[-1])
    beside = took["resident"] - took["file"]
    print(f"resident set {took['resident'] / 1e6:.0f} MB, of it beside the file {beside / 1e6:.0f} MB")
    assert beside <= RESIDENT

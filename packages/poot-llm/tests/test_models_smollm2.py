"""SmolLM2's tokens equal the recorded float32 reference's: by the oracle, and by a device's kernels.

Every recorded margin is far above float32's error, so no flip is allowed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_eval import EvalOptions, eval
from poot_executor.discover import open_device
from poot_executor.engine import Engine
from poot_executor.errors import DeviceNotFound, RequestError
from poot_executor.settings import read_settings
from poot_llm.blocks.step import LAST, POS, TOKEN, StepShape
from poot_llm.driver import Driver, DriverOptions
from poot_llm.generation import complete
from poot_llm.models.step_graph import trace_step
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams, Suffix

RECORDED = Path(__file__).parents[3] / "references" / "smollm2_greedy.json"
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in json.loads(RECORDED.read_text("utf-8"))["cases"]}

ALWAYS = "english-fact", "chat-system-turns"
"""What every run answers: a short prompt, and one of two chunks. The others are a sweep: they differ in text alone, but
for the long one, which takes software Vulkan longer than all of them."""
CHUNK = 32

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def handle() -> ModelHandle:
    try:
        return Models().open("smollm2")
    except RequestError as missing:
        pytest.skip(str(missing))


@pytest.mark.sweep(most=1)
@pytest.mark.parametrize("name", ["english-fact", "chat-chinese"])
def test_the_trace_gives_the_recorded_tokens(handle: ModelHandle, name: str) -> None:
    """One pass over prompt and answer for the first, a middle and the last token."""
    case = CASES[name]
    shape = StepShape(1, 128, 128, 128)
    graph = trace_step(handle.family, handle.config, shape, handle.weights, Suffix.GREEDY)
    inputs: dict[Any, Any] = {key: handle.store.tensor(name) for key, name in handle.weight_map.items()}
    inputs |= {pair.key: np.zeros(pair.before.shape, pair.before.dtype.numpy) for pair in graph.state}
    for place in (0, 20, 47):
        ids = case["prompt_ids"] + case["tokens"][:place]
        tokens = np.zeros((1, 128), np.int32)
        tokens[0, : len(ids)] = ids
        inputs |= {TOKEN: tokens, POS: np.int32([0]), LAST: np.int32([len(ids) - 1])}
        result = eval(graph, inputs, EvalOptions(precision="f32", order="blas"))
        assert result.checks == (-1, -1)
        assert result.outputs["token"].tolist() == [case["tokens"][place]]


@pytest.fixture(scope="module")
def driver(handle: ModelHandle) -> Iterator[Driver]:
    settings = read_settings()
    try:
        device, _ = open_device("wgpu", settings.device)
    except DeviceNotFound as missing:
        if "wgpu" in settings.require_devices:
            raise
        pytest.skip(str(missing))
    with device, Engine(device) as engine, Driver(handle, engine, DriverOptions(capacity=1024, chunk=CHUNK)) as made:
        yield made


@pytest.mark.device("wgpu")
@pytest.mark.parametrize(
    "name", [n if n in ALWAYS else pytest.param(n, marks=pytest.mark.sweep(most=2)) for n in CASES]
)
def test_a_device_gives_the_recorded_tokens(driver: Driver, name: str) -> None:
    case = CASES[name]
    assert name != ALWAYS[1] or len(case["prompt_ids"]) > CHUNK
    answer = complete(driver, case["prompt_ids"], SamplingParams(max_tokens=len(case["tokens"]), ignore_eos=True))
    wrong = [
        (place, got, expected, case["margins"][place])
        for place, (got, expected) in enumerate(zip(answer.tokens, case["tokens"], strict=True))
        if got != expected
    ]
    assert not wrong[:1], "first difference: place, token, the reference's, its margin"

"""The whole way on poot's own kernels, interpreted: checkpoint, trace, compile, engine, tokens."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from poot_eval.driver import ReferenceDriver
from poot_executor.engine import Engine
from poot_executor.settings import DeviceSettings
from poot_llm.driver import Driver, DriverOptions
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)

PROMPT = [104, 277, 102, 110, 35]


@pytest.mark.slow
@pytest.mark.parametrize("selector", ["plain", "subgroups"])
@pytest.mark.parametrize("format", ["q4_1", "f16"])
def test_kernels_give_the_oracles_tokens(selector: str, format: str, tmp_path: Path) -> None:
    handle = fixture.checkpoint(tmp_path, format=format)
    expected = fixture.greedy(handle, PROMPT, 4)
    drawn = SamplingParams(max_tokens=4, temperature=0.7, top_k=40, top_p=0.9, min_p=0.01, seed=11)
    with fixture.driving(handle) as rig:
        sampled = [item.token for item in rig.driver.generate(PROMPT, drawn)]
    options = DriverOptions(capacity=16, chunk=4)
    with (
        ReferenceDriver().open(selector, DeviceSettings()) as device,
        Engine(device) as engine,
        Driver(handle, engine, options) as driver,
    ):
        greedy = SamplingParams(max_tokens=4, ignore_eos=True)
        assert [item.token for item in driver.generate(PROMPT, greedy)] == expected
        assert [item.token for item in driver.generate(PROMPT, drawn)] == sampled
        before = driver.prepared
        assert [item.token for item in driver.generate(PROMPT, greedy)] == expected
        assert driver.prepared == before
        assert engine.stats().failures == 0

"""Tokens from machine code: a small llama on poot-rocm-device, its kernels compiled for gfx1100 and interpreted."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from poot_eval.hsa import build_or_skip
from poot_executor.engine import Engine
from poot_llm.driver import Driver, DriverOptions
from poot_llm.sampling import SamplingParams
from poot_rocm_device.runtime import Runtime

PACKAGES = Path(__file__).resolve().parents[1] / "packages"
PROMPT = [104, 277, 102, 110, 35]
COUNT = 4


def beside(name: str, path: str) -> ModuleType:
    """A module that tests of a package share."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PACKAGES / path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def check_tokens(folder: Path, compared: bool, **model: object) -> None:
    """Greedy tokens are those of the float64 reference, twice, from recordings; no dispatch does anything wrong.

    With `compared` every dispatch leaves the bytes that its text leaves on this processor.
    """
    fixture = beside("driving", "poot-llm/tests/fixtures/driving.py")
    machine = beside("machine", "poot-rocm-device/tests/machine.py")
    compiler, fake = machine.compiler_or_skip(), build_or_skip(folder)
    kernels = machine.Compared(compiler, fake, folder) if compared else machine.Machine(compiler, fake, races=True)
    handle = fixture.checkpoint(folder, **model)
    expected = fixture.greedy(handle, PROMPT, COUNT)
    greedy = SamplingParams(max_tokens=COUNT, ignore_eos=True)
    try:
        with (
            machine.open_machine(fake, Runtime(str(fake.path)), kernels) as device,
            Engine(device) as engine,
            Driver(handle, engine, DriverOptions(capacity=16, chunk=4)) as driver,
        ):
            for _ in range(2):
                assert [item.token for item in driver.generate(PROMPT, greedy)] == expected
            assert engine.stats().failures == 0
    finally:
        # What a dispatch did wrong says more than that the device is lost. Its frames hold memory that is gone.
        if fake.raised:
            pytest.fail(str(fake.raised), pytrace=False)
    assert not kernels.code.faults
    assert kernels.code.instructions > 100_000
    if compared:
        assert kernels.compared["on this processor"] == len(kernels.code.launched)
        assert kernels.compared["in the interpreter of kernel IR"] > 0


@pytest.mark.slow
def test_a_small_llama_from_machine_code(tmp_path: Path) -> None:
    check_tokens(tmp_path, compared=False, format="q4_1")


@pytest.mark.sweep(most=1)
@pytest.mark.slow
@pytest.mark.parametrize("format", ["f32", "f16", "q8_0"])
def test_every_dispatch_leaves_what_its_text_says(format: str, tmp_path: Path) -> None:
    check_tokens(tmp_path, compared=True, format=format, layers=1)

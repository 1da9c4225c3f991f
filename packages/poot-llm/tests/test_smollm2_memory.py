"""What SmolLM2 takes on a device: packed weights, little host memory, and nothing made once its steps are prepared.

Measured in a process of its own, which compiles everything anew: caches of other runs would hide what compiling takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance import open_or_skip
from poot_executor.errors import RequestError
from poot_llm.registry import Models

CHILD = Path(__file__).parent / "fixtures" / "memory_child.py"
MOST_BESIDE = 250_000_000
"""Anonymous bytes that a process may hold beside those that the device counts as its own."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.device("wgpu"),
    pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from Linux's /proc"),
]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """What the process said of itself."""
    open_or_skip("wgpu").close()
    try:
        Models().open("smollm2")
    except RequestError as missing:
        pytest.skip(str(missing))
    seed = int(np.random.default_rng().integers(1 << 31))
    print(f"repeat with {CHILD.name} wgpu {seed}")
    environment = {**os.environ, "POOT_COMPILE_CACHE": "0", "MESA_SHADER_CACHE_DISABLE": "true"}
    finished = subprocess.run(
        [sys.executable, "-W", "error", CHILD, "wgpu", str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.parametrize("phase", ["loading", "decoding"])
def test_host_memory_beside_the_device_is_small(report: dict[str, Any], phase: str) -> None:
    most, samples = report[phase]
    assert samples > 100
    assert 0 < most <= MOST_BESIDE


def test_weights_stay_packed_on_the_device(report: dict[str, Any]) -> None:
    assert report["stored"] <= report["weights"] <= 1.05 * report["stored"]


def test_steps_at_any_position_make_nothing(report: dict[str, Any]) -> None:
    """Neither programs nor kernels, recordings, allocations or uploads, in 60 steps at positions in no order."""
    assert report["steps"] >= report["answer"] + 60
    assert report["answer"] == 32
    assert report["after"] == report["before"]
    assert report["before"]["failures"] == 0 and report["before"]["kernels"] > 0

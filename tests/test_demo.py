"""The one command of the README, on a machine with a Vulkan driver and on one without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_VULKAN = {"VK_DRIVER_FILES": os.devnull, "VK_ICD_FILENAMES": os.devnull}


def demo(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    scripts = Path(sys.executable).parent
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"],
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the Vulkan loader is Linux's way to wgpu")
def test_without_a_driver_it_says_how_to_get_one() -> None:
    result = demo(NO_VULKAN)
    assert result.returncode == 2
    assert "sudo apt-get install --yes libvulkan1 mesa-vulkan-drivers" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
@pytest.mark.device("wgpu")
def test_it_prints_what_the_reference_wrote() -> None:
    cases = json.loads((ROOT / "references" / "smollm2_greedy.json").read_text())["cases"]
    (case,) = (case for case in cases if case["name"] == "chat-code")
    assert min(case["margins"]) > 0.02  # no near tie, where float32 may go the other way
    result = demo({})
    assert result.returncode == 0, result.stderr
    assert case["text"].strip() in result.stdout

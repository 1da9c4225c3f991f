"""The one command of the README, on a machine with no driver of any kind, and on one where nothing opens."""

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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the Vulkan loader is Linux's way to wgpu")
def test_where_nothing_opens_it_says_why(tmp_path: Path) -> None:
    """OpenVINO does not load, and there is no Vulkan driver."""
    (tmp_path / "openvino.py").write_text("raise ImportError('not for this processor')\n")
    result = demo({**NO_VULKAN, "PYTHONPATH": str(tmp_path)})
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("poot: no device opened (") and "not for this processor" in last
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.device("vpu")
def test_without_any_driver_it_prints_what_the_reference_wrote() -> None:
    cases = json.loads((ROOT / "references" / "smollm2_greedy.json").read_text())["cases"]
    (case,) = (case for case in cases if case["name"] == "chat-code")
    assert min(case["margins"]) > 0.02  # no near tie, where float32 may go the other way
    result = demo(NO_VULKAN)
    assert result.returncode == 0, result.stderr
    assert case["text"].strip() in result.stdout
    assert "device vpu:" in result.stderr

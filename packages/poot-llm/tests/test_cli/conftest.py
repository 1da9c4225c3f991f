"""The `poot` command over a tiny seeded checkpoint, in this process and in one of its own.

The toy device of examples/ is what it runs on. It is made visible as an installed distribution is: by a `.dist-info`
folder on the path, with the entry point in it.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from poot_llm.cli import main
from poot_llm.weights.gguf import GgufFile

ROOT = Path(__file__).resolve().parents[4]
TOY = ROOT / "examples" / "toy-device" / "src"
_SPEC = importlib.util.spec_from_file_location("tiny", Path(__file__).parents[1] / "fixtures" / "tiny.py")
assert _SPEC is not None and _SPEC.loader is not None
tiny = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny)
writer = tiny.load_fixture("gguf_writer")


@dataclass(frozen=True)
class Finished:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one line of a refusal, which leaves standard output alone."""
        lines = [line for line in self.err.splitlines() if not line.startswith("error: XDG_RUNTIME_DIR")]
        assert self.status == 2, self
        assert self.out == "", self
        assert "Traceback" not in self.err
        assert len(lines) == 1 and lines[0].startswith("poot: "), self.err
        return lines[0].removeprefix("poot: ")


def distribution(folder: Path, name: str, entry_points: str) -> Path:
    """A folder that, on the path, is an installed distribution with these entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


@pytest.fixture
def install(tmp_path):
    """Make a distribution: its name, its entry points as text, and a module `plug` of this code."""

    def make(name: str, entry_points: str, code: str = "") -> Path:
        site = distribution(tmp_path / name, name, entry_points)
        (site / "plug.py").write_text(code)
        return site

    return make


@pytest.fixture(scope="session")
def toy_site(tmp_path_factory) -> Path:
    points = "[poot.devices]\ntoy = poot_toy_device.driver:ToyDriver\n"
    return distribution(tmp_path_factory.mktemp("toy"), "poot-toy-device", points)


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path, toy_site):
    """The toy device, a cache folder of the test's own, and no Vulkan."""
    monkeypatch.syspath_prepend(str(TOY))
    monkeypatch.syspath_prepend(str(toy_site))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith("POOT_"):
            monkeypatch.delenv(name)
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.setenv(name, os.devnull)


@pytest.fixture
def poot(capsys):
    """Run the command in this process."""

    def run(*arguments: str | Path) -> Finished:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Finished(status, out, err)

    return run


@pytest.fixture
def command(toy_site):
    """The command line and environment of the command in a process of its own; warnings are errors there too."""

    def line(*arguments: str | Path, sites: tuple[Path, ...] = ()) -> dict:
        path = os.pathsep.join(map(str, (*sites, toy_site, TOY)))
        args = [sys.executable, "-W", "error", "-m", "poot_llm", *map(str, arguments)]
        return {"args": args, "env": {**os.environ, "PYTHONPATH": path}, "text": True, "encoding": "utf-8"}

    return line


@pytest.fixture
def poot_process(command):
    """Run the command in a process of its own."""

    def run(*arguments: str | Path, sites: tuple[Path, ...] = (), stdin: str = "") -> Finished:
        given = command(*arguments, sites=sites)
        done = subprocess.run(**given, input=stdin, capture_output=True, timeout=120, check=False)
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A llama of a few thousand weights."""
    return tiny.write_tiny_llama_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", context=256)


@pytest.fixture
def rewritten(model, tmp_path):
    """A copy of the model with metadata and tensors changed: `change(metadata, tensors)` edits them in place."""

    def write(change) -> Path:
        file = GgufFile.open(model)
        metadata = dict(file.metadata)
        stored = {name: file.tensor(name) for name in file.names()}
        tensors = {n: (n, t.shape, t.format.name, t.data.tobytes()) for n, t in stored.items()}
        change(metadata, tensors)
        path = tmp_path / "changed.gguf"
        path.write_bytes(writer.gguf_bytes(metadata, list(tensors.values())))
        return path

    return write

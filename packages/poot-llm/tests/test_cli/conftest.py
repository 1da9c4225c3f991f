"""The `poot` command over a tiny seeded checkpoint, in this process and in one of its own.

The toy device of examples/ is what it runs on. It is made visible as an installed distribution is: by a `.dist-info`
folder on the path, with the entry point in it.
"""

import http.server
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
import time
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
    """The toy device, a cache folder of the test's own, no Vulkan, and in this process no OpenVINO."""
    monkeypatch.setitem(sys.modules, "openvino", None)
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


@pytest.fixture
def endless(rewritten):
    """A model that never ends a reply by itself, with a context that it takes long to fill."""

    def change(metadata, tensors):
        metadata["llama.context_length"] = 8192
        # The control tokens' rows of the tied head are zero: their logit is 0, and another one is above it.
        name, shape, stored, data = tensors["token_embd.weight"]
        row = len(data) // shape[0]
        tensors[name] = (name, shape, stored, bytes(3 * row) + data[3 * row :])

    return rewritten(change)


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, line):
        self.master, slave = os.openpty()
        self.process = subprocess.Popen(**line, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        os.close(slave)
        self.seen = ""

    def wait_for(self, text, seconds=240):
        """Read until `text` was seen, and forget everything up to its end."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            self.read(deadline - time.monotonic(), f"no {text!r}")
        self.seen = self.seen.partition(text)[2]

    def interrupt_until(self, text):
        """Press Ctrl-C until `text` is seen: one that comes between a prompt and the read behind it waits for a key."""
        for _ in range(30):
            os.kill(self.process.pid, signal.SIGINT)
            if select.select([self.master], [], [], 1)[0]:
                break
        self.wait_for(text)

    def wait_for_more(self):
        """Read until something was seen."""
        while not self.seen:
            self.read(240, "nothing")

    def interrupt(self):
        """Press Ctrl-C."""
        os.kill(self.process.pid, signal.SIGINT)

    def read(self, seconds, missing):
        ready, _, _ = select.select([self.master], [], [], max(seconds, 0))
        assert ready, f"{missing} in {self.seen!r}"
        self.seen += os.read(self.master, 4096).decode(errors="replace")

    def pause(self, seconds):
        """Let it work, and read what it says meanwhile."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self.process.poll() is None:
            if select.select([self.master], [], [], min(left, 0.05))[0]:
                try:
                    self.seen += os.read(self.master, 4096).decode(errors="replace")
                except OSError:
                    return

    def say(self, text):
        os.write(self.master, text.encode())

    def close(self):
        """Read to the end, which stays in `seen`; the exit status."""
        while True:
            try:
                data = os.read(self.master, 4096)
            except OSError:  # Linux says so that nobody has the other end any more
                data = b""
            if not data:
                break
            self.seen += data.decode(errors="replace")
        os.close(self.master)
        return self.process.wait(240)


@pytest.fixture
def on_terminal(command):
    """Run the command on a terminal of its own."""
    opened = []

    def run(*arguments: str | Path, sites: tuple[Path, ...] = ()) -> Terminal:
        opened.append(Terminal(command(*arguments, sites=sites)))
        return opened[-1]

    yield run
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.close()


class Stalled(http.server.BaseHTTPRequestHandler):
    """A package index that answers nothing until it is told to."""

    def do_GET(self):
        self.server.asked.set()
        self.server.done.wait(240)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def stalled_index(monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stalled) as server:
        server.daemon_threads = True
        server.asked, server.done = threading.Event(), threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/simple"
        for name in list(os.environ):
            if name.startswith(("PIP_", "UV_")):
                monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("PIP_INDEX_URL", address)
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        yield server
        server.done.set()
        server.shutdown()

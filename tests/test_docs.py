"""The documents' code blocks do what they say.

A fence whose info string has the word `run` is executed from the repository's root:

    ```python run          a script of its own
    ```console run         what follows `$ ` is a shell command; one that fails fails the test

A `text output` fence right after it must be what it printed. `needs=NAME` after `run` says what
else the block needs: `needs=checkpoint` is fetched first, and a device of that name which is not
there skips the block with the reason, or fails it where POOT_REQUIRE_DEVICE names it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

import pytest

from poot_executor.discover import survey
from poot_executor.errors import SettingsError
from poot_executor.settings import read_settings

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
    *sorted(ROOT.glob("examples/**/README.md")),
)
FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPTS = Path(sys.executable).parent
SECONDS = 600


@dataclass(frozen=True, slots=True)
class Block:
    """One runnable fence: where it stands, its language and code, what it needs and prints."""

    place: str
    language: str
    code: str
    needs: frozenset[str]
    output: str | None


def blocks(document: Path) -> list[Block]:
    text = document.read_text()
    fences = list(FENCE.finditer(text))
    found = []
    for fence, following in zip_longest(fences, fences[1:]):
        language, *words = fence["info"].split()
        if "run" not in words:
            continue
        adjacent = following is not None and not text[fence.end() : following.start()].strip()
        printed = adjacent and following is not None and following["info"] == "text output"
        found.append(
            Block(
                place=f"{document.relative_to(ROOT)}:{text.count(chr(10), 0, fence.start()) + 1}",
                language=language,
                code=fence["body"],
                needs=frozenset(w.removeprefix("needs=") for w in words if w.startswith("needs=")),
                output=following["body"] if printed and following is not None else None,
            )
        )
    return found


BLOCKS = [block for document in DOCUMENTS if document.exists() for block in blocks(document)]


def command(block: Block) -> list[str]:
    if block.language == "python":
        return [sys.executable, "-W", "error", "-c", block.code]
    assert block.language == "console", f"{block.place}: cannot run {block.language}"
    lines = [line[2:] for line in block.code.splitlines() if line.startswith("$ ")]
    assert lines, f"{block.place}: no line starts with '$ '"
    return ["bash", "-euo", "pipefail", "-c", "\n".join(lines)]


def test_the_readme_has_blocks_that_run() -> None:
    assert any(block.place.startswith("README.md") for block in BLOCKS)


@cache
def pull() -> None:
    """SmolLM2 in poot's cache, which is where a block finds it."""
    subprocess.run([SCRIPTS / "poot", "pull", "smollm2"], check=True, timeout=SECONDS)


def need(name: str) -> None:
    """Provide it, or skip or fail the test with the reason."""
    if name == "checkpoint":
        pull()
        return
    settings = read_settings()
    statuses = {status.name: status for status in survey(settings.device)}
    if name in statuses and statuses[name].found:
        return
    reason = f"device {name} is not here: {statuses.get(name)}"
    if name in settings.require_devices:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_a_block_does_what_it_says(block: Block) -> None:
    for name in sorted(block.needs):
        need(name)
    environment = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        command(block),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert result.returncode == 0, f"{block.place}\n{result.stdout}\n{result.stderr}"
    if block.output is not None:
        assert result.stdout == block.output


def test_every_setting_is_documented() -> None:
    """The page lists exactly what the parser knows, which it says when it refuses a name."""
    with pytest.raises(SettingsError) as refusal:
        read_settings({"POOT_X": "1"})
    known = set(re.findall(r"POOT_[A-Z_]+", str(refusal.value))) - {"POOT_X"}
    page = (ROOT / "docs" / "environment.md").read_text()
    assert set(re.findall(r"^\| `(POOT_[A-Z_]+)`", page, re.MULTILINE)) == known


def test_links_lead_somewhere() -> None:
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in DOCUMENTS
        if document.exists()
        for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert broken == []


def test_every_module_has_its_sentence() -> None:
    """docs/structure.md lists the modules and packages that there are, each once, and no other."""
    page = (ROOT / "docs" / "structure.md").read_text()
    listed = []
    for section in re.split(r"^### ", page, flags=re.MULTILINE)[1:]:
        folder = ROOT / "packages" / section.split("\n", 1)[0]
        (source,) = (path for path in (folder / "src").iterdir() if (path / "__init__.py").exists())
        listed += [source / name for name in re.findall(r"^\| \**`([^`]+)`\** \| .+[.?] \|$", section, re.MULTILINE)]
    modules = {path for path in ROOT.glob("packages/*/src/*/**/*.py") if path.name != "__init__.py"}
    packages = {path.parent for path in ROOT.glob("packages/*/src/*/*/**/__init__.py")}
    assert sorted(listed) == sorted(modules | packages)

"""`--sweep N` draws N tests of each sweep, and says how to draw them again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SWEEP = """
import pytest

@pytest.mark.sweep
@pytest.mark.parametrize("number", range(30))
def test_one(number):
    pass

def test_other():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two files, each with a sweep of 30 tests and a test that belongs to none."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    sweep: a part of it\n")
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(SWEEP)
    return tmp_path


def collected(project: Path, *options: str) -> tuple[list[str], str]:
    """The tests that would run, and what the report's head says of sweeps."""
    report = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *options],
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    said = re.search(r"^sweeps: (.*)$", report, re.MULTILINE)
    tests, module = [], ""
    for kind, name in re.findall(r"<(Module|Function) (.+)>", report):
        module = name if kind == "Module" else module
        if kind == "Function":
            tests.append(f"{module}::{name}")
    return tests, said[1] if said else ""


def test_a_run_has_all_of_a_sweep_unless_it_is_told(project: Path) -> None:
    tests, said = collected(project)
    assert len(tests) == 62 and said == ""


def test_a_part_is_drawn_of_each_sweep_and_the_seed_repeats_it(project: Path) -> None:
    tests, said = collected(project, "--sweep", "5", "--sweep-seed", "7")
    assert said == "--sweep=5 --sweep-seed=7"
    for name in ("test_a.py", "test_b.py"):
        assert f"{name}::test_other" in tests
        assert sum(test.startswith(f"{name}::test_one") for test in tests) == 5
    assert collected(project, *said.split()) == (tests, said)
    assert collected(project, "--sweep", "5", "--sweep-seed", "8")[0] != tests


def test_a_fresh_draw_says_its_seed(project: Path) -> None:
    first, second = (collected(project, "--sweep", "5")[1] for _ in range(2))
    assert re.fullmatch(r"--sweep=5 --sweep-seed=\d+", first) and first != second
    assert len(collected(project, "--sweep", "40")[0]) == 62


def test_processes_that_share_a_run_draw_the_same(project: Path) -> None:
    report = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", "-n", "2", "--sweep", "5"],
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    ).stdout
    assert "12 passed" in report, report

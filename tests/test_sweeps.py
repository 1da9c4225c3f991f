"""What a run takes of sweeps and of files, and how to draw the same again; how a run ends that would not end."""

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
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    sweep: a part of it\n    part: of a class\n")
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(SWEEP)
    return tmp_path


def run(project: Path, *options: str) -> tuple[int, str]:
    """The status of a run, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=project,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout


def collected(project: Path, *options: str) -> tuple[list[str], str]:
    """The tests that would run, and what the report's head says of sweeps."""
    status, report = run(project, "--collect-only", *options)
    assert status == 0, report
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


def test_a_test_says_how_many_of_its_parameters_are_enough(project: Path) -> None:
    few = SWEEP.replace("mark.sweep", "mark.sweep(most=2)").replace("test_one", "test_few")
    (project / "test_a.py").write_text(SWEEP.replace("test_other", "test_last") + few)
    assert len(collected(project, "test_a.py")[0]) == 62
    for most, fewest, drawn in ((40, 2, 32), (10, 0, 10)):
        tests, said = collected(project, "test_a.py", "--sweep", str(most))
        assert fewest <= sum("test_few" in test for test in tests) <= 2
        assert len(tests) == drawn + 2
        assert collected(project, "test_a.py", *said.split()) == (tests, said)


PART = """
import pytest

class Suite:
    @pytest.mark.parametrize("second", range(5))
    @pytest.mark.parametrize("first", range(4))
    def test_crossed(self, first, second):
        pass

    def test_plain(self):
        pass

@pytest.mark.part(test_crossed=3)
class TestSome(Suite):
    pass

class TestAll(Suite):
    pass
"""


def test_a_class_runs_a_part_of_what_its_suite_crosses(project: Path) -> None:
    (project / "test_a.py").write_text(PART)
    assert len(collected(project, "test_a.py")[0]) == 42
    status, report = run(project, "test_a.py", "--sweep", "0", "--collect-only", "-q")
    assert status == 0 and "TestSome::test_plain" in report, report
    assert report.count("TestAll::") == 21
    some = [tuple(map(int, pair)) for pair in re.findall(r"TestSome::test_crossed\[(\d)-(\d)\]", report)]
    assert len(some) == 7 and all((first + second) % 3 == 0 for first, second in some)
    assert {first for first, _ in some} == set(range(4)) and {second for _, second in some} == set(range(5))
    assert len(collected(project, "test_a.py", "--sweep", "2")[0]) == 21 + 8 + 2
    assert len(collected(project, "test_a.py", "-m", "not sweep")[0]) == 21 + 8


def test_processes_that_share_a_run_draw_the_same(project: Path) -> None:
    _, report = run(project, "-p", "xdist", "-n", "2", "--sweep", "5")
    assert "12 passed" in report, report


def test_a_share_of_the_files_is_drawn_and_the_seed_repeats_it(project: Path) -> None:
    for name in "cdefg":
        (project / f"test_{name}.py").write_text("def test_one():\n    pass\n")
    tests, said = collected(project, "--file-share", "3", "--sweep", "2")
    assert re.fullmatch(r"--sweep=2 --file-share=3 --sweep-seed=\d+", said)
    names = {test.partition("::")[0] for test in tests}
    assert len(names) == 3
    assert len(tests) == sum(3 if name in ("test_a.py", "test_b.py") else 1 for name in names)
    assert collected(project, *said.split()) == (tests, said)
    drawn = {tuple(collected(project, "--file-share", "3", "--sweep-seed", str(seed))[0]) for seed in range(3)}
    assert len(drawn) > 1


def test_processes_that_share_a_run_have_the_longest_files_first(project: Path) -> None:
    with (project / "pytest.ini").open("a") as file:
        file.write("    slow: as it says\n")
    (project / "test_z.py").write_text("import pytest\n\n@pytest.mark.slow\ndef test_long():\n    pass\n")
    options = ("-v", "-p", "xdist", "-n", "1", "--dist", "loadfile", "--no-loadscope-reorder", "--sweep", "1")
    _, report = run(project, *options)
    begun = re.findall(r"PASSED.* (test_\w)\.py::", report)
    assert list(dict.fromkeys(begun)) == ["test_z", "test_a", "test_b"], report


def test_a_process_that_crashes_ends_the_run(project: Path) -> None:
    """As CI runs them: xdist 3.8 waits for ever where it replaces one."""
    (project / "test_a.py").write_text("import os\n\ndef test_crash():\n    os._exit(7)\n")
    status, report = run(project, "-p", "xdist", "-n", "2", "--dist", "loadfile", "--max-worker-restart", "0")
    assert status == 1 and "crashed while running 'test_a.py::test_crash'" in report, report


def test_a_run_that_takes_too_long_says_what_it_found(project: Path) -> None:
    (project / "test_a.py").write_text("def test_wrong():\n    assert False\n")
    (project / "test_b.py").write_text("import time\n\ndef test_for_ever():\n    time.sleep(600)\n")
    # Where this machine is slow, it has come to nothing before the first bounds are over.
    for seconds in (3, 12, 48, 192):
        status, report = run(project, "--most-seconds", str(seconds))
        assert status == 2 and "KeyboardInterrupt" in report, report
        if "FAILED test_a.py::test_wrong" in report:
            return
    pytest.fail(report)

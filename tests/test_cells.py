"""Cells of benchmarks: kept for the same commit, device and options, and for no other."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def cells() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cells", ROOT / "benchmarks" / "cells.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cell_that_ran_is_found_again(cells: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "cells.json"
    first = cells.Kept(path, {"commit": "0123", "device": "a"})
    assert first.get({"rows": 1}) is None
    first.put({"rows": 1}, {"wall": 2.0})
    first.put({"rows": 8}, {"wall": 3.0})
    again = cells.Kept(path, {"device": "a", "commit": "0123"})
    assert (again.get({"rows": 1}), again.get({"rows": 8})) == ({"wall": 2.0}, {"wall": 3.0})
    assert again.get({"rows": 2}) is None
    for other in ({"commit": "4567", "device": "a"}, {"commit": "0123", "device": "b"}):
        assert cells.Kept(path, other).get({"rows": 1}) is None


def test_what_has_no_commit_is_measured_again(cells: ModuleType, tmp_path: Path) -> None:
    for commit in ("0123-dirty", "unknown"):
        path = tmp_path / commit
        cells.Kept(path, {"commit": commit}).put({"rows": 1}, {"wall": 2.0})
        assert cells.Kept(path, {"commit": commit}).get({"rows": 1}) is None


def test_a_changed_tree_is_said(cells: ModuleType, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=poot", "-c", "user.email=poot@localhost")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    clean = cells.commit_of(tmp_path)
    (tmp_path / "file").write_text("2")
    assert len(clean) == 12 and cells.commit_of(tmp_path) == f"{clean}-dirty"

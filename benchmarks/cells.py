"""Cells of a benchmark that are kept: one that ran is not run again for the same commit, device and options."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def commit_of(root: Path) -> str:
    """The commit of a checkout, with a mark where tracked files differ from it; "unknown" outside of one."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    command = [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


class Kept:
    """Results by what they are of, a line of JSON each, appended as they come."""

    def __init__(self, path: Path | None, common: Mapping[str, Any]) -> None:
        """`common` is said of every cell: results of another commit or device stay in the file, unused. What changed
        since its commit has no name, and is measured each time."""
        self._path, self._common = path, dict(common)
        self._found: dict[str, dict[str, float]] = {}
        if path is not None and path.exists() and not str(common.get("commit", "")).endswith(("dirty", "unknown")):
            for line in path.read_text("utf-8").splitlines():
                entry = json.loads(line)
                self._found[_key(entry["cell"])] = entry["result"]

    def get(self, cell: Mapping[str, Any]) -> dict[str, float] | None:
        """The result of a cell that ran; None where it has to run."""
        return self._found.get(_key({**self._common, **cell}))

    def put(self, cell: Mapping[str, Any], result: dict[str, float]) -> dict[str, float]:
        """Keep a result, which is handed back."""
        whole = {**self._common, **cell}
        self._found[_key(whole)] = result
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"cell": whole, "result": result}, sort_keys=True) + "\n")
        return result


def _key(cell: Mapping[str, Any]) -> str:
    return json.dumps(cell, sort_keys=True)

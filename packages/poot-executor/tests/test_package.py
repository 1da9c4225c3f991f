"""The package's own names: all there, and none imported before it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import poot_executor
import poot_executor.compile as compiler
from poot_executor import engine, errors
from poot_executor.compile import exports as compiler_exports
from poot_executor.exports import MODULES


def test_every_name_is_there() -> None:
    for name in poot_executor.__all__:
        assert getattr(poot_executor, name) is not None
    assert poot_executor.__all__ == sorted(MODULES) == dir(poot_executor)
    assert poot_executor.PootError is errors.PootError and poot_executor.Engine is engine.Engine
    with pytest.raises(AttributeError, match="'poot_executor' has no attribute 'nothing'"):
        poot_executor.nothing  # noqa: B018 - the look-up is what is tested


def test_checkers_read_the_same_names() -> None:
    tree = ast.parse(Path(poot_executor.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    said = {name.name: item.module for item in tree.body if isinstance(item, ast.ImportFrom) for name in item.names}
    assert said == {name: f"poot_executor.{module}" for name, module in MODULES.items()}


def test_errors_bring_nothing_else() -> None:
    code = "import sys, poot_executor.errors; print(*sorted(m for m in sys.modules if m.split('.')[0] in %r))"
    found = subprocess.run(
        [sys.executable, "-c", code % (("poot_executor", "numpy"),)], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["poot_executor", "poot_executor.errors", "poot_executor.exports"]


def test_the_compiler_has_the_same() -> None:
    names = compiler_exports.MODULES
    assert compiler.__all__ == sorted(names) == dir(compiler) and all(getattr(compiler, name) for name in names)
    with pytest.raises(AttributeError, match=r"'poot_executor\.compile' has no attribute 'nothing'"):
        compiler.nothing  # noqa: B018 - the look-up is what is tested
    tree = ast.parse(Path(compiler.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    said = {name.name: item.module for item in tree.body if isinstance(item, ast.ImportFrom) for name in item.names}
    assert said == {name: f"poot_executor.compile.{module}" for name, module in names.items()}


def test_devices_bring_no_compiler() -> None:
    code = "import sys, poot_executor.device, poot_executor.discover; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "poot_executor.compile.target" in found.stdout.split()
    assert "poot_executor.compile.pipeline" not in found.stdout.split()

"""The rules that no linter holds: sizes, names, what `__init__` may hold, what no file may say."""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 500

# Words that belong to one machine or one registry and to no committed file. Escaped dots and groups
# keep this file from matching itself.
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:root|home|work|mnt|Users|opt/pypi)/[\w.]")
REGISTRY_HOST = re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|huggingface\.co|hf\.co/", re.IGNORECASE)
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")


@cache
def committed() -> tuple[Path, ...]:
    """Every file that is or would be committed."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (ROOT / name for name in listing.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def sources() -> list[Path]:
    """The modules that the distributions ship."""
    return sorted(ROOT.glob("packages/*/src/**/*.py"))


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@cache
def texts() -> tuple[tuple[str, str], ...]:
    """(name, content) of every committed file that is text."""
    found = []
    for path in committed():
        try:
            found.append((str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return tuple(found)


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_there_is_something_to_check() -> None:
    assert len(sources()) > 20
    assert len(texts()) > 50


def test_no_module_is_longer_than_the_limit() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in sources()}
    assert relative([path for path, length in lengths.items() if length > MAX_LINES]) == []


def test_no_module_is_named_for_nothing() -> None:
    nameless = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert relative([path for path in committed() if path.name in nameless]) == []


def _belongs_in_init(statement: ast.stmt, *, pytest_plugin: bool) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="register_assert_rewrite"))):
            return pytest_plugin
    return False


def test_an_init_holds_a_docstring_and_reexports() -> None:
    wrong = []
    for path in sources():
        if path.name != "__init__.py":
            continue
        tree = ast.parse(path.read_text())
        suite = path.parent.name == "conformance"
        wrong += [
            f"{path.relative_to(ROOT)}:{statement.lineno}"
            for statement in tree.body
            if not _belongs_in_init(statement, pytest_plugin=suite)
        ]
        if ast.get_docstring(tree) is None:
            wrong.append(f"{path.relative_to(ROOT)}: no docstring")
    assert wrong == []


def test_no_file_names_a_machine() -> None:
    assert lines_matching(MACHINE_PATH) == []


def test_no_file_names_a_registry() -> None:
    assert lines_matching(REGISTRY_HOST) == []


def test_nothing_is_left_for_later() -> None:
    assert lines_matching(UNFINISHED) == []


def _contract_methods(tree: ast.Module) -> set[ast.AST]:
    """Nodes inside a class that states a contract (Protocol, ABC)."""
    bases = {"Protocol", "ABC"}
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).split("[")[0].split(".")[-1] in bases for base in node.bases)
        for inner in ast.walk(node)
    }


def test_only_a_contract_leaves_a_method_open() -> None:
    wrong = []
    for path in sources():
        tree = ast.parse(path.read_text())
        allowed = _contract_methods(tree)
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node.id == "NotImplementedError" and node not in allowed
        ]
    assert wrong == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (MACHINE_PATH, "cd " + "/home" + "/someone/poot"),
        (MACHINE_PATH, "'" + "/root" + "/.cache'"),
        (REGISTRY_HOST, "https://" + "pypi" + ".org/simple"),
        (UNFINISHED, "# TO" + "DO: later"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)

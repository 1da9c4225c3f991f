"""The workspace's lists agree with its folders, about which hatch and pip are silent."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
HATCH = tomllib.loads((ROOT / "hatch.toml").read_text())
PROJECTS = {
    path.parent.name: tomllib.loads(path.read_text()) for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}


def member_entries(environment: str) -> list[tuple[str, list[str]]]:
    """(path, features) of the environment's workspace members."""
    members: list[Any] = HATCH["envs"][environment]["workspace"]["members"]
    return [(m, []) if isinstance(m, str) else (m["path"], list(m.get("features", []))) for m in members]


def test_every_package_is_found() -> None:
    assert len(PROJECTS) >= 4


@pytest.mark.parametrize("environment", ["hatch-test", "hatch-check-types"])
def test_every_package_is_a_member_where_members_are_listed(environment: str) -> None:
    listed = {path for path, _ in member_entries(environment)}
    assert {f"packages/{name}" for name in PROJECTS} <= listed


@pytest.mark.parametrize("environment", sorted(HATCH["envs"]))
def test_features_exist(environment: str) -> None:
    """An unknown feature is ignored by hatch without a word."""
    if "workspace" not in HATCH["envs"][environment]:
        return
    for path, features in member_entries(environment):
        for feature in features:
            project = tomllib.loads((ROOT / path / "pyproject.toml").read_text())["project"]
            assert feature in project["optional-dependencies"], (environment, path, feature)


def test_import_linter_knows_every_package() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    linted = set(config["importlinter"]["root_packages"].split())
    assert linted == {name.replace("-", "_") for name in PROJECTS}
    torch_free = set(config["importlinter:contract:torchfree"]["source_modules"].split())
    assert torch_free == linted


def test_the_type_checker_searches_every_package() -> None:
    searched = tomllib.loads((ROOT / "pyrefly.toml").read_text())["search-path"]
    assert {f"packages/{name}/src" for name in PROJECTS} <= set(searched)


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_a_distribution_says_what_it_is(name: str) -> None:
    project = PROJECTS[name]["project"]
    folder = ROOT / "packages" / name
    package = folder / "src" / name.replace("-", "_")
    assert project["name"] == name
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert project["description"].endswith(".")
    assert (folder / project["readme"]).read_text().strip()
    assert (package / "py.typed").exists()
    assert PROJECTS[name]["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == [f"src/{package.name}"]


def test_siblings_are_one_version_and_say_so() -> None:
    versions = {project["project"]["version"] for project in PROJECTS.values()}
    assert len(versions) == 1
    (version,) = versions
    for name, project in PROJECTS.items():
        extras = project["project"].get("optional-dependencies", {})
        lists = [project["project"].get("dependencies", []), *extras.values()]
        requirements = [requirement for each in lists for requirement in each]
        for requirement in requirements:
            if requirement.startswith("poot-") and "[" not in requirement:
                assert requirement.endswith(f"~={version}"), (name, requirement)


def test_a_device_follows_the_naming_rule() -> None:
    for name, project in PROJECTS.items():
        if not name.endswith("-device"):
            continue
        short = name.removeprefix("poot-").removesuffix("-device")
        assert list(project["project"]["entry-points"]["poot.devices"]) == [short]
        extras = PROJECTS["poot-llm"]["project"]["optional-dependencies"]
        assert any(requirement.startswith(name) for requirement in extras[short])
        assert short in HATCH["envs"]["device"]["matrix"][0]["device"]

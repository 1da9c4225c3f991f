"""docs/serve.md and the files beside it say what the server has, all of it and nothing else."""

from __future__ import annotations

import argparse
import configparser
import re
import shlex
from pathlib import Path

import pytest

from poot_serve import command

DOCS = Path(__file__).resolve().parents[4] / "docs"
PAGE = (DOCS / "serve.md").read_text("utf-8")


def section(title: str) -> str:
    """A section's text."""
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def code(text: str) -> set[str]:
    """What stands in backticks."""
    return set(re.findall(r"`([^`]+)`", text))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(made)
    return made


def test_every_option_is_there() -> None:
    options = {word for action in parser()._actions for word in action.option_strings} - {"-h", "--help"}
    rows = [line.split(" | ")[0] for line in section("Settings").splitlines() if line.startswith("| ")]
    assert {word for row in rows for word in code(row) if word.startswith("--")} == options


def test_every_route_is_there(client) -> None:
    described = client.get("/openapi.json").json()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    served = {re.sub(r"\{\w+(:\w+)?\}", "{name}", route) for route in served}
    told = {word for word in code(section("Routes")) if re.match(r"(GET|POST) /", word)}
    assert told - {"GET /", "GET /openapi.json"} == served


def test_every_metric_is_there(client) -> None:
    text = client.get("/metrics").text
    names = re.findall(r"^# TYPE (\w+) (\w+)", text, re.MULTILINE)
    # A counter is read by its name with _total; what only says when a count began is no metric of its own.
    served = {name for name, _ in names if not name.endswith("_created")}
    told = {word for word in code(section("Metrics")) if word.startswith("poot_")}
    missing = served - told
    assert missing == set()
    # Blocks, and what a device tells, are not there on every device.
    assert {name for name in told - served if "blocks" not in name and "gpu" not in name} <= {
        "poot_kv_cache_usage_ratio"
    }


def arguments_of(line: str) -> list[str]:
    """The words after `poot serve` in a shell line."""
    words = shlex.split(line)
    return words[words.index("serve") + 1 :]


def test_the_unit_starts_what_there_is() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read_string((DOCS / "serve" / "poot-serve.service").read_text("utf-8"))
    service = unit["Service"]
    parsed = parser().parse_args(arguments_of(service["ExecStart"]))
    assert parsed.model == "smollm2"
    assert float(service["TimeoutStopSec"]) > parsed.drain_seconds


def test_the_container_starts_what_there_is() -> None:
    text = (DOCS / "serve" / "Containerfile").read_text("utf-8")
    line = re.search(r"exec poot (serve [^\\]*)", text)
    assert line is not None
    parsed = parser().parse_args(arguments_of(line[1]))
    assert (parsed.host, parsed.port) == ("0.0.0.0", 8080)
    for folder in re.findall(r"/tmp/(packages/[\w-]+)", text):
        assert (DOCS.parent / folder / "pyproject.toml").exists()


@pytest.mark.parametrize("block", re.findall(r"^\$ poot (serve|bench serve)((?: [^\n]*)?)$", PAGE, re.MULTILINE))
def test_the_commands_of_the_page_can_be_read(block) -> None:
    from poot_serve.bench import command as bench

    made = argparse.ArgumentParser(exit_on_error=False)
    (command if block[0] == "serve" else bench).add_arguments(made)
    made.parse_args(shlex.split(block[1]))

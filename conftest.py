"""Sweeps: broad repetitions of what other tests cover, of which a run may take a part drawn from a printed seed."""

from __future__ import annotations

import random
import secrets
from collections import defaultdict
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--sweep N` runs N tests of each sweep, `--sweep-seed` repeats a draw. Without it a run has all of them."""
    group = parser.getgroup("poot")
    group.addoption("--sweep", type=int, default=None, metavar="N", help="tests to run of each sweep (default: all)")
    group.addoption("--sweep-seed", type=int, default=None, help="which ones, to repeat a run (default: fresh)")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the run's seed; a process that shares a run's tests is given it."""
    if config.option.sweep_seed is None:
        shared = getattr(config, "workerinput", {})
        config.option.sweep_seed = shared["sweep_seed"] if shared else secrets.randbits(32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """What a process that shares this run's tests is given."""
    node.workerinput["sweep_seed"] = node.config.option.sweep_seed


def pytest_report_header(config: pytest.Config) -> str | None:
    """What repeats the draw."""
    most = config.getoption("--sweep")
    return None if most is None else f"sweeps: --sweep={most} --sweep-seed={config.option.sweep_seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not drawn. A sweep is the tests of one file that are marked so."""
    most = config.getoption("--sweep")
    if most is None:
        return
    sweeps: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep") is not None:
            sweeps[item.nodeid.partition("::")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for name, sweep in sorted(sweeps.items()):
        draw = random.Random(f"{config.option.sweep_seed} {name}")
        left_out.update(draw.sample(sweep, max(0, len(sweep) - most)))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]

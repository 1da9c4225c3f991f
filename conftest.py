"""Sweeps: broad repetitions of what other tests cover, of which a run may take a part drawn from a printed seed."""

from __future__ import annotations

import random
import secrets
from collections import defaultdict

import pytest

_SEED = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--sweep N` runs N tests of each sweep, `--sweep-seed` repeats a draw. Without it a run has all of them."""
    group = parser.getgroup("poot")
    group.addoption("--sweep", type=int, default=None, metavar="N", help="tests to run of each sweep (default: all)")
    group.addoption("--sweep-seed", type=int, default=None, help="which ones, to repeat a run (default: fresh)")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the run's seed."""
    given = config.getoption("--sweep-seed")
    config.stash[_SEED] = secrets.randbits(32) if given is None else given


def pytest_report_header(config: pytest.Config) -> str | None:
    """What repeats the draw."""
    most = config.getoption("--sweep")
    return None if most is None else f"sweeps: --sweep={most} --sweep-seed={config.stash[_SEED]}"


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
        draw = random.Random(f"{config.stash[_SEED]} {name}")
        left_out.update(draw.sample(sweep, max(0, len(sweep) - most)))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]

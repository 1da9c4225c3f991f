"""The pytest plug-in: random numbers from a printed seed, for tests of anything that computes."""

from __future__ import annotations

import secrets
import zlib
from typing import Any

import numpy as np
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--poot-seed N` repeats a run's inputs."""
    parser.getgroup("poot").addoption(
        "--poot-seed",
        type=int,
        default=None,
        help="seed of the tests' inputs, to repeat a run (default: fresh)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the run's seed; a process that shares a run's tests is given it."""
    if config.option.poot_seed is None:
        shared = getattr(config, "workerinput", {})
        config.option.poot_seed = shared["poot_seed"] if shared else secrets.randbits(32)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """What a process that shares this run's tests is given."""
    node.workerinput["poot_seed"] = node.config.option.poot_seed


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, so that a failing run can be repeated."""
    return f"poot seed: --poot-seed={config.option.poot_seed}"


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the run's seed and the test's name, not on the order of
    tests."""
    seed = request.config.option.poot_seed
    name = request.node.nodeid.split("::", 1)[-1]
    print(f"repeat with --poot-seed={seed}")  # noqa: T201 (pytest shows it where a test fails)
    return np.random.default_rng([seed, zlib.crc32(name.encode())])

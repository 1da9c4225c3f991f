"""Sweeps: broad repetitions of what other tests cover, of which a run may take a part drawn from a printed seed. And a
run as a whole: a share of its files, how long it may take, and which files begin where several processes share it.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
import signal
import threading
from collections import defaultdict
from collections.abc import Generator
from typing import Any

import pytest

SECONDS = {"slow": 20.0, "sweep": 8.0}
"""About what a test takes that is marked so."""
OTHERWISE = 0.1


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--sweep N` runs N tests of each sweep, `--file-share N` one of N files, `--sweep-seed` repeats a draw. Without
    them a run has all.
    """
    group = parser.getgroup("poot")
    group.addoption("--sweep", type=int, default=None, metavar="N", help="tests to run of each sweep (default: all)")
    group.addoption("--file-share", type=int, default=None, metavar="N", help="run one of N files (default: all)")
    group.addoption("--sweep-seed", type=int, default=None, help="which ones, to repeat a run (default: fresh)")
    group.addoption("--most-seconds", type=float, default=None, metavar="S", help="interrupt a run that takes longer")


def pytest_configure(config: pytest.Config) -> None:
    """Draw the run's seed; a process that shares a run's tests is given it. And set the run's bound."""
    shared = getattr(config, "workerinput", None)
    if config.option.sweep_seed is None:
        config.option.sweep_seed = shared["sweep_seed"] if shared else secrets.randbits(32)
    if shared is None and config.option.most_seconds is not None:
        # As Ctrl-C: what has failed so far is said.
        watch = threading.Timer(config.option.most_seconds, os.kill, (os.getpid(), signal.SIGINT))
        watch.daemon = True
        watch.start()
        config.add_cleanup(watch.cancel)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """What a process that shares this run's tests is given."""
    node.workerinput["sweep_seed"] = node.config.option.sweep_seed


def pytest_report_header(config: pytest.Config) -> str | None:
    """What repeats the draw."""
    option = config.option
    parts = {"sweep": option.sweep, "file-share": option.file_share}
    drawn = " ".join(f"--{name}={value}" for name, value in parts.items() if value is not None)
    return f"sweeps: {drawn} --sweep-seed={option.sweep_seed}" if drawn else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark sweeps before -m selects; then leave out what was not drawn. Of several processes that share a run, each has
    the longest files first.
    """
    _mark_what_no_part_has(items)
    yield
    files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    left_out: set[pytest.Item] = set()
    if (share := config.option.file_share) is not None:
        names = sorted(files)
        kept = set(random.Random(config.option.sweep_seed).sample(names, -(-len(names) // share)))
        left_out.update(item for name in names if name not in kept for item in files[name])
    if (most := config.option.sweep) is not None:
        for name, tests in sorted(files.items()):
            left_out.update(_not_drawn(tests, most, f"{config.option.sweep_seed} {name}"))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        seconds: defaultdict[str, float] = defaultdict(float)
        for item in items:
            seconds[item.nodeid.partition("::")[0]] += _about(item)
        items.sort(key=lambda item: -seconds[item.nodeid.partition("::")[0]])


def pytest_collection_finish() -> None:
    """What was collected lives as long as the run: looking through thousands of tests for cycles, again and again, was
    a sixth of what tests of the compiler took."""
    gc.collect()
    gc.freeze()


def _mark_what_no_part_has(items: list[pytest.Item]) -> None:
    """Of a test that its class's mark names, as `part(test_contraction=4)` does, those combinations of parameters run
    always whose places in their lists sum to a multiple of 4: every value is in one where two lists are as long. The
    rest is a sweep.
    """
    places: defaultdict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    for item in items:
        mark = item.get_closest_marker("part")
        if mark is None or not isinstance(item, pytest.Function) or item.originalname not in mark.kwargs:
            continue
        test = item.nodeid.partition("[")[0]
        total = 0
        for name, value in item.callspec.params.items():
            known = places[test, name]
            total += known.setdefault(id(value), len(known))
        if total % mark.kwargs[item.originalname]:
            item.add_marker(pytest.mark.sweep)


def _not_drawn(tests: list[pytest.Item], most: int, seed: str) -> list[pytest.Item]:
    """What a run leaves out of a file's sweep: of its tests that are marked so, and before that of each function's that
    says how many are enough, as `sweep(most=2)` does.
    """
    draw = random.Random(seed)
    functions: defaultdict[tuple[str, int], list[pytest.Item]] = defaultdict(list)
    for item in tests:
        if (mark := item.get_closest_marker("sweep")) is not None:
            functions[item.nodeid.partition("[")[0], mark.kwargs.get("most", len(tests))].append(item)
    left_out: set[pytest.Item] = set()
    for (_, enough), items in functions.items():
        left_out.update(draw.sample(items, max(0, len(items) - enough)))
    rest = [item for items in functions.values() for item in items if item not in left_out]
    return [*left_out, *draw.sample(rest, max(0, len(rest) - most))]


def _about(item: pytest.Item) -> float:
    """About how many seconds a test takes."""
    return max((SECONDS.get(mark.name, OTHERWISE) for mark in item.iter_markers()), default=OTHERWISE)

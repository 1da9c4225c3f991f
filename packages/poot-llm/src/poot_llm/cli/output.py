"""Where a command's words go: results to standard output, everything about them to standard error."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE = 10_000
"""Columns of a table that goes to a file or a pipe: no cell is broken there."""


def write(text: str) -> None:
    """Text to standard output at once. Raises OutputError; a reader that has gone is BrokenPipeError, as ever."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        from poot_llm.cli.errors import OutputError

        raise OutputError(f"standard output: {error.strerror or error}") from error


def note(text: str) -> None:
    """A line about the work, on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def ask(question: str) -> bool:
    """Whether the answer of whoever sits at the terminal is yes, which an empty line is too. The end of input is no."""
    sys.stderr.write(f"{question} [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
        return False
    return answer.strip().lower() in ("", "y", "yes")


def show(table: RenderableType) -> None:
    """A table to standard output, as wide as the terminal, or `WIDE` where there is none."""
    from rich.console import Console

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE
    console = Console(width=width, highlight=False, soft_wrap=False)
    with console.capture() as captured:
        console.print(table)
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

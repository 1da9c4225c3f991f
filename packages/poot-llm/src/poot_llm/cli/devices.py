"""`poot devices`: what is installed, what opens, and why the rest does not."""

from __future__ import annotations

import argparse

from poot_executor.device import Found, Missing
from poot_executor.discover import Status, survey
from poot_executor.settings import read_settings
from poot_llm.cli.output import note, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None: it always shows all."""


def run(arguments: argparse.Namespace) -> int:
    """Open and close every device that is found, and say how that went. Raises DuplicateDevice."""
    from rich.table import Table

    statuses = survey(read_settings().device, try_open=True)
    table = Table("device", "is", "opens", "from", box=None, pad_edge=False, header_style="bold")
    for status in statuses:
        for row in rows(status):
            table.add_row(*row)
    if statuses:
        show(table)
    else:
        note('no device is installed: pip install "poot-llm[wgpu]"')
    return 0


def rows(status: Status) -> list[tuple[str, str, str, str]]:
    """A line for each device of a distribution, or one that says why it has none."""
    source = f"{status.distribution} {status.version}"
    if status.error is not None:
        return [(status.name, "", f"no: {one_line(status.error)}", source)]
    lines = [_row(status, entry, source) for entry in status.entries]
    return lines or [(status.name, "", "no: it found no device", source)]


def _row(status: Status, entry: Found | Missing, source: str) -> tuple[str, str, str, str]:
    if isinstance(entry, Missing):
        return (status.name, "", f"no: {one_line(entry.reason)}", source)
    name = f"{status.name}:{entry.selector}" if entry.selector else status.name
    refusal = status.refused.get(entry.selector)
    kind = f"{entry.description} (software)" if entry.software else entry.description
    opens = "yes" if refusal is None else f"no: {one_line(refusal)}"
    return (name, kind, opens if status.automatic else f"{opens}; only by name", source)


def one_line(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())

"""A peer beside poot in the same run, in a process of its own: each repeat measures poot, then the peer.

Each side's turn begins with a repeat that is not counted: threads of the other side spin for a while where they find no
work, and a processor that rested is slow at first.

`--peer llama.cpp --peer-python VENV/bin/python` on a benchmark's command line; the virtual environment has
llama-cpp-python (CPU build) and need not have poot.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

CHILD = Path(__file__).with_name("llama_cpp_child.py")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: for reading prompts, and for steps of a token in each sequence."""

    prompt: float
    tokens: float


class Peer:
    """llama.cpp's CPU backend on a checkpoint. `about` says what it is. Raises SystemExit where it does not start."""

    def __init__(self, python: str, path: Path, threads: int, rows: int, capacity: int) -> None:
        command = [python, str(CHILD), str(path), str(threads), str(rows), str(capacity)]
        self._process = _started(command)
        self.about = _line(self._process).get("about", "")
        if not self.about:
            self._process.wait()
            said = f"ended with status {self._process.returncode} in its default form"
            self._process = _started([*command, "plain"])
            self.about = _line(self._process).get("about", "")
            if not self.about:
                sys.exit(f"the peer does not start: {' '.join(command)}")
            self.about += f" (it {said})"

    def measure(self, rows: int, prompt: int, tokens: int) -> Timing:
        """One repeat, after one that is not counted."""
        self._repeat(rows, prompt, tokens)
        return self._repeat(rows, prompt, tokens)

    def _repeat(self, rows: int, prompt: int, tokens: int) -> Timing:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"rows": rows, "prompt": prompt, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        answer = _line(self._process)
        if not answer:
            sys.exit(f"the peer ended with status {self._process.wait()} while it was measured")
        return Timing(float(answer["prompt"]), float(answer["tokens"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def add_peer(parser: argparse.ArgumentParser) -> None:
    """The options --peer, --peer-python and --threads."""
    group = parser.add_argument_group("a peer in the same run")
    group.add_argument("--peer", choices=["llama.cpp"], help="measure it too, repeat by repeat (default: nothing)")
    group.add_argument(
        "--peer-python", default=sys.executable, metavar="FILE", help="Python that has it (default: this one)"
    )
    count = os.cpu_count() or 1
    group.add_argument("--threads", type=int, default=count, help=f"of the peer (default: all processors, {count})")


def peer_of(arguments: argparse.Namespace, path: Path, rows: int, capacity: int) -> Peer | None:
    """The peer that the command line asks for, started."""
    if arguments.peer is None:
        return None
    return Peer(arguments.peer_python, path, arguments.threads, rows, capacity)


def ratio(ours: tuple[float, ...], theirs: tuple[float, ...]) -> str:
    """Of two rates, by their medians, and the least and the most of the pairs of repeats."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{median(ours) / median(theirs):.2f} of the peer's ({min(pairs):.2f} to {max(pairs):.2f} by repeat)"


def _started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def _line(process: subprocess.Popen[str]) -> dict[str, str]:
    """The next line that a process says; nothing where it has ended."""
    assert process.stdout is not None
    text = process.stdout.readline()
    return json.loads(text) if text else {}

"""`python -m poot_executor.compile.worker`: a process that compiles graphs for the one that started it.

Its standard input has a job (see `Job`) and then graphs, its standard output the bytes of a program for each, none
where it cannot be compiled: the other process then compiles it itself, and says why. The end of the input ends it.
Frames are a length (u32, little-endian) and as many bytes; what is pickled is written and read by poot alone.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
from dataclasses import dataclass, fields
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from poot_executor.compile.graph_record import graph_record, read_graph
from poot_executor.compile.lower.reuse import SharedKernels
from poot_executor.compile.options import CompileLimits, CompileOptions
from poot_executor.compile.pipeline import compile
from poot_executor.compile.program_record import encode_program, graph_records
from poot_executor.compile.schedule_picks import Schedules
from poot_executor.compile.target import Caps, Target
from poot_executor.errors import PootError
from poot_executor.graph.graph import Graph

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Job:
    """What all graphs of a process are compiled for. `caps` are the fields of the target's, by name."""

    kind: str
    caps: dict[str, Any]
    deterministic: bool
    limits: CompileLimits
    schedules: Schedules

    @classmethod
    def of(cls, target: Target, options: CompileOptions) -> Job:
        """That of a compilation; `verify`, `dump` and `cache` are not part of it."""
        caps = {f.name: getattr(target.caps, f.name) for f in fields(Caps)}
        # A mapping that cannot be changed cannot be pickled.
        caps["errors"] = dict(target.caps.errors)
        return cls(target.kind, caps, options.deterministic, options.limits, options.schedules)

    def target(self) -> Target:
        """The target."""
        return Target(self.kind, Caps(**self.caps))

    def options(self) -> CompileOptions:
        """The options, with kernels that all graphs share."""
        return CompileOptions(
            deterministic=self.deterministic, limits=self.limits, schedules=self.schedules, shared=SharedKernels()
        )


def write_frame(file: IO[bytes], data: bytes) -> None:
    """Raises OSError where the reader has gone."""
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes:
    """Raises EOFError at the end, also in the middle of a frame."""
    (length,) = _LENGTH.unpack(_exactly(file, _LENGTH.size))
    return _exactly(file, length)


def encode_graph(graph: Graph) -> bytes:
    """A graph's bytes."""
    return pickle.dumps(graph_record(graph, graph_records()), pickle.HIGHEST_PROTOCOL)


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise EOFError(f"the stream ended {count - len(data)} bytes early")
    return data


def main() -> None:
    """Compile until the other process says no more, or goes. What it ends itself is for it alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_receive, args=(os.dup(0), incoming), name="poot-incoming", daemon=True).start()
    with os.fdopen(os.dup(1), "wb") as outgoing:
        # What anything prints goes to the standard error.
        os.dup2(2, 1)
        job: Job = pickle.loads(incoming.get())  # noqa: S301 - written by the process that started this one
        target, options = job.target(), job.options()
        while True:
            record, data = pickle.loads(incoming.get())  # noqa: S301 - likewise
            graph = read_graph(record, data, graph_records())
            try:
                payload = encode_program(compile(graph, target, options))
            except PootError:
                payload = b""
            write_frame(outgoing, payload)


def _receive(file: int, frames: SimpleQueue[bytes]) -> None:
    """Read frames; the process ends with them, whatever it is at: nobody wants what it would still say, and others may
    wait until it lets go of the standard error."""
    with os.fdopen(file, "rb") as incoming:
        try:
            while True:
                frames.put(read_frame(incoming))
        except (EOFError, OSError):
            os._exit(0)


if __name__ == "__main__":
    main()

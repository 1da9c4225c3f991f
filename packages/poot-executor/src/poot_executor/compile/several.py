"""Several graphs compiled together: kernels that they share are made once, and where the graphs are many and large,
processes of this interpreter compile them side by side. What comes out is what `compile` gives for each alone.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from queue import SimpleQueue

from poot_executor.compile.lower.reuse import SharedKernels
from poot_executor.compile.options import CompileOptions
from poot_executor.compile.pipeline import compile
from poot_executor.compile.program import Program
from poot_executor.compile.program_record import decode_program
from poot_executor.compile.target import Granularity, Target
from poot_executor.compile.worker import Job, encode_graph, read_frame, write_frame
from poot_executor.graph.graph import Graph

PROCESSES = 8
"""At most, where options do not say how many: each takes some hundred megabytes."""
EQUATIONS = 16384
"""From so many on, in all graphs together, processes pay: one starts in half a second, and four thousand equations, a
step of a small model, take about three."""
WAIT_SECONDS = 600.0
"""How long a program may take that another process compiles; then this one compiles it."""
_LOG = logging.getLogger("poot.compile")


def compile_several(
    groups: Sequence[Sequence[Graph]], target: Target, options: CompileOptions
) -> Generator[Program, None, None]:
    """The programs of all graphs in order, each when it is asked for; graphs of a group have most kernels in common.

    Raises what `compile` does, at the graph that it concerns. Those that are in the cache are taken from there, and
    what is compiled is kept in it.
    """
    options = replace(options, shared=SharedKernels() if options.shared is None else options.shared)
    cache = None if options.verify or options.dump is not None else options.cache
    found: dict[Graph, Program | None] = {}
    if cache is not None:
        found = {g: cache.find(g, target, options) for group in groups for g in group}
    missing = [[g for g in group if found.get(g) is None] for group in groups]
    missing = [group for group in missing if group]
    count = _processes(missing, target, options)
    with _started(count, target, options) if count > 1 else nullcontext() as workers:
        if workers is not None:
            for group in missing:
                workers.begin(group)
        yield from _in_order(groups, found, workers, target, options)


def _processes(missing: Sequence[Sequence[Graph]], target: Target, options: CompileOptions) -> int:
    if options.verify or options.dump is not None or target.caps.granularity is Granularity.GRAPH:
        return 1
    if sum(len(graph.equations) for group in missing for graph in group) < EQUATIONS and options.processes is None:
        return 1
    most = min(PROCESSES, _processors()) if options.processes is None else options.processes
    return min(most, len(missing))


def _processors() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _in_order(
    groups: Sequence[Sequence[Graph]],
    found: dict[Graph, Program | None],
    workers: _Workers | None,
    target: Target,
    options: CompileOptions,
) -> Iterator[Program]:
    for graph in (graph for group in groups for graph in group):
        program = found.get(graph)
        if program is None:
            payload = b"" if workers is None else workers.result(graph)
            if payload:
                # Of a process of this one's own: what a folder may have suffered has not happened to it.
                program = decode_program(payload, graph, target, lambda: None, trusted=True)
            else:
                program = compile(graph, target, replace(options, cache=None))
            if options.cache is not None and graph in found:
                options.cache.keep(graph, target, options, payload or program)
        yield program


@contextmanager
def _started(count: int, target: Target, options: CompileOptions) -> Iterator[_Workers | None]:
    """Processes, ended behind; None where the system gives none, which the log says."""
    workers = _Workers(count)
    try:
        try:
            workers.start(count, pickle.dumps(Job.of(target, options), pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            _LOG.warning("no processes to compile in (%s): this one compiles everything", error)
            yield None
        else:
            yield workers
    finally:
        workers.end()


class _Workers:
    """Processes, each held by a thread of its own while it compiles a group."""

    def __init__(self, count: int) -> None:
        self._ending = False
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "poot-compile")
        self._futures: dict[Graph, tuple[Future[list[bytes]], int]] = {}

    def start(self, count: int, job: bytes) -> None:
        """Raises OSError where there is no process to be had."""
        command = [sys.executable, "-m", "poot_executor.compile.worker"]
        for _ in range(count):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._processes.append(process)
            assert process.stdin is not None
            with suppress(OSError):  # that it has gone is seen by whoever writes to it next
                write_frame(process.stdin, job)
            self._idle.put(process)

    def begin(self, group: Sequence[Graph]) -> None:
        """Have a group compiled by the next process that is idle."""
        future = self._threads.submit(self._compile, group)
        self._futures.update({graph: (future, place) for place, graph in enumerate(group)})

    def result(self, graph: Graph) -> bytes:
        """The bytes of a program that was begun; none where its process has none."""
        future, place = self._futures.pop(graph)
        try:
            return future.result(WAIT_SECONDS)[place]
        except TimeoutError:
            _LOG.warning("a process that compiles takes over %.0f s: this one compiles what it had", WAIT_SECONDS)
            return b""

    def _compile(self, group: Sequence[Graph]) -> list[bytes]:
        process = self._idle.get()
        assert process.stdin is not None and process.stdout is not None
        try:
            payloads = []
            for graph in group:
                write_frame(process.stdin, encode_graph(graph))
                payloads.append(read_frame(process.stdout))
        except (EOFError, OSError) as error:
            if not self._ending:
                _LOG.warning("a process that compiles has gone (%s): this one compiles what it had", error)
            return [b""] * len(group)
        else:
            return payloads
        finally:
            self._idle.put(process)

    def end(self) -> None:
        """Kill them, whatever they are at."""
        self._ending = True
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

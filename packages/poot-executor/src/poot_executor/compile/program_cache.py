"""Compiled programs on disk, by content: a step that was compiled once starts without being compiled again.

An entry's key is a hash of everything that a program depends on: the graph with the bytes of its constants, the
target's kind and caps, the options that change the outcome, the versions of poot and numpy, and poot_executor's own
sources. Its value is `program_record.py`'s, in an entry of `entry_folder.py`. What is damaged, foreign, or does not fit
the graph and target is compiled again and written over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path

import numpy as np

from poot_executor.cache import hash_parts, source_digest, target_parts
from poot_executor.compile.options import CompileOptions
from poot_executor.compile.program import Program
from poot_executor.compile.program_record import decode_program, encode_program
from poot_executor.compile.records import RecordError
from poot_executor.compile.target import Target
from poot_executor.entry_folder import MAX_BYTES, EntryFolder, canonical
from poot_executor.graph.graph import Graph, TensorType

MAGIC = b"POOTPRG1"
SUFFIX = ".program"


@dataclass(frozen=True, slots=True)
class ProgramCacheStats:
    """`hits`, `misses` (compiled), `rejected` (files that were no entry), `written`, `evicted`.

    `warning` is the first reason why an entry could not be kept; None where all were.
    """

    hits: int
    misses: int
    rejected: int
    written: int
    evicted: int
    warning: str | None


class ProgramCache:
    """A folder of compiled programs that several processes may share; None keeps nothing.

    A folder that cannot be read or written, or is full, costs the cache and never a compile: the first reason is in
    `stats().warning`.
    """

    def __init__(self, folder: Path | None, *, max_bytes: int = MAX_BYTES) -> None:
        self._enabled = folder is not None
        self._folder = EntryFolder(folder, MAGIC, SUFFIX, max_bytes)
        self._context: bytes | None = None
        self._hits = self._misses = 0

    def get(self, graph: Graph, target: Target, options: CompileOptions, make: Callable[[], Program]) -> Program:
        """The program of a graph: from disk, else from `make`, whose errors pass.

        One from disk reads its graph and the bodies of its kernels when they are first asked for; should one turn out
        damaged then, it raises KernelError or GraphError, and the entry is gone.
        """
        program = self.find(graph, target, options)
        if program is None:
            program = make()
            self.keep(graph, target, options, program)
        return program

    def find(self, graph: Graph, target: Target, options: CompileOptions) -> Program | None:
        """The program of a graph from disk, as `get` has it; None where it has to be made, and then kept."""
        if not self._enabled:
            return None
        key = self._key(graph, target, options)
        payload = self._folder.read(key)
        if payload is not None:
            try:
                program = decode_program(payload, graph, target, lambda: self._folder.remove(key))
            except RecordError:
                self._folder.reject()
            else:
                self._hits += 1
                return program
        self._misses += 1
        return None

    def keep(self, graph: Graph, target: Target, options: CompileOptions, program: Program | bytes) -> None:
        """Write what was made, or the bytes that `encode_program` gives of it."""
        if not self._enabled:
            return
        try:
            payload = program if isinstance(program, bytes) else encode_program(program)
        except RecordError as error:
            self._folder.warn(f"a program cannot be kept: {error}")
            return
        self._folder.write(self._key(graph, target, options), payload)

    def _key(self, graph: Graph, target: Target, options: CompileOptions) -> bytes:
        if self._context is None:
            self._context = compiler_context()
        return program_key(graph, target, options, self._context)

    def stats(self) -> ProgramCacheStats:
        """The counts since this cache was made."""
        kept = self._folder.stats()
        return ProgramCacheStats(self._hits, self._misses, kept.rejected, kept.written, kept.evicted, kept.warning)


def compiler_context() -> bytes:
    """What programs depend on besides graph, target and options: versions and the compiler's own sources."""
    # Constants are folded with numpy, whose functions may change their last bits.
    text = f"{metadata.version('poot-executor')}\nnumpy {np.__version__}\n{source_digest('poot_executor')}"
    return text.encode()


def program_key(graph: Graph, target: Target, options: CompileOptions, context: bytes) -> bytes:
    """32 bytes that name what a graph compiles to on a target under these options."""
    return hash_parts(context, *target_parts(target), options_key(options), graph_key(graph))


def options_key(options: CompileOptions) -> bytes:
    """The options that change what is compiled, or whether it is."""
    limits = {f.name: getattr(options.limits, f.name) for f in fields(options.limits)}
    return canonical(
        {"deterministic": options.deterministic, "limits": limits, "schedules": options.schedules.picks}
    ).encode()


def graph_key(graph: Graph) -> bytes:
    """32 bytes of everything in a graph: equal ones mean equal graphs, the bits of constants and the sign of a zero
    included."""
    types: dict[TensorType, int] = {}
    lines = [repr(graph.name)]
    for item in graph.inputs:
        type_ = types.setdefault(item.value.type, len(types))
        data = "" if item.data is None else hashlib.sha256(item.data.tobytes()).hexdigest()
        lines.append(f"{item.value.id} {type_} {item.storage.value} {item.key!r} {data}")
    for e in graph.equations:
        type_ = types.setdefault(e.output.type, len(types))
        operands = [v.id for v in e.inputs]
        params = sorted(e.params.items()) if e.params else ""
        lines.append(f"{e.output.id} {type_} {e.op} {operands} {params}")
    lines += [f"state {pair.key!r} {pair.before.id} {pair.after.id}" for pair in graph.state]
    lines += [f"check {value.id}" for value in graph.checks]
    lines += [f"output {name!r} {value.id}" for name, value in graph.outputs.items()]
    lines += [f"type {type_}" for type_ in types]
    return hashlib.sha256("\n".join(lines).encode()).digest()

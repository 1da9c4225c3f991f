"""A program as bytes, and back: plain JSON, the text of each kernel, and data. Nothing is unpickled or run.

The bytes are sections, each with its length (u32, little-endian) before it:

    the program · its graph · data of the graph · constants · the text of each kernel

All but the data and constants are JSON or text, compressed. The graph and the kernels are read when they are asked
for: a device that finds its code elsewhere asks for neither.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from poot_executor.compile.graph_record import graph_record, read_graph
from poot_executor.compile.program import (
    Arg,
    CopyCommand,
    Decline,
    DispatchCommand,
    OutputField,
    Program,
    SlotField,
    StateUse,
    StoredProgram,
    WeightUse,
)  # fmt: skip
from poot_executor.compile.program_check import check_program
from poot_executor.compile.records import RecordError, Records
from poot_executor.compile.target import Target
from poot_executor.errors import KernelError
from poot_executor.formats import FORMATS, Format
from poot_executor.graph.graph import Graph
from poot_executor.kernel.ir import Block, Kernel, Param, SharedArray
from poot_executor.kernel.loop_rounds import loop_rounds
from poot_executor.kernel.parse import parse
from poot_executor.kernel.stored import KernelFacts, StoredKernel
from poot_executor.kernel.verify import verify

_TEXT_MOST = 256 << 20
"""Bytes of a section that is decompressed."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    params: tuple[Param, ...]
    shared: tuple[SharedArray, ...]
    group_size: int
    groups: tuple[int, int, int] | None
    resident: bool
    digest: str
    checks: bool
    loop_rounds: int | None


@dataclass(frozen=True, slots=True, eq=False)
class _Dispatch:
    """A DispatchCommand with its kernel by number."""

    kernel: int
    args: tuple[Arg, ...]
    groups: tuple[int, int, int]
    work: int
    region: str
    equations: tuple[int, ...]
    schedule: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    kernels: tuple[_Kernel, ...]
    commands: tuple[_Dispatch | CopyCommand, ...]
    weights: tuple[WeightUse, ...]
    states: tuple[StateUse, ...]
    slots: tuple[SlotField, ...]
    input_bytes: int
    outputs: tuple[OutputField, ...]
    checks: tuple[int, ...]
    output_bytes: int
    arena_bytes: int
    arena_floor: int
    passes: tuple[str, ...]
    declines: tuple[Decline, ...]


def graph_records() -> Records:
    """What reads and writes the records of a program and its graph."""
    return Records({Format: FORMATS})


def encode_program(program: Program) -> bytes:
    """The program's bytes, without its target."""
    records = graph_records()
    kernels: dict[bytes, tuple[int, Kernel]] = {}
    commands: list[_Dispatch | CopyCommand] = []
    for command in program.commands:
        if isinstance(command, CopyCommand):
            commands.append(command)
            continue
        number, _ = kernels.setdefault(command.kernel.digest(), (len(kernels), command.kernel))
        commands.append(
            _Dispatch(
                number, command.args, command.groups, command.work, command.region, command.equations, command.schedule
            )
        )
    unique = [kernel for _, kernel in kernels.values()]
    record = _Program(
        tuple(map(_kernel_record, unique)),
        tuple(commands),
        program.weights,
        program.states,
        program.slots,
        program.input_bytes,
        program.outputs,
        program.checks,
        program.output_bytes,
        program.arena_bytes,
        program.arena_floor,
        program.passes,
        program.declines,
    )
    graph, data = graph_record(program.graph, records)
    texts = [_packed_json(records.encode(_Program, record)), _packed_json(graph)]
    kernel_texts = [zlib.compress(str(kernel).encode(), 1) for kernel in unique]
    sections = [*texts, data, program.constants, *kernel_texts]
    return b"".join(struct.pack("<I", len(section)) + section for section in sections)


def decode_program(
    payload: bytes, graph: Graph, target: Target, damaged: Callable[[], None], *, trusted: bool = False
) -> Program:
    """The program that `encode_program` wrote for a graph and target, checked as `check_program` says.

    `damaged` is called before the KernelError of a kernel, or the error of a graph, that turns out to be none when it
    is asked for; kernels that are `trusted` are not verified then. Raises RecordError for anything that is no such
    program.
    """
    records = graph_records()
    sections = _split(payload)
    if len(sections) < 4:
        raise RecordError("a program has four sections or more")
    head, graph_text, data, constants, *texts = sections
    record: _Program = records.decode(_Program, _json(head))
    if len(record.kernels) != len(texts):
        raise RecordError("kernels without text")
    width = target.caps.subgroup_width if "subgroup" in target.caps.features else None
    kernels = [_kernel(each, text, width, damaged, trusted) for each, text in zip(record.kernels, texts, strict=True)]

    def optimized() -> Graph:
        try:
            return read_graph(_json(graph_text), bytes(data), records)
        except Exception:
            damaged()
            raise

    program = StoredProgram(
        optimized,
        target=target,
        commands=tuple(_command(each, kernels) for each in record.commands),
        weights=record.weights,
        states=record.states,
        slots=record.slots,
        input_bytes=record.input_bytes,
        outputs=record.outputs,
        checks=record.checks,
        output_bytes=record.output_bytes,
        constants=bytes(constants),
        arena_bytes=record.arena_bytes,
        arena_floor=record.arena_floor,
        passes=record.passes,
        declines=record.declines,
    )
    check_program(program, graph)
    return program


def _command(each: _Dispatch | CopyCommand, kernels: list[StoredKernel]) -> DispatchCommand | CopyCommand:
    if isinstance(each, CopyCommand):
        return each
    if not 0 <= each.kernel < len(kernels):
        raise RecordError(f"there is no kernel {each.kernel}")
    return DispatchCommand(
        kernels[each.kernel], each.args, each.groups, each.work, each.region, each.equations, each.schedule
    )


def _kernel_record(kernel: Kernel) -> _Kernel:
    return _Kernel(
        kernel.name,
        kernel.params,
        kernel.shared,
        kernel.group_size,
        kernel.groups,
        kernel.resident,
        kernel.digest().hex(),
        kernel.checks,
        loop_rounds(kernel),
    )


def _kernel(
    record: _Kernel, text: memoryview, width: int | None, damaged: Callable[[], None], trusted: bool
) -> StoredKernel:
    try:
        digest = bytes.fromhex(record.digest)
    except ValueError as error:
        raise RecordError(f"digest of kernel {record.name}: {error}") from error
    facts = KernelFacts(digest, record.checks, record.loop_rounds)

    def body() -> Block:
        try:
            kernel = parse(_decompressed(text).decode())
            if not trusted:
                _same_kernel(kernel, record)
                verify(kernel, width)
        except (KernelError, RecordError, UnicodeDecodeError) as error:
            damaged()
            raise KernelError(f"kernel {record.name} cannot be read from disk, run again: {error}") from error
        return kernel.body

    return StoredKernel(
        record.name, record.params, record.shared, record.group_size, body, record.groups, record.resident, facts
    )


def _same_kernel(kernel: Kernel, record: _Kernel) -> None:
    """What was read is what the digest names: its own text is hashed anew."""
    if _kernel_record(kernel) != record:
        raise KernelError(f"kernel {record.name} on disk is another one than its digest says")


def _packed_json(value: Any) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def _json(section: memoryview) -> Any:
    try:
        return json.loads(_decompressed(section))
    except (ValueError, RecursionError) as error:
        raise RecordError(f"no JSON: {error}") from error


def _decompressed(section: memoryview) -> bytes:
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(section, _TEXT_MOST)
    except zlib.error as error:
        raise RecordError(f"a section does not decompress: {error}") from error
    if not reader.eof or reader.unused_data:
        raise RecordError("a section is cut short or too long")
    return text


def _split(payload: bytes) -> list[memoryview]:
    view, at, sections = memoryview(payload), 0, []
    while at < len(view):
        if at + 4 > len(view):
            raise RecordError("a section without its length")
        (length,) = struct.unpack_from("<I", view, at)
        if at + 4 + length > len(view):
            raise RecordError("a section is cut short")
        sections.append(view[at + 4 : at + 4 + length])
        at += 4 + length
    return sections

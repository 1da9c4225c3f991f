"""Interfaces of compiled models as text, so that a compiled model on disk says what it takes and gives."""

from __future__ import annotations

import json
from collections.abc import Sequence

from poot_executor.compile.program import Program
from poot_npu.vpu.model import Interface
from poot_npu.vpu.window import WindowUse


def written(faces: Sequence[Interface | None], program: Program) -> bytes:
    """By the numbers of values, weights and states in the program."""
    weights = {use.key: n for n, use in enumerate(program.weights)}
    states = {use.key: n for n, use in enumerate(program.states)}
    listed = [
        None
        if face is None
        else {
            "reads": [value.id for value in face.reads],
            "tables": [weights[key] for key in face.tables],
            "windows": [[states[u.key], u.rows, u.capacity, u.heads, u.width] for u in face.windows],
            "writes": [value.id for value in face.writes],
            "faults": list(face.faults),
        }
        for face in faces
    ]
    return json.dumps(listed).encode()


def read(text: bytes, program: Program) -> tuple[Interface | None, ...]:
    """The inverse. Raises ValueError, KeyError, TypeError or IndexError for what `written` does not write."""
    graph = program.graph
    values = {v.id: v for v in [*(i.value for i in graph.inputs), *(e.output for e in graph.equations)]}
    faces: list[Interface | None] = []
    for face in json.loads(text):
        if face is None:
            faces.append(None)
            continue
        windows = (WindowUse(program.states[n].key, *sizes) for n, *sizes in face["windows"])
        faces.append(
            Interface(
                tuple(values[n] for n in face["reads"]),
                tuple(program.weights[n].key for n in face["tables"]),
                tuple(windows),
                tuple(values[n] for n in face["writes"]),
                tuple(str(name) for name in face["faults"]),
            )
        )
    return tuple(faces)

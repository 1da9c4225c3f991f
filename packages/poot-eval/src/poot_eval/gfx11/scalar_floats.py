"""Floats in scalar registers, which gfx11.5 has: the vector instructions' arithmetic, one value a wave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.access import DTYPES, scalar_reader, width, write_scalar
from poot_eval.gfx11.conversions import CONVERSIONS
from poot_eval.gfx11.disassembly import Instruction
from poot_eval.gfx11.floats import FLOATS
from poot_eval.gfx11.lanes import LANES
from poot_eval.gfx11.operands import parse_operand
from poot_eval.gfx11.rules import Rule, flush
from poot_eval.gfx11.waves import Waves

Array = NDArray[Any]
Step = Callable[[Waves], None]

_OPERATIONS = ("add", "sub", "mul", "fmac", "fmaak", "fmamk", "min", "max", "ceil", "floor", "trunc", "rndne")
_CONVERSIONS = ("f32_i32", "f32_u32", "i32_f32", "u32_f32", "f32_f16", "f16_f32", "pk_rtz_f16_f32")
_COMPARISONS = ("lt", "eq", "le", "gt", "lg", "ge", "o", "u", "nge", "nlg", "ngt", "nle", "neq", "nlt")

SCALAR_FLOATS: dict[str, Rule] = {
    **{f"s_{name}_{t}": FLOATS[f"v_{name}_{t}"] for name in _OPERATIONS for t in ("f32", "f16")},
    **{f"s_cvt_{name}": CONVERSIONS[f"v_cvt_{name}"] for name in _CONVERSIONS},
    **{f"s_cmp_{name}_{t}": LANES[f"v_cmp_{name}_{t}"] for name in _COMPARISONS for t in ("f32", "f16")},
}
"""Rules by mnemonic."""


def build_scalar_float(instruction: Instruction) -> Step | None:
    """The step of a scalar float instruction; None for any other."""
    entry = SCALAR_FLOATS.get(instruction.mnemonic)
    if entry is None:
        return None
    operands = [parse_operand(text) for text in instruction.operands]
    compares = entry.result == "lanes"
    sources = operands if compares else operands[1:]
    sources = [*sources, *(operands[0] for source in entry.sources if source.startswith("+"))]
    types = [source.lstrip("+") for source in entry.sources]
    readers = [scalar_reader(operand, t) for operand, t in zip(sources, types, strict=True)]

    def step(waves: Waves) -> None:
        values = [read(waves) for read in readers]
        values = [flush(v) if t[0] == "f" and waves.flushes(t)[0] else v for v, t in zip(values, types, strict=True)]
        value = entry.function(*values)
        if compares:
            waves.set_scc(value)
            return
        result = np.asarray(value, DTYPES[entry.result])
        if entry.result[0] == "f" and waves.flushes(entry.result)[1]:
            result = flush(result)
        if width(entry.result) == 16:
            result = result.view(np.uint16).astype(np.uint32)
        write_scalar(waves, operands[0], result)

    return step

"""The kernels that poot makes of graphs: what an architecture's compiler must take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from poot_eval.conformance.inputs import Recorder, floats, integers
from poot_eval.conformance.sample_kernels import exchange, scaled_sum, silu, sweep, tile_max
from poot_eval.conformance.stepping import step_graph
from poot_executor.compile import compile
from poot_executor.compile.reorder import reorder_steps
from poot_executor.compile.target import Target
from poot_executor.dtype import DType
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.graph import Graph
from poot_executor.kernel.ir import Kernel
from poot_executor.known_answers import cases
from poot_executor.known_arithmetic import arithmetic_cases
from poot_executor.weights import WeightKey
from poot_rocm_device.architecture import Architecture
from poot_rocm_device.caps import caps_of

F16, F32, I32, U32 = DType.F16, DType.F32, DType.I32, DType.U32

SAMPLES = (exchange, scaled_sum, silu, sweep, tile_max)
"""Kernels by hand."""


def gated(rng: np.random.Generator, rows: int, format: str) -> Graph:
    """A norm, two products with a gate, a residual and a softmax."""
    g = Recorder(f"gated_{format}_{rows}", rng)
    x = g.floats(rows, 256)
    norm = f.stored_weight(g.builder, WeightKey(0, "norm"), FORMATS["f32"], (256,))
    gate, up = (f.stored_weight(g.builder, WeightKey(0, r), FORMATS[format], (64, 256)) for r in ("gate", "up"))
    y = f.rms_norm(x, norm, 1e-5)
    y = f.swiglu(f.linear(y, gate, FORMATS[format]), f.linear(y, up, FORMATS[format]))
    g.output(f.gelu(f.softmax(y)))
    return g.builder.build()


def attention(rng: np.random.Generator, dtype: DType, tokens: int, capacity: int) -> Graph:
    """Grouped heads over a cache of which each row sees a part."""
    g = Recorder(f"attention_{dtype}_{tokens}", rng)
    rows, heads, kv_heads, width = 2, 6, 2, 64
    position, last = (g.slot(np.full(rows, k, np.int32), I32) for k in (40, tokens - 1))
    q = g.floats(rows, tokens, heads, width, low=-1, high=1)
    k, v = (g.slot(floats(rng, (rows, capacity, kv_heads, width), dtype, -1, 1), dtype) for _ in range(2))
    g.output(f.attention(q, k, v, f.causal_mask(position, last, tokens, capacity), width**-0.5))
    return g.builder.build()


def selection(rng: np.random.Generator, rows: int) -> Graph:
    """The tokens that logits give: the greatest, the greatest twenty, drawn ones."""
    g = Recorder(f"selection_{rows}", rng)
    logits = f.linear(g.floats(rows, 64), g.weight(FORMATS["f32"], 1031, 64), FORMATS["f32"])
    settings = np.tile(np.array([1.25, 0.02, 0.9, 1.0], np.float32), (rows, 1))
    others = (
        g.slot(integers(rng, (rows, 2), U32), U32), g.slot(integers(rng, (rows,), I32, 0, 999), I32),
        g.slot(settings, F32), g.slot(np.full(rows, 50, np.int32), I32),
    )  # fmt: skip
    for output in (p.argmax(logits, 1), p.arg_top_k(logits, 20), p.sample_token(logits, *others)):
        g.output(output)
    return g.builder.build()


def graphs(rng: np.random.Generator) -> Iterator[Graph]:
    """Every template of the compiler, for a row, a few and many."""
    for format in FORMATS:
        yield gated(rng, 1, format)
    # How a format is decoded does not depend on the rows: of these two are enough for few rows and for tiles.
    for format in ("bf16", "q4_1"):
        yield from (gated(rng, rows, format) for rows in (5, 40))
    for dtype in (F32, F16):
        yield attention(rng, dtype, 1, 67)
        yield attention(rng, dtype, 3, 67)
    # So many positions that several groups share them, and another combines what they gathered.
    yield attention(rng, F16, 1, 4096)
    yield from (selection(rng, rows) for rows in (1, 5))
    yield step_graph()


@cache
def library(architecture: Architecture) -> list[Kernel]:
    """Different kernels that are planned for an architecture, in an order that is always the same."""
    caps = caps_of(architecture)
    found: dict[bytes, Kernel] = {}
    for graph in graphs(np.random.default_rng(0)):
        program = compile(graph, Target("rocm", caps))
        kernels = [command.kernel for command in program.dispatches]
        for use in program.weights:
            kernels += [step.kernel for step in reorder_steps(use.layout, 1 << 20, caps)]
        found |= {kernel.digest(): kernel for kernel in kernels}
    known = [case.kernel for case in (*cases(), *arithmetic_cases()) if case.feature in caps.features]
    return [*found.values(), *(make() for make in SAMPLES), *known]

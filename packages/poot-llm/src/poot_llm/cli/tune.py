"""`poot tune MODEL`: measures schedules of a model's steps on a device, and keeps those that beat the heuristic."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile.candidates import TRIED
from poot_executor.compile.target import Granularity
from poot_executor.discover import open_device
from poot_executor.errors import RequestError
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph
from poot_executor.graph.keys import SlotKey
from poot_executor.settings import read_settings
from poot_executor.tuned import Pick, TunedFor, save_picks
from poot_executor.tuning import Measured, Tuner
from poot_llm.blocks.step import LAST, POS, TOKEN, StepShape, begin_step
from poot_llm.cli.output import note, write
from poot_llm.cli.parser import add_device, add_model, add_shape, whole
from poot_llm.driver import DriverOptions, StepSet
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import Suffix, append_suffix

SEED = 0
"""The token ids are random, the same in every run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, what to run on, the steps' shapes."""
    add_model(parser)
    parser.add_argument(
        "--rows", type=whole, default=1, metavar="N", help="sequences that decode together (default: 1)"
    )
    parser.add_argument("--depth", type=whole, metavar="N", help="positions that are filled (default: a quarter)")
    parser.add_argument(
        "--only", choices=tuple(TRIED), action="append", metavar="KIND",
        help=f"schedules of one kind: {', '.join(TRIED)}; repeatable (default: all)",
    )  # fmt: skip
    add_device(parser)
    add_shape(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure the step of decoding, then that of a chunk of a prompt, and keep the picks of each. Raises RequestError
    for a device that takes whole graphs."""
    settings = read_settings()
    handle = Models().open(arguments.model)
    chosen = {} if arguments.chunk is None else {"chunk": arguments.chunk}
    options = DriverOptions(capacity=arguments.capacity, **chosen)
    steps = StepSet.of(options, handle.config.context)
    depth = steps.capacity // 4 if arguments.depth is None else arguments.depth
    wanted = dict.fromkeys(((arguments.rows, 1), (1, steps.tokens[-1])))
    shapes = [StepShape(rows, tokens, steps.capacity, steps.capacity) for rows, tokens in wanted]
    if depth >= steps.capacity:
        raise RequestError(f"--depth {depth}: a token behind it passes the {steps.capacity} positions")
    device, choice = open_device(arguments.device, settings.device)
    with device:
        if arguments.device == "auto":
            note(str(choice))
        if device.target.caps.granularity is Granularity.GRAPH:
            raise RequestError(f"--device {choice.name}: it takes whole graphs and schedules them itself")
        of = TunedFor.of(device.target, choice.description)
        for shape in shapes:
            filled = min(depth, steps.capacity - shape.tokens)
            write(f"{shape}, {filled} filled\n")
            graph = traced(handle, shape)
            with Tuner(
                device,
                graph,
                lambda key: handle.store.tensor(handle.weight_map[key]),
                inputs(graph, handle.config.vocabulary, filled),
                options.compile_options,
            ) as tuner:
                found = tuner.tune(lambda measured: write(line(measured)), arguments.only or TRIED)
            # An empty pick takes an older one away.
            picks = {m.key: Pick(dict(m.pick), m.seconds, m.heuristic) if m.pick else None for m in found}
            note(f"kept in {save_picks(settings.tuned, of, picks)}")
    return 0


def traced(handle: ModelHandle, shape: StepShape) -> Graph:
    """The greedy step of a shape with its logits beside the token, so that they can be compared."""
    builder = Builder(f"{handle.family.name}_tuned")
    step = begin_step(builder, shape, handle.config.vocabulary, DriverOptions().activations)
    logits = handle.family.logits(step, handle.config, handle.weights)
    append_suffix(step.drawing(), Suffix.GREEDY, logits)
    builder.output("logits", logits)
    return builder.build()


def inputs(graph: Graph, vocabulary: int, depth: int) -> Mapping[SlotKey, NDArray[Any]]:
    """Every slot of a step behind `depth` positions: random token ids, all of them real."""
    rng = np.random.default_rng(SEED)
    slots = graph.slots()
    tokens = slots[TOKEN].shape
    known = {
        TOKEN: rng.integers(0, vocabulary, tokens),
        POS: np.full(tokens[0], depth),
        LAST: np.full(tokens[0], tokens[1] - 1),
    }
    return {
        key: known.get(key, np.zeros(value.shape)).astype(value.dtype.numpy).reshape(value.shape)
        for key, value in slots.items()
    }


def line(measured: Measured) -> str:
    """A region's outcome: `projection …: rows=2 1.23 ms, heuristic 1.50 ms (9 tried)`."""
    pick = " ".join(f"{name}={value}" for name, value in measured.pick) or "as the heuristic"
    times = f"{measured.seconds * 1e3:.3f} ms"
    if measured.pick:
        times += f", heuristic {measured.heuristic * 1e3:.3f} ms"
    wrong = f", {measured.wrong} wrong" if measured.wrong else ""
    return f"  {measured.key}: {pick}, {times} ({measured.tried} tried{wrong})\n"

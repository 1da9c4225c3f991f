"""What choosing a token costs: `hatch run bench:suffix [MODEL] [--device NAME] ...`.

A decode step is run with each suffix, and each suffix alone over given logits, all of them in turn so that what slows
one slows all. Before anything is measured, every suffix must choose the same tokens for greedy rows. Times are medians
of wall time. Shares are of the greedy step: `alone` is that of the suffix by itself, which pays for a step of its own
and so is the most that it can be, and `more` is what the whole step takes beyond the greedy one, in the same round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_executor.compile import CompileOptions, Program, compile
from poot_executor.discover import open_device
from poot_executor.dtype import F32
from poot_executor.engine import Engine
from poot_executor.executor import EntryId, ExecutableId
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.settings import read_settings
from poot_llm.blocks.step import LAST, POS, TOKEN, StepShape, begin_step
from poot_llm.driver import compile_step
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import (
    History,
    SamplerRow,
    SamplerShape,
    SamplerSlots,
    SamplingParams,
    Suffix,
    allowed_bits,
    append_suffix,
)

LOGITS = SlotKey(SlotKind.INPUT, "logits")
Slots = dict[SlotKey, NDArray[Any]]
WARM = 3
"""Rounds before those that count."""


@dataclass(frozen=True, slots=True)
class Request:
    """A kind of row, and the suffix that its step has."""

    name: str
    suffix: Suffix
    params: SamplingParams
    guided: bool = False


def requests() -> list[Request]:
    """From nothing to everything."""
    drawn = SamplingParams(temperature=0.8)
    every = SamplingParams(
        temperature=0.8, top_k=40, top_p=0.9, min_p=0.01, repetition_penalty=1.2, presence_penalty=0.5,
        frequency_penalty=0.2, logit_bias={7 * i: 1.0 for i in range(300)}, logprobs=20,
    )  # fmt: skip
    return [
        Request("greedy", Suffix.GREEDY, SamplingParams()),
        Request("temperature", Suffix.SAMPLED, drawn),
        Request("top-k and top-p", Suffix.SAMPLED, SamplingParams(temperature=0.8, top_k=40, top_p=0.9)),
        Request("top-p alone", Suffix.SAMPLED, SamplingParams(temperature=0.8, top_p=0.9)),
        Request("full, nothing used", Suffix.FULL, SamplingParams()),
        Request("full, everything used", Suffix.FULL, every, guided=True),
    ]


def slots_of(request: Request, shape: StepShape, vocabulary: int, position: int) -> Slots:
    """The slots of a decode step in which all rows are of one kind."""
    rng = np.random.default_rng(0)
    half = position // 2
    history = History(rng.integers(0, vocabulary, half).tolist(), rng.integers(0, vocabulary, half).tolist())
    mask = allowed_bits(vocabulary) if request.guided else None
    rows = {row: SamplerRow(row, request.params, history, mask=mask) for row in range(shape.rows)}
    filled = SamplerSlots(request.suffix, SamplerShape(shape.rows, vocabulary, shape.span)).fill(rows)
    return {
        TOKEN: np.full((shape.rows, 1), 7, np.int32), POS: np.full(shape.rows, position, np.int32),
        LAST: np.zeros(shape.rows, np.int32), **filled,
    }  # fmt: skip


class Steps:
    """A step of every suffix on one engine, over the same weights and states."""

    def __init__(self, engine: Engine, executable: ExecutableId, make: Callable[[Suffix], Program]) -> None:
        self.engine = engine
        self.executable = executable
        self.programs = {suffix: make(suffix) for suffix in Suffix}
        self.entries: dict[Suffix, EntryId] = {}
        for suffix, program in self.programs.items():
            self.entries[suffix] = engine.add_entry(executable, program)
            engine.prepare(executable, self.entries[suffix])

    def run(self, suffix: Suffix, slots: Slots) -> Mapping[str, NDArray[Any]]:
        """One step."""
        return self.engine.step(self.executable, self.entries[suffix], slots)

    def milliseconds(self, request: Request, slots: Slots) -> float:
        """The wall time of one step."""
        started = perf_counter()
        self.run(request.suffix, slots)
        return 1e3 * (perf_counter() - started)


def suffix_alone(shape: StepShape, vocabulary: int, suffix: Suffix, target: Any) -> Program:
    """A step of given logits."""
    builder = Builder(f"suffix_{suffix.value}")
    step = begin_step(builder, shape, vocabulary, F32)
    append_suffix(step, suffix, builder.slot(LOGITS, TensorType((shape.rows, vocabulary), F32)))
    return compile(builder.build(), target, CompileOptions())


def check(steps: Steps, shape: StepShape, handle: ModelHandle, position: int) -> None:
    """Exits where a suffix chooses another token for a greedy row, or the logprobs are none."""
    vocabulary = handle.config.vocabulary
    given = {
        suffix: steps.run(suffix, slots_of(Request("", suffix, SamplingParams()), shape, vocabulary, position))
        for suffix in Suffix
    }
    chosen = {suffix: outputs["token"].tolist() for suffix, outputs in given.items()}
    if len({tuple(tokens) for tokens in chosen.values()}) != 1:
        raise SystemExit(f"suffixes choose different tokens: {chosen}")
    outputs = given[Suffix.FULL]
    if outputs["top_ids"][:, 0].tolist() != chosen[Suffix.GREEDY] or not (np.diff(outputs["top_logprobs"]) <= 0).all():
        raise SystemExit("the most likely ids are not those of the greatest logits")


def main() -> None:
    """Check, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="name, GGUF file or folder (default: smollm2)")
    parser.add_argument("--device", default="auto", help="as for `poot generate` (default: auto)")
    parser.add_argument("--rows", type=int, default=1, help="rows of a step (default: 1)")
    parser.add_argument("--capacity", type=int, default=2048, help="positions (default: 2048)")
    parser.add_argument("--repeats", type=int, default=30, help="rounds (default: 30)")
    args = parser.parse_args()
    device, choice = open_device(args.device, read_settings().device)
    handle = Models().open(args.model)
    vocabulary = handle.config.vocabulary
    shape = StepShape(args.rows, 1, args.capacity, args.capacity)
    position = args.capacity // 4
    with Engine(device) as engine:
        target = device.target
        whole = Steps(
            engine, engine.load_weights(handle.store, handle.weight_map),
            lambda suffix: compile_step(handle, target, shape, suffix),
        )  # fmt: skip
        check(whole, shape, handle, position)
        alone = Steps(
            engine, engine.load_weights(handle.store, {}), lambda s: suffix_alone(shape, vocabulary, s, target)
        )
        logits = np.random.default_rng(1).normal(0, 3, (args.rows, vocabulary)).astype(np.float32)
        print(f"{handle.name}, {vocabulary:,} ids, {args.rows} rows on {choice}")
        kinds = requests()
        slots = [slots_of(request, shape, vocabulary, position) for request in kinds]
        times = np.empty((args.repeats + WARM, len(kinds), 2))
        for round_times in times:
            for place, request in enumerate(kinds):
                round_times[place, 0] = whole.milliseconds(request, slots[place])
                round_times[place, 1] = alone.milliseconds(request, {**slots[place], LOGITS: logits})
        times = times[WARM:]
        steps, own = np.median(times, axis=0).T
        more = np.median(times[:, :, 0] - times[:, :1, 0], axis=0)
        print(f"{'':<22} {'step ms':>9} {'alone ms':>9} {'alone':>7} {'more':>7} {'dispatches':>11} {'slot bytes':>11}")
        for place, request in enumerate(kinds):
            count = len(alone.programs[request.suffix].dispatches)
            size = sum(array.nbytes for array in slots[place].values())
            shares = f"{own[place] / steps[0]:>7.1%} {more[place] / steps[0]:>7.1%}"
            print(f"{request.name:<22} {steps[place]:>9.2f} {own[place]:>9.2f} {shares} {count:>11} {size:>11,}")
    device.close()


if __name__ == "__main__":
    main()

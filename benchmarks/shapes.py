"""Speed of model shapes with random weights: `python benchmarks/shapes.py --device ptx --shape 1B --format bf16`.

For sizes of which no checkpoint is at hand: the shapes are those of published llamas, the weights seeded random blocks
of a stored format. A small model of the same format, with as many rows, is compared with the oracle first, in the same
process. Decode cells say rows and depth, prefill cells a chunk of tokens; times are medians over steps at neighbouring
positions, after steps for half a second, as clocks rise slowly. Tokens a second of decoding are with one step submitted
ahead, as the driver submits them, each reading its token from the state; "alone" is a step that is collected before the
next one is submitted. Bytes are those of every weight that a step reads once.
With `--cells FILE` every cell is kept, and one that ran is not run again for the same commit, device and options.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from cells import Kept, commit_of
from numpy.typing import NDArray

from poot_eval import eval as oracle
from poot_executor.compile import CompileOptions, compile
from poot_executor.compile.schedule_picks import Schedules
from poot_executor.device import Device
from poot_executor.discover import open_device
from poot_executor.dtype import BF16, F32, DType
from poot_executor.engine import Engine
from poot_executor.executor import StepId
from poot_executor.formats import FORMATS, Format
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.settings import read_settings
from poot_executor.weights import StoredTensor, WeightKey
from poot_llm.blocks.step import FROM_STATE, StepShape
from poot_llm.models.llama import LLAMA
from poot_llm.models.llama_config import LlamaConfig, Naming
from poot_llm.models.step_graph import trace_step
from poot_llm.models.weight_map import bind_weights
from poot_llm.sampling import Suffix

ROOT = Path(__file__).resolve().parents[1]
Options = Callable[[], CompileOptions]
MOST_STEPS = 56
"""Positions after its depth that a decode cell goes through, again and again."""
WARM_STEPS, WARM_SECONDS = 5, 0.5


def shape(width: int, ffn: int, layers: int, heads: int, kv_heads: int, vocabulary: int, *, tied: bool) -> LlamaConfig:
    """A llama of these sizes."""
    head = width // heads
    return LlamaConfig(
        naming=Naming.GGUF,
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head,
        ffn=ffn,
        context=8192,
        epsilon=1e-5,
        rope_base=10000.0,
        rope_dimensions=head,
        rope_scaling=None,
        rope_factors=False,
        interleaved=True,
        attention_bias=frozenset(),
        mlp_bias=frozenset(),
        tied_head=tied,
    )


SHAPES = {
    "135M": shape(576, 1536, 30, 9, 3, 49152, tied=True),
    "0.5B": shape(896, 4864, 24, 14, 2, 151936, tied=True),
    "1B": shape(2048, 8192, 16, 32, 8, 128256, tied=True),
    "8B": shape(4096, 14336, 32, 32, 8, 128256, tied=False),
}
SMALL = shape(256, 512, 2, 4, 2, 512, tied=True)


class RandomStore:
    """Seeded random tensors of a format, made when asked for from one pool of blocks, so that host memory stays
    bounded."""

    def __init__(self, config: LlamaConfig, format: Format, seed: int = 0) -> None:
        self._shapes = {e.name: e.shape for e in LLAMA.expected(config)}
        self._format = format
        self._seed = seed
        self._pool = self._blocks(np.random.default_rng(seed), 1 << 20)

    def names(self) -> tuple[str, ...]:
        """Every tensor's name."""
        return tuple(self._shapes)

    def tensor(self, name: str) -> StoredTensor:
        """A matrix in the store's format, a vector near 1 in f32."""
        shape = self._shapes[name]
        rng = np.random.default_rng([self._seed, *name.encode()])
        if len(shape) == 1:
            values = (1 + 0.1 * rng.standard_normal(shape)).astype(np.float32)
            return StoredTensor(name, FORMATS["f32"], shape, values.view(np.uint8))
        count = int(np.prod(shape[:-1])) * self._format.row_bytes(shape[-1])
        start = int(rng.integers(0, len(self._pool) // self._format.nbytes)) * self._format.nbytes
        data = np.resize(np.roll(self._pool, -start), count)
        return StoredTensor(name, self._format, shape, data)

    def _blocks(self, rng: np.random.Generator, count: int) -> NDArray[np.uint8]:
        if self._format.dtype is not None:
            values = (0.02 * rng.standard_normal(count)).astype(np.float32)
            if self._format.nbytes == 2:
                halves = values.view(np.uint32) >> 16 if self._format.name == "bf16" else values.astype(np.float16)
                return halves.astype(np.uint16 if self._format.name == "bf16" else np.float16).view(np.uint8)
            return values.view(np.uint8)
        blocks = rng.integers(0, 256, (count, self._format.nbytes), dtype=np.uint8)
        for field in self._format.fields:
            if field.name in ("scale", "minimum"):
                scales = (0.002 * rng.standard_normal(count)).astype(np.float16)
                blocks[:, field.offset : field.offset + 2] = scales[:, None].view(np.uint8)
        return blocks.reshape(-1)


class Model:
    """A model's random weights on a device: what its runs share."""

    def __init__(self, engine: Engine, config: LlamaConfig, format: Format) -> None:
        self.engine, self.config = engine, config
        self.store = RandomStore(config, format)
        self.bound = bind_weights(LLAMA.expected(config), self.store)
        self.executable = engine.load_weights(self.store, self.bound.names)

    def unload(self) -> None:
        """Give back the weights and every run."""
        self.engine.unload(self.executable)


class Run:
    """An entry of a model: steps of `rows` rows and `tokens` tokens each."""

    def __init__(
        self,
        model: Model,
        capacity: int,
        *,
        rows: int = 1,
        tokens: int = 1,
        activations: DType = F32,
        options: Options = CompileOptions,
    ) -> None:
        self.model, self.engine, self.rows, self.tokens = model, model.engine, rows, tokens
        self.executable, self.names = model.executable, model.bound.names
        step = StepShape(rows, tokens, capacity, capacity)
        self.graph = trace_step(LLAMA, model.config, step, model.bound.stored, Suffix.GREEDY, activations)
        (target,) = self.engine.target_set
        self.program = compile(self.graph, target, options())
        # States of an entry before may be smaller, and what is in them is nobody's.
        self.engine.reset_state(self.executable)
        self.entry = self.engine.add_entry(self.executable, self.program)

    def remove(self) -> None:
        """Give the entry back; the weights stay."""
        self.engine.remove_entry(self.executable, self.entry)

    def step(self, tokens: NDArray[np.int32], position: int) -> NDArray[np.int32]:
        """The greedy token of each row after i32[rows, tokens] at `position`."""
        return self.collect(self.submit(tokens, position))

    def submit(self, tokens: NDArray[np.int32], position: int) -> StepId:
        """Begin a step."""
        return self.engine.submit(self.executable, self.entry, slots(tokens, position))

    def collect(self, step: StepId) -> NDArray[np.int32]:
        """The greedy tokens of the oldest step."""
        outputs = self.engine.collect(step)
        assert not outputs["non_finite"].any(), "a logit is not finite"
        return outputs["token"].astype(np.int32)

    def decode(self, first: NDArray[np.int32], positions: Iterable[int]) -> Iterator[NDArray[np.int32]]:
        """The greedy tokens of one step after the other, one of them always submitted ahead; i32[rows, 1] begin."""
        tokens, under_way = first, deque[StepId]()
        for position in positions:
            under_way.append(self.submit(tokens, position))
            tokens = np.full_like(first, FROM_STATE)
            if len(under_way) == 2:
                yield self.collect(under_way.popleft())
        while under_way:
            yield self.collect(under_way.popleft())

    def weight_bytes(self) -> int:
        """Bytes that a step reads: every weight once, but of an untied embedding only a row."""
        tied = self.model.config.tied_head
        uses = [u for u in self.program.weights if tied or u.key != WeightKey(None, "embedding")]
        names = {self.names[u.key]: u.layout.nbytes for u in uses}
        return sum(names.values())


def slots(tokens: NDArray[np.int32], position: int) -> dict[SlotKey, NDArray[np.int32]]:
    """The inputs of a step of i32[rows, tokens], every row at `position`."""
    rows, count = tokens.shape
    return {
        SlotKey(SlotKind.TOKEN): tokens,
        SlotKey(SlotKind.POS): np.full(rows, position, np.int32),
        SlotKey(SlotKind.LAST): np.full(rows, count - 1, np.int32),
    }


def picked(run: Run, tokens: int) -> CompileOptions:
    """The options of a program like a run's whose products of warpgroups all have that tile; 0 is for none."""
    keys = [d.schedule["key"] for d in run.program.dispatches if "warpgroups" in d.schedule]
    return CompileOptions(schedules=Schedules.of({key: {"tokens": tokens} for key in keys}))


def check(engine: Engine, format: Format, cell: Cell, tile: int | None = None) -> str:
    """Greedy tokens of a small model against the oracle's, step by step with its own states: 8 steps of a token, or two
    of several. Rows begin with tokens of their own."""
    model = Model(engine, SMALL, format)
    run = Run(model, max(64, 2 * cell.tokens), rows=cell.rows, tokens=cell.tokens, activations=cell.dtype)
    if tile is not None:
        options = picked(run, tile)
        run.remove()
        run = Run(
            model,
            max(64, 2 * cell.tokens),
            rows=cell.rows,
            tokens=cell.tokens,
            activations=cell.dtype,
            options=lambda: options,
        )
    store = model.store
    tensors = {name: store.tensor(name) for name in dict.fromkeys(run.names.values())}
    weights = {key: tensors[name] for key, name in run.names.items()}
    states = {
        i.key: np.zeros(i.value.shape, i.value.dtype.numpy) for i in run.graph.inputs if isinstance(i.key, StateKey)
    }
    used = {i.key for i in run.graph.inputs}
    given = {key: weight for key, weight in weights.items() if key in used}
    tokens = (7 + np.arange(cell.rows * cell.tokens, dtype=np.int32).reshape(cell.rows, cell.tokens)) % SMALL.vocabulary
    steps = 8 if cell.tokens == 1 else 2
    flips = 0
    for number in range(steps):
        position = number * cell.tokens
        found = oracle(run.graph, {**given, **states, **slots(tokens, position)})
        mine, theirs = run.step(tokens, position), found.outputs["token"].astype(np.int32)
        flips += int((mine != theirs).sum())
        states, tokens = dict(found.state), np.roll(tokens, 1, axis=1)
        tokens[:, 0] = theirs
    # Activations that are rounded may turn a near tie, one of those that are not never.
    allowed = 0 if cell.dtype is F32 else steps * cell.rows // 8
    assert flips <= allowed, f"{flips} of {steps * cell.rows} tokens are not the oracle's"
    if cell.tokens == 1:
        ahead = list(run.decode(tokens, range(steps)))
        for position in range(steps):
            tokens = run.step(tokens, position)[:, None]
            assert (ahead[position] == tokens[:, 0]).all(), "a step submitted ahead gives other tokens"
    model.unload()
    return f"{steps * cell.rows - flips} of {steps * cell.rows} tokens of a small model equal the oracle's"


@dataclass(frozen=True, slots=True)
class Cell:
    """What a line of the table measures: steps of `rows` rows and `tokens` tokens each, at positions from `depth`."""

    shape: str
    format: str
    activations: str
    rows: int
    tokens: int
    depth: int
    capacity: int

    @property
    def dtype(self) -> DType:
        """The activations' type."""
        return {"f32": F32, "bf16": BF16}[self.activations]


def cells_of(args: argparse.Namespace) -> list[Cell]:
    """Every cell that the options name: each number of rows at each depth, then each chunk of one row."""
    found = []
    for format, size in product(args.format, args.shape):
        steps = [(rows, 1, depth) for rows, depth in product(args.rows, args.depth)]
        steps += [(1, tokens, 0) for tokens in args.prefill]
        for rows, tokens, depth in steps:
            capacity = max(args.capacity, depth + tokens * (MOST_STEPS + 1) if tokens == 1 else tokens)
            found.append(Cell(size, format, args.activations, rows, tokens, depth, -(-capacity // 16) * 16))
    return found


def measure(engine: Engine, device: Device, cell: Cell, steps: int) -> dict[str, float]:
    """One cell: medians of `steps` steps, in seconds, with what a step reads and dispatches."""
    model = Model(engine, SHAPES[cell.shape], FORMATS[cell.format])
    run = Run(model, cell.capacity, rows=cell.rows, tokens=cell.tokens, activations=cell.dtype)
    result = timed(run, device, cell.depth, steps)
    model.unload()
    return result


def timed(run: Run, device: Device, depth: int, steps: int) -> dict[str, float]:
    """Seconds of `steps` steps from `depth` on: medians, and of steps that are submitted ahead the mean; with what a
    step reads and dispatches."""
    tokens = np.full((run.rows, run.tokens), 7, np.int32)
    walls: list[float] = []
    busy: list[float] = []
    began, number = perf_counter(), 0
    while len(walls) < steps:
        position = depth + (number % MOST_STEPS if run.tokens == 1 else 0)
        started = perf_counter()
        run.step(tokens, position)
        wall = perf_counter() - started
        number += 1
        if number > WARM_STEPS and perf_counter() - began > WARM_SECONDS:
            walls.append(wall)
            seconds = device.device_time()
            busy.append(wall if seconds is None else seconds)
    alone = wall = median(walls)
    if run.tokens == 1:
        positions = (depth + n % MOST_STEPS for n in range(WARM_STEPS + steps))
        ends = [perf_counter() for _ in run.decode(tokens, positions)]
        wall = (ends[-1] - ends[WARM_STEPS - 1]) / steps
    return {
        "wall": wall,
        "alone": alone,
        "device": median(busy),
        "bytes": run.weight_bytes(),
        "dispatches": len(run.program.dispatches),
    }


def main() -> None:
    """Check, time and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--shape", nargs="+", default=["135M"], choices=SHAPES)
    parser.add_argument("--format", nargs="+", default=["bf16"], choices=FORMATS)
    parser.add_argument("--activations", default="f32", choices=("f32", "bf16"))
    parser.add_argument("--rows", nargs="*", type=int, default=[1], help="rows of decode steps")
    parser.add_argument("--depth", nargs="+", type=int, default=[0], help="positions before a decode step")
    parser.add_argument("--prefill", nargs="*", type=int, default=[], help="tokens of chunks, one row")
    parser.add_argument("--capacity", type=int, default=512, help="at least; as many as a cell needs")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cells", type=Path, help="a file that keeps cells, so that a run may go on where one ended")
    args = parser.parse_args()
    device, choice = open_device(args.device, read_settings().device)
    commit = commit_of(ROOT)
    print(f"{choice}; commit {commit}; activations {args.activations}")
    print(
        f"{'shape':<6} {'format':<6} {'rows':>4} {'tokens':>6} {'depth':>6} {'tok/s':>9} {'wall µs':>9} "
        f"{'alone µs':>9} {'device µs':>10} {'GB':>7} {'TB/s':>6} dispatches"
    )
    kept = Kept(args.cells, {"commit": commit, "device": str(choice), "steps": args.steps})
    checked: set[tuple[str, int, int]] = set()
    with device:
        engine = Engine(device)
        for cell in cells_of(args):
            result = kept.get(asdict(cell))
            if result is None:
                kind = (cell.format, cell.rows, cell.tokens)
                if kind not in checked:
                    print(f"{cell.format}: {check(engine, FORMATS[cell.format], cell)}", flush=True)
                    checked.add(kind)
                result = kept.put(asdict(cell), measure(engine, device, cell, args.steps))
            show(cell, result)


def show(cell: Cell, result: Mapping[str, float]) -> None:
    """One line of the table."""
    rate = cell.rows * cell.tokens / result["wall"]
    wall, alone, busy = (result[name] * 1e6 for name in ("wall", "alone", "device"))
    print(
        f"{cell.shape:<6} {cell.format:<6} {cell.rows:>4} {cell.tokens:>6} {cell.depth:>6} {rate:>9.1f} "
        f"{wall:>9.0f} {alone:>9.0f} {busy:>10.0f} {result['bytes'] / 1e9:>7.2f} "
        f"{result['bytes'] / result['device'] / 1e12:>6.2f} {result['dispatches']:.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()

"""Decode speed of model shapes with random weights: `python benchmarks/shapes.py --device ptx --shape 1B --format
bf16`.

For sizes of which no checkpoint is at hand: the shapes are those of published llamas, the weights seeded random blocks
of a stored format. A small model of the same format is compared with the oracle first, in the same process. Times are
medians over steps at neighbouring positions; bytes are those of every weight that a step reads once.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from poot_eval import eval as oracle
from poot_executor.compile import compile
from poot_executor.device import Device
from poot_executor.discover import open_device
from poot_executor.engine import Engine
from poot_executor.formats import FORMATS, Format
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.settings import read_settings
from poot_executor.weights import StoredTensor, WeightKey
from poot_llm.blocks.step import StepShape
from poot_llm.models.llama import LLAMA
from poot_llm.models.llama_config import LlamaConfig, Naming
from poot_llm.models.step_graph import trace_step
from poot_llm.models.weight_map import bind_weights
from poot_llm.sampling import Suffix

ROOT = Path(__file__).resolve().parents[1]


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


class Run:
    """A model on a device: one decode entry of one row."""

    def __init__(self, engine: Engine, config: LlamaConfig, format: Format, capacity: int) -> None:
        self.engine, self.config = engine, config
        self.store = RandomStore(config, format)
        bound = bind_weights(LLAMA.expected(config), self.store)
        self.graph = trace_step(LLAMA, config, StepShape(1, 1, capacity, capacity), bound.stored, Suffix.GREEDY)
        self.program = compile(self.graph, engine.target_set[0])
        self.executable = engine.load_weights(self.store, bound.names)
        self.names = bound.names
        self.entry = engine.add_entry(self.executable, self.program)

    def step(self, token: int, position: int) -> int:
        """The greedy token after `token` at `position`."""
        outputs = self.engine.step(self.executable, self.entry, slots(token, position))
        assert not outputs["non_finite"][0], "a logit is not finite"
        return int(outputs["token"][0])

    def weight_bytes(self) -> int:
        """Bytes that a step reads: every weight once, but of an untied embedding only a row."""
        uses = [u for u in self.program.weights if self.config.tied_head or u.key != WeightKey(None, "embedding")]
        names = {self.names[u.key]: u.layout.nbytes for u in uses}
        return sum(names.values())


def slots(token: int, position: int) -> dict[SlotKey, NDArray[np.int32]]:
    """The inputs of a decode step of one row."""
    return {
        SlotKey(SlotKind.TOKEN): np.array([[token]], np.int32),
        SlotKey(SlotKind.POS): np.array([position], np.int32),
        SlotKey(SlotKind.LAST): np.array([0], np.int32),
    }


def check(engine: Engine, format: Format) -> str:
    """Greedy tokens of a small model against the oracle's, step by step with its own states."""
    run = Run(engine, SMALL, format, 64)
    store = RandomStore(SMALL, format)
    tensors = {name: store.tensor(name) for name in dict.fromkeys(run.names.values())}
    weights = {key: tensors[name] for key, name in run.names.items()}
    states = {
        i.key: np.zeros(i.value.shape, i.value.dtype.numpy) for i in run.graph.inputs if isinstance(i.key, StateKey)
    }
    used = {i.key for i in run.graph.inputs}
    token = 7
    for position in range(8):
        found = oracle(
            run.graph, {**{k: v for k, v in weights.items() if k in used}, **states, **slots(token, position)}
        )
        mine, theirs = run.step(token, position), int(found.outputs["token"][0])
        assert mine == theirs, f"token {mine} at {position}, the oracle's is {theirs}"
        states, token = dict(found.state), theirs
    engine.unload(run.executable)
    return "8 tokens of a small model equal the oracle's"


def main() -> None:
    """Check, time and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--shape", nargs="+", default=["135M"], choices=SHAPES)
    parser.add_argument("--format", nargs="+", default=["bf16"], choices=FORMATS)
    parser.add_argument("--capacity", type=int, default=512)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    git = shutil.which("git")
    command = [git or "git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() if git else ""
    device, choice = open_device(args.device, read_settings().device)
    print(f"{choice}; commit {commit or 'unknown'}; capacity {args.capacity}")
    print(f"{'shape':<6} {'format':<6} {'tok/s':>8} {'wall µs':>9} {'device µs':>10} {'GB':>7} {'TB/s':>6} dispatches")
    with device:
        engine = Engine(device)
        for name in args.format:
            print(f"{name}: {check(engine, FORMATS[name])}", flush=True)
            for size in args.shape:
                report(engine, device, size, FORMATS[name], args.capacity, args.steps)


def report(engine: Engine, device: Device, size: str, format: Format, capacity: int, steps: int) -> None:
    """One line of the table."""
    run = Run(engine, SHAPES[size], format, capacity)
    token, walls, busy = 7, [], []
    for position in range(steps + 5):
        started = perf_counter()
        token = run.step(token, position)
        walls.append(perf_counter() - started)
        seconds = device.device_time()
        busy.append(seconds if seconds is not None else walls[-1])
    wall, on_device = median(walls[5:]), median(busy[5:])
    nbytes = run.weight_bytes()
    print(
        f"{size:<6} {format.name:<6} {1 / wall:>8.1f} {wall * 1e6:>9.0f} {on_device * 1e6:>10.0f} {nbytes / 1e9:>7.2f} "
        f"{nbytes / on_device / 1e12:>6.2f} {len(run.program.dispatches)}",
        flush=True,
    )
    engine.unload(run.executable)


if __name__ == "__main__":
    main()

"""Decoding of many sequences at once: tokens a second by rows, host time that the device waits for, and what samplers
and deterministic mode cost. `hatch run bench:batch --device vulkan --rows 1,4,16`.

Sequences begin with prompts of random ids, all different, read before the clock starts; the prefix cache is off. Before
anything is measured, answers of one batch are compared with those of the requests alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from peers import add_peer, peer_of

from poot_executor.discover import open_device
from poot_executor.dtype import BF16, F16, F32
from poot_executor.engine import Engine
from poot_executor.settings import read_settings
from poot_llm.driver import Driver, DriverOptions, Layout, Sequence
from poot_llm.pull import MODELS, pull
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams, Suffix

ACTIVATIONS = {"f32": F32, "f16": F16, "bf16": BF16}
CHECKED_TOKENS = 8
PARAMS = {
    Suffix.GREEDY: SamplingParams(ignore_eos=True),
    Suffix.SAMPLED: SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, ignore_eos=True),
    Suffix.FULL: SamplingParams(
        temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.1, presence_penalty=0.1,
        frequency_penalty=0.1, logit_bias={7: 1.0}, logprobs=20, ignore_eos=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """Of decoding: medians over the repeats. Seconds a step, and of them those in which the host keeps the device
    waiting; device seconds where the device says.
    """

    rows: int
    step: float
    exposed: float
    device: float | None

    @property
    def rate(self) -> float:
        """Tokens a second of all rows together."""
        return self.rows / self.step


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="name, GGUF file or folder (default: smollm2)")
    parser.add_argument("--device", default="auto", help="as for `poot generate` (default: auto)")
    parser.add_argument("--rows", type=numbers, default=(1, 4, 16), help="sequences at once (default: 1,4,16)")
    parser.add_argument("--capacity", type=int, default=1024, help="positions of each (default: 1024)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to decode of each (default: 32)")
    parser.add_argument("--prompt", type=int, default=32, help="prompt tokens of each (default: 32)")
    parser.add_argument("--repeats", type=int, default=3, help="(default: 3)")
    parser.add_argument("--activations", choices=ACTIVATIONS, default="f32", help="(default: f32)")
    parser.add_argument("--layout", choices=[layout.value for layout in Layout], default="auto", help="(default: auto)")
    parser.add_argument("--no-ahead", action="store_true", help="submit no step ahead")
    parser.add_argument("--suffixes", action="store_true", help="also what samplers cost at the most rows")
    parser.add_argument("--deterministic", action="store_true", help="also what deterministic mode costs")
    add_peer(parser)
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, ascending."""
    return tuple(sorted(int(part) for part in text.split(",")))


def opened(driver: Driver, rows: int, prompt: int, params: SamplingParams) -> list[Sequence]:
    """Sequences whose prompts are read; each has its first token."""
    rng = np.random.default_rng(0)
    sequences = []
    for row in range(rows):
        ids = rng.integers(0, driver.handle.config.vocabulary, prompt).tolist()
        sequence = driver.open(ids, replace(params, seed=row))
        assert sequence is not None
        sequences.append(sequence)
    while waiting := [s for s in sequences if not s.tokens]:
        advance(driver, waiting)
    return sequences


def advance(driver: Driver, sequences: list[Sequence]) -> None:
    """One step, its tokens committed. Raises what fails."""
    for result in driver.step(sequences):
        if result.failure is not None:
            raise result.failure
        for token in result.given:
            driver.commit(result.sequence, token)


def check(driver: Driver, rows: int, prompt: int) -> str:
    """Compare a batch with its requests alone. Exits where more than a tenth of the tokens differ."""
    params = replace(PARAMS[Suffix.GREEDY], max_tokens=CHECKED_TOKENS)
    together = opened(driver, rows, prompt, params)
    while going := [s for s in together if s.finish_reason is None]:
        advance(driver, going)
    for sequence in together:
        driver.release(sequence)
    same = 0
    for sequence in together:
        alone = [item.token for item in driver.generate(sequence.prompt_ids, replace(params, seed=sequence.seed))]
        same += next((n for n, (a, b) in enumerate(zip(alone, sequence.tokens, strict=True)) if a != b), len(alone))
    of = rows * CHECKED_TOKENS
    if same < 0.9 * of:
        sys.exit(f"batched answers agree with those of requests alone in {same} of {of} tokens")
    return f"{same} of {of} greedy tokens equal those of the same requests alone"


def decode(driver: Driver, engine: Engine, rows: int, arguments: argparse.Namespace, suffix: Suffix) -> Measured:
    """Medians of repeats, after one that is not counted."""
    runs: list[tuple[float, float, float | None]] = []
    for _ in range(arguments.repeats + 1):
        params = replace(PARAMS[suffix], max_tokens=arguments.tokens + 4)
        sequences = opened(driver, rows, arguments.prompt, params)
        advance(driver, sequences)
        before, started = engine.stats(), perf_counter()
        for _ in range(arguments.tokens):
            advance(driver, sequences)
        seconds, after = perf_counter() - started, engine.stats()
        for sequence in sequences:
            driver.release(sequence)
        for name in ("recordings", "allocations", "uploads", "failures"):
            assert getattr(after, name) == getattr(before, name), f"{name} while measuring"
        exposed = after.exposed_host_time - before.exposed_host_time + after.between_time - before.between_time
        device = None
        if after.device_time is not None and before.device_time is not None:
            device = (after.device_time - before.device_time) / arguments.tokens
        runs.append((seconds / arguments.tokens, exposed / arguments.tokens, device))
    steps, exposures, devices = zip(*runs[1:], strict=True)
    known = [seconds for seconds in devices if seconds is not None]
    return Measured(rows, median(steps), median(exposures), median(known) if known else None)


@contextmanager
def driving(handle: ModelHandle, engine: Engine, arguments: argparse.Namespace, **more: Any) -> Iterator[Driver]:
    """A driver whose steps are prepared for the most rows."""
    suffixes = more.pop("suffixes", [Suffix.GREEDY])
    options = DriverOptions(
        rows=arguments.rows[-1],
        capacity=arguments.capacity,
        layout=Layout(arguments.layout),
        activations=ACTIVATIONS[arguments.activations],
        ahead=not arguments.no_ahead,
        prefix_cache=False,
        chunk=1 << (max(arguments.prompt, 2) - 1).bit_length() - 1,
        **more,
    )
    with Driver(handle, engine, options) as driver:
        for suffix in suffixes:
            driver.prepare([suffix])
        yield driver


def show(name: str, measured: Measured) -> None:
    """A line of the table."""
    device = "" if measured.device is None else f"{1e3 * measured.device:>10.2f}"
    print(f"{name:<22}{measured.rate:>10.1f}{1e3 * measured.step:>10.2f}{device:>10}{1e6 * measured.exposed:>12.0f}")


def main() -> None:
    """Check, measure, print."""
    arguments = parse()
    if arguments.model in MODELS:
        pull(arguments.model)
    handle = Models().open(arguments.model)
    most = arguments.rows[-1]
    device, choice = open_device(arguments.device, read_settings().device)
    with device, Engine(device) as engine:
        print(f"device    {choice.name}:{choice.selector}, {choice.description}\nmodel     {handle.name}")
        suffixes = list(PARAMS) if arguments.suffixes else [Suffix.GREEDY]
        with driving(handle, engine, arguments, suffixes=suffixes) as driver:
            print(f"kv        {driver.plan}")
            print(f"prepared  {len(driver.prepared)} steps in {driver.prepare_seconds:.1f} s")
            print(f"correct   {check(driver, most, arguments.prompt)}")
            print(f"\n{'':<22}{'tokens/s':>10}{'ms/step':>10}{'ms device':>10}{'us exposed':>12}")
            peer = peer_of(arguments, handle.path, most, arguments.capacity)
            table = []
            with nullcontext() if peer is None else peer:
                for rows in arguments.rows:
                    table.append(decode(driver, engine, rows, arguments, Suffix.GREEDY))
                    show(f"greedy, {rows} rows", table[-1])
                    if peer is not None:
                        runs = [
                            peer.measure(rows, arguments.prompt, arguments.tokens).tokens
                            for _ in range(arguments.repeats + 1)
                        ]
                        rate = rows * arguments.tokens / median(runs[1:])
                        print(f"{'  peer':<22}{rate:>10.1f}  poot's is {table[-1].rate / rate:.2f} of it", flush=True)
            if peer is not None:
                print(f"peer      {peer.about}")
            for suffix in suffixes[1:]:
                measured = decode(driver, engine, most, arguments, suffix)
                show(f"{suffix.value}, {most} rows", measured)
                print(f"{'':<22}{100 * (measured.step / table[-1].step - 1):>9.1f}% of a greedy step more")
        if arguments.deterministic:
            with driving(handle, engine, arguments, deterministic=True) as driver:
                measured = decode(driver, engine, most, arguments, Suffix.GREEDY)
                show(f"deterministic, {most} rows", measured)
                print(f"{'':<22}{100 * (measured.step / table[-1].step - 1):>9.1f}% of a greedy step more")


if __name__ == "__main__":
    main()

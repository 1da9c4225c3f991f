"""What a benchmark sends, and when: prompts and arrivals, all of it drawn from one seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from poot_serve.bench.words import WORDS, Measure


@dataclass(frozen=True, slots=True)
class Workload:
    """`count` requests of about `input_tokens` and at most `output_tokens`.

    Each length is drawn evenly between (1 - spread) and (1 + spread) of that. With `prefixes` > 0 a prompt begins with
    `prefix_tokens` of one of that many texts, which take turns, and `input_tokens` counts what follows.
    """

    count: int
    input_tokens: int
    output_tokens: int
    spread: float = 0.0
    prefixes: int = 0
    prefix_tokens: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's text and the most tokens of its answer."""

    text: str
    output_tokens: int


def prompts(workload: Workload, measure: Measure) -> list[Prompt]:
    """The requests, in order."""
    draw = random.Random(f"prompts {workload.seed}")
    shared = [_text(draw, round(workload.prefix_tokens / measure.each)) for _ in range(workload.prefixes)]
    made = []
    for index in range(workload.count):
        tokens = _around(draw, workload.input_tokens, workload.spread)
        output = _around(draw, workload.output_tokens, workload.spread)
        if shared:
            text = f"{shared[index % len(shared)]} {_text(draw, max(1, round(tokens / measure.each)))}"
        else:
            text = _text(draw, measure.words(tokens))
        made.append(Prompt(text, output))
    return made


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start at which requests come. An infinite rate: all at once.

    Gaps have a gamma distribution of shape `burstiness` and mean 1 / rate; of shape 1 that is a Poisson process.
    """
    if math.isinf(rate):
        return [0.0] * count
    draw = random.Random(f"arrivals {seed}")
    gaps = (draw.gammavariate(burstiness, 1.0 / (rate * burstiness)) for _ in range(count - 1))
    return [0.0, *accumulate(gaps)][:count]


def probes(seed: int) -> Iterator[tuple[int, str]]:
    """Two prompts, with how many words they have: what the server's own count of them says is its measure."""
    draw = random.Random(f"probes {seed}")
    for words in (16, 144):
        yield words, _text(draw, words)


def _text(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def _around(draw: random.Random, mean: int, spread: float) -> int:
    return max(1, draw.randint(math.floor(mean * (1 - spread)), math.ceil(mean * (1 + spread))))

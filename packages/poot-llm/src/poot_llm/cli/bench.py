"""`poot bench MODEL`: llama-bench's rows. ppN reads a prompt of N tokens, tgN generates N."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import mean, stdev
from time import perf_counter

import numpy as np

from poot_executor.errors import RequestError
from poot_llm.cli.output import show
from poot_llm.cli.parser import add_device, add_model, add_shape, whole
from poot_llm.cli.session import Session, open_session
from poot_llm.driver import Driver
from poot_llm.registry import ModelHandle, Models
from poot_llm.sampling import SamplingParams

SEED = 0
"""The prompts are random ids, the same in every run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, the tests, what to run on."""
    add_model(parser)
    for flag, name, default, what in (
        ("-p", "--prompt-tokens", "512", "tokens of the prompt"),
        ("-n", "--generated-tokens", "128", "tokens to generate"),
        ("-d", "--depth", "0", "positions that are filled before; a multiple of the chunk"),
    ):
        text = f"{what}, several with commas, 0 for none (default: {default})"
        parser.add_argument(flag, name, type=counts, default=counts(default), metavar="N", help=text)
    parser.add_argument("-r", "--repeats", type=whole, default=5, metavar="N", help="repeats (default: 5)")
    add_device(parser)
    add_shape(parser)


def counts(text: str) -> tuple[int, ...]:
    """Numbers of 0 or more, with commas between them."""
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 0:
        raise argparse.ArgumentTypeError(f"{text} has a number below 0")
    return numbers


def run(arguments: argparse.Namespace) -> int:
    """Measure each test, one untimed repeat first, and print a table of tokens a second ± standard deviation."""
    from rich.table import Table

    handle = Models().open(arguments.model)
    table = Table("model", "size", "device", "test", "t/s", box=None, pad_edge=False, header_style="bold")
    with open_session(handle, arguments) as session:
        for name, measure in list(tests(arguments, session.driver)):
            measure()
            rates = [measure() for _ in range(arguments.repeats)]
            spread = stdev(rates) if len(rates) > 1 else 0.0
            table.add_row(handle.name, _size(handle), _device(session), name, f"{mean(rates):.2f} ± {spread:.2f}")
    show(table)
    return 0


def tests(arguments: argparse.Namespace, driver: Driver) -> Iterator[tuple[str, Callable[[], float]]]:
    """Names and measurements in tokens a second. Raises RequestError for one that does not fit, before any is run."""
    chunk = min(driver.options.chunk, driver.capacity)
    for depth in arguments.depth:
        at = f" @ d{depth}" if depth else ""
        if depth % chunk:
            raise RequestError(f"-d {depth}: it is not a multiple of the chunk, {chunk}")
        for count in filter(None, arguments.prompt_tokens):
            _require_room(driver, f"-p {count} -d {depth}", depth + count + 1)
            yield f"pp{count}{at}", lambda count=count, depth=depth: prefill_rate(driver, count, depth)
        for count in filter(None, arguments.generated_tokens):
            _require_room(driver, f"-n {count} -d {depth}", max(depth, 1) + count + 1)
            yield f"tg{count}{at}", lambda count=count, depth=depth: decode_rate(driver, count, depth)


def _require_room(driver: Driver, what: str, positions: int) -> None:
    if positions > driver.capacity:
        raise RequestError(f"{what} takes {positions} positions, the capacity is {driver.capacity}: see --capacity")


def prompt(driver: Driver, count: int) -> list[int]:
    """Random token ids."""
    return np.random.default_rng(SEED).integers(0, driver.handle.config.vocabulary, count).tolist()


def prefill_rate(driver: Driver, count: int, depth: int) -> float:
    """Prompt tokens a second, `depth` tokens being read before the clock starts."""
    sequence = driver.open(prompt(driver, depth + count), SamplingParams(max_tokens=1))
    assert sequence is not None
    try:
        while sequence.cached < depth:
            _raise(driver.step([sequence])[0].failure)
        started = perf_counter()
        while sequence.pending:
            _raise(driver.step([sequence])[0].failure)
        return count / (perf_counter() - started)
    finally:
        driver.release(sequence)


def decode_rate(driver: Driver, count: int, depth: int) -> float:
    """Generated tokens a second after a prompt of `depth` tokens (at least one), its reading apart."""
    params = SamplingParams(max_tokens=count + 1, ignore_eos=True)
    with driver.generate(prompt(driver, max(depth, 1)), params) as stream:
        next(stream)
        started = perf_counter()
        made = sum(1 for _ in stream)
        seconds = perf_counter() - started
    assert made == count
    return made / seconds


def _raise(failure: Exception | None) -> None:
    if failure is not None:
        raise failure


def _size(handle: ModelHandle) -> str:
    return f"{handle.stored_bytes / 1e6:.1f} MB"


def _device(session: Session) -> str:
    choice = session.choice
    return f"{choice.name}:{choice.selector}" if choice.selector else choice.name

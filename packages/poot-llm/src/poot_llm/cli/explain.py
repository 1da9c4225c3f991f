"""`poot explain MODEL`: the program of a step, as a table. It needs no device."""

from __future__ import annotations

import argparse

from poot_executor.compile import Caps, CompileOptions, Target
from poot_executor.compile.schedule_picks import Schedules
from poot_executor.discover import open_device
from poot_executor.errors import DeviceNotFound
from poot_executor.settings import Settings, read_settings
from poot_executor.tuned import load_schedules
from poot_llm.blocks.step import StepShape
from poot_llm.cli.output import note, write
from poot_llm.cli.parser import add_model, whole
from poot_llm.driver import DriverOptions, StepSet, compile_step
from poot_llm.registry import Models
from poot_llm.sampling import Suffix

REFERENCE = "reference"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL and the step's shape."""
    add_model(parser)
    parser.add_argument("--tokens", type=whole, default=1, metavar="N", help="of the step (default: 1, decoding)")
    parser.add_argument("--capacity", type=whole, metavar="N", help="positions (default: as `poot generate`)")
    parser.add_argument("--sampled", action="store_true", help="with the sampling suffix, not the greedy one")
    parser.add_argument(
        "--target",
        default="auto",
        metavar="auto|NAME[:SELECTOR]",
        help=f"a device to compile for, or {REFERENCE}, which needs none (default: auto, {REFERENCE} where none opens)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the table. Raises DeviceNotFound for an absent target that was asked for, Unsupported, CompileLimit."""
    settings = read_settings()
    handle = Models().open(arguments.model)
    steps = StepSet.of(DriverOptions(capacity=arguments.capacity), handle.config.context)
    shape = StepShape(1, arguments.tokens, steps.capacity, steps.capacity)
    suffix = Suffix.SAMPLED if arguments.sampled else Suffix.GREEDY
    target, schedules = _target(arguments.target, settings)
    options = CompileOptions(dump=settings.dump, schedules=schedules)
    program = compile_step(handle, target, shape, suffix, options=options)
    write(program.explain())
    return 0


def _target(request: str, settings: Settings) -> tuple[Target, Schedules]:
    """What to compile for, and what `poot tune` measured there."""
    if request == REFERENCE:
        return Target(REFERENCE, Caps()), Schedules()
    try:
        device, choice = open_device(request, settings.device)
    except DeviceNotFound as error:
        if request != "auto":
            raise
        note(f"compiled for {REFERENCE}: {error}")
        return Target(REFERENCE, Caps()), Schedules()
    with device:
        if request == "auto":
            note(str(choice))
        return device.target, load_schedules(settings.tuned, device.target, choice.description)

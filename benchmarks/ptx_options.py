"""Which of ptx's options pay on this GPU: `python benchmarks/ptx_options.py --cells FILE --table FILE`.

What a device has now, beside it without products of warpgroups or without the next kernel started early, and with
positions split between groups sooner or later. Stages run in the order of what most
depends on them, each in a process of its own, so that one that ends badly costs no other; each begins with a small
model against the oracle. What was measured is kept at once, and a second run goes on where the first ended. Under each
row stand the kernels of the step, each with all of its dispatches in a recording of their own.

`--reference` interprets the kernels of a small shape instead: it tries the script, and measures nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from cells import Kept, commit_of
from shapes import MOST_STEPS, SHAPES, SMALL, Cell, Model, Run, check, picked, timed

from poot_executor.compile.program import DispatchCommand, Program
from poot_executor.device import Bindings, Recording
from poot_executor.engine import Engine
from poot_executor.formats import FORMATS
from poot_executor.kernel.warpgroups import FEATURE as WARPGROUP
from poot_executor.kernel_device import KernelDevice
from poot_executor.settings import read_settings
from poot_ptx_device.architecture import ARCHITECTURES
from poot_ptx_device.caps import EARLY_LAUNCH, OPTIONS, caps_of

ROOT = Path(__file__).resolve().parents[1]
CAPACITY, CHUNK = 512, 2048
REPLAYS = 5
SHOWN = ("warpgroups", "tokens", "stages", "slices", "lanes", "splits", "queries", "weights")
"""Of a schedule, what is said beside a kernel's time."""

SETS: Mapping[str, tuple[frozenset[str], int | None]] = {
    "now": (OPTIONS | {WARPGROUP}, None),
    "no products": (OPTIONS, None),
    "late": (OPTIONS - {EARLY_LAUNCH} | {WARPGROUP}, None),
    "split 2": (OPTIONS | {WARPGROUP}, 2),
    "split 4": (OPTIONS | {WARPGROUP}, 4),
    "split 8": (OPTIONS | {WARPGROUP}, 8),
}
"""Options by name, and the tiles of positions below which one group walks all of them, where a set says so: what the
table calls them."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Shapes with one set of options. `steps` are rows, tokens of each, depth, and the tile of warpgroups that is
    picked (None: the heuristic's, 0: none). `checks` are rows, tokens and tiles of the small model that is compared
    with the oracle, beside those like the steps."""

    options: str
    shapes: tuple[str, ...]
    format: str
    steps: tuple[tuple[int, int, int, int | None], ...] = ((1, 1, 0, None),)
    checks: tuple[tuple[int, int, int], ...] = ()


DECODE, DEEP = (1, 1, 0, None), (1, 1, 1900, None)
SPLITS = tuple(
    Stage(f"split {tiles}", (shape,), "bf16", (DECODE, DEEP)) for shape in ("135M", "0.5B", "8B") for tiles in (2, 4, 8)
)
STAGES = (
    Stage(
        "now",
        ("8B",),
        "bf16",
        (DECODE, (1, CHUNK, 0, None), (64, 1, 128, None), (256, 1, 128, None)),
        checks=((1, 256, 256), (1, 250, 64), (64, 1, 64)),
    ),
    Stage("now", ("135M", "0.5B", "1B"), "bf16", (DECODE, (1, 512, 0, None))),
    Stage("now", ("8B",), "q4_0", (DECODE, (1, 512, 0, None))),
    *SPLITS,
    Stage("late", ("135M", "0.5B"), "bf16"),
    Stage("no products", ("8B",), "bf16", ((1, CHUNK, 0, None),)),
)
"""In the order of priority."""
TRIED = (
    Stage("now", ("small",), "bf16", ((1, 1, 0, None), (20, 1, 4, None)), checks=((1, 70, 64),)),
    Stage("now", ("small",), "bf16", ((20, 1, 4, 0),)),
)
"""What `--reference` goes through."""


def opened(options: str, *, products: bool, reference: bool) -> KernelDevice:
    """The device with a set of options; without products of warpgroups, where they were found wrong."""
    chosen, split_tiles = SETS[options]
    if not products:
        chosen -= {WARPGROUP}
    if reference:
        from poot_eval.device import ReferenceDevice

        return ReferenceDevice(caps_of(next(a for a in ARCHITECTURES if a.warpgroups), options=chosen))
    from cuda.bindings import driver

    from poot_ptx_device.native import Native
    from poot_ptx_device.opening import open_gpu

    native = Native(driver)
    native.initialize()
    device = open_gpu(native, native.gpus()[0], read_settings().device, options=chosen)
    if WARPGROUP in chosen and WARPGROUP not in device.target.caps.features:
        print("products of warpgroups did not give their known answers: nothing of them is measured", flush=True)
    if split_tiles is not None:
        device.settle(replace(device.target.caps, split_tiles=split_tiles))
    return device


def run_stage(stage: Stage, kept: Kept, steps: int, *, products: bool, reference: bool) -> None:
    """Every cell of a stage that is not kept yet."""
    wanted = [(shape, step) for shape in stage.shapes for step in stage.steps]
    missing = [(shape, step) for shape, step in wanted if kept.get(named(stage, shape, step)) is None]
    if not missing:
        return
    with closing(opened(stage.options, products=products, reference=reference)) as device:
        engine = Engine(device)
        like = dict.fromkeys((rows, min(tokens, 64), None) for _, (rows, tokens, _, _) in missing)
        for rows, tokens, tile in (*like, *(stage.checks if products else ())):
            cell = Cell("small", stage.format, "bf16", rows, tokens, 0, 64)
            said = check(engine, FORMATS[stage.format], cell, tile)
            print(f"{stage.options}: {rows} x {tokens}, tile {tile}: {said}", flush=True)
        for shape in dict.fromkeys(shape for shape, _ in missing):
            model = Model(engine, SMALL if shape == "small" else SHAPES[shape], FORMATS[stage.format])
            for step in (step for other, step in missing if other == shape):
                measure(model, device, stage, shape, step, kept, steps)
            model.unload()
        engine.close()


def measure(
    model: Model,
    device: KernelDevice,
    stage: Stage,
    shape: str,
    step: tuple[int, int, int, int | None],
    kept: Kept,
    steps: int,
) -> None:
    """One cell, kept."""
    rows, tokens, depth, tile = step
    deepest = tokens if tokens > 1 else depth + MOST_STEPS + 1
    capacity = max(CAPACITY if shape != "small" else 64, -(-deepest // 16) * 16)
    activations = Cell(shape, stage.format, "bf16", rows, tokens, depth, capacity).dtype
    run = Run(model, capacity, rows=rows, tokens=tokens, activations=activations)
    if tile is not None:
        options = picked(run, tile)
        run.remove()
        run = Run(model, capacity, rows=rows, tokens=tokens, activations=activations, options=lambda: options)
    products = sum("warpgroups" in d.schedule for d in run.program.dispatches)
    with bindings_seen(device) as seen:
        result = timed(run, device, depth, steps if tokens == 1 else max(2, steps // 5))
    show(named(stage, shape, step), kept.put(named(stage, shape, step), {**result, "products": products}))
    for name, seconds in by_kernel(run.program, device, seen[-1]):
        print(f"    {seconds * 1e6:>9,.0f} µs  {name}", flush=True)
    run.remove()


@contextmanager
def bindings_seen(device: KernelDevice) -> Iterator[list[Bindings]]:
    """What programs are bound to meanwhile."""
    seen: list[Bindings] = []
    lower = device.lower

    def noting(program: Program, bindings: Bindings) -> Recording:
        seen.append(bindings)
        return lower(program, bindings)

    device.lower = noting
    try:
        yield seen
    finally:
        del device.lower


def by_kernel(program: Program, device: KernelDevice, bindings: Bindings) -> list[tuple[str, float]]:
    """Device seconds of all dispatches of each kernel together, the longest first."""
    found: dict[bytes, list[DispatchCommand]] = {}
    for command in program.dispatches:
        found.setdefault(command.kernel.digest(), []).append(command)
    times = []
    for commands in found.values():
        recording = device.lower(replace(program, commands=tuple(commands)), bindings)
        seconds = []
        for _ in range(REPLAYS):
            device.replay(recording)
            device.synchronize()
            seconds.append(device.device_time() or 0.0)
        device.release(recording)
        first = commands[0]
        what = {n: v for n, v in first.schedule.items() if n in SHOWN}
        times.append((f"{len(commands)} x {first.kernel.name} {first.groups} {what}", median(seconds)))
    return sorted(times, key=lambda named: -named[1])


def named(stage: Stage, shape: str, step: tuple[int, int, int, int | None]) -> dict[str, Any]:
    """The name of a cell."""
    rows, tokens, depth, tile = step
    return {
        "options": stage.options,
        "shape": shape,
        "format": stage.format,
        "rows": rows,
        "tokens": tokens,
        "depth": depth,
        "tile": tile,
    }


HEAD = (
    "| options | shape | rows x tokens, depth | tile | tok/s, one step ahead | device µs | "
    "exposed host µs, none ahead | TB/s | dispatches, of them products |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def line(cell: Mapping[str, Any], result: Mapping[str, float]) -> str:
    """A row of the table."""
    rate, device = cell["rows"] * cell["tokens"] / result["wall"], result["device"]
    exposed, speed = result["alone"] - device, result["bytes"] / device / 1e12
    tile = {None: "heuristic", 0: "none"}.get(cell["tile"], cell["tile"])
    what = f"{cell['options']} | {cell['shape']} {cell['format']} | {cell['rows']} x {cell['tokens']}, {cell['depth']}"
    times = f"{rate:,.0f} | {device * 1e6:,.0f} | {exposed * 1e6:,.0f} | {speed:.2f}"
    return f"| {what} | {tile} | {times} | {result['dispatches']:.0f}, {result['products']:.0f} |"


def show(cell: Mapping[str, Any], result: Mapping[str, float]) -> None:
    """A row, as soon as it is there."""
    print(line(cell, result), flush=True)


def table(stages: Sequence[Stage], kept: Kept) -> str:
    """All that was measured, in the order of the stages."""
    rows = []
    for stage in stages:
        for shape in stage.shapes:
            for step in stage.steps:
                result = kept.get(named(stage, shape, step))
                rows.append("" if result is None else line(named(stage, shape, step), result))
    return "\n".join([HEAD, *filter(None, rows)])


def named_commit() -> str:
    """The checkout's commit; where it has none, or differs from it, with the time, so that nothing else is it."""
    commit = commit_of(ROOT)
    return f"{commit} {time.strftime('%Y-%m-%dT%H:%M:%S')}" if commit.endswith(("dirty", "unknown")) else commit


def main() -> None:
    """Every stage in a process of its own, as long as there is time; or one of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=Path, required=True, help="a file that keeps what was measured")
    parser.add_argument("--table", type=Path, help="where the table goes, besides being printed")
    parser.add_argument("--seconds", type=float, default=470.0, help="in which all stages have to end")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--commit", help="what the cells are of, where the checkout does not say; given again to go on")
    parser.add_argument("--stage", type=int, help="one stage, in this process")
    parser.add_argument("--no-products", action="store_true", help="without products of warpgroups")
    parser.add_argument("--reference", action="store_true", help="interpret a small shape, to try the script")
    args = parser.parse_args()
    stages = TRIED if args.reference else STAGES
    common = {
        "commit": args.commit or named_commit(),
        "device": "reference" if args.reference else "ptx",
        "steps": args.steps,
    }
    if args.stage is not None:
        kept = Kept(args.cells, common)
        run_stage(stages[args.stage], kept, args.steps, products=not args.no_products, reference=args.reference)
        return
    until = perf_counter() + args.seconds
    for place, stage in enumerate(stages):
        left = until - perf_counter()
        if left < 10:
            print(f"no time is left for {len(stages) - place} stages", flush=True)
            break
        again = [*sys.argv, "--stage", str(place), "--commit", common["commit"], *["--no-products"] * args.no_products]
        try:
            done = subprocess.run([sys.executable, *again], check=False, timeout=left)
        except subprocess.TimeoutExpired:
            print(f"{stage.options} {stage.shapes}: out of time", flush=True)
            break
        if done.returncode:
            print(f"{stage.options} {stage.shapes}: ended with {done.returncode}", flush=True)
            if stage.checks and not args.no_products:
                print("products of warpgroups are left out from here on", flush=True)
                args.no_products = True
    text = table(stages, Kept(args.cells, common))
    print(f"\ncommit {common['commit']}\n{text}", flush=True)
    if args.table is not None:
        args.table.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

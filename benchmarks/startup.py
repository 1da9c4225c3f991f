"""What a user waits for before anything is seen: `hatch run bench:startup [MODEL] [--device NAME] ...`.

`poot --help`, and `poot generate` to its first byte of text, each as a process of its own, from the moment it is
started. Generation is warm: one run before the measured ones leaves compiled programs and Python's own files on disk.
With `--cold` it is measured besides without the caches of programs and kernels, poot's and the GPU driver's. Every run
must give the same text. Measure on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from statistics import median
from time import perf_counter

HELP_SECONDS, TOKEN_SECONDS, COLD_SECONDS = 0.150, 2.5, 6.0
"""What is aimed at: on a machine of two cores, cold for a model of 0.5B on a GPU."""
COLD = {"POOT_COMPILE_CACHE": "0", "CUDA_CACHE_DISABLE": "1"}
PROMPT, TOKENS = "The capital of France is", 4


def timed(words: list[str], settings: Mapping[str, str]) -> tuple[float, bytes]:
    """Seconds from the start of `poot WORDS` to its first output, and all of the output. Exits where it fails."""
    # Without Python's compiled files every process would compile all modules again, which no installation does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment.update(settings)
    started = perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "poot_llm", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = perf_counter() - started
        rest, problem = process.communicate()
    if process.returncode != 0 or not first:
        raise SystemExit(f"poot {' '.join(words)}: status {process.returncode}\n{problem.decode(errors='replace')}")
    return seconds, first + rest


def measure(name: str, words: list[str], repeats: int, aim: float, *, cold: bool = False) -> None:
    """Run once, then measure and print a line. Exits where a run gives another text than the first one."""
    _, expected = timed(words, {})
    times = []
    for _ in range(repeats):
        seconds, text = timed(words, COLD if cold else {})
        if text != expected:
            raise SystemExit(f"{name} gave {text!r}, and {expected!r} before")
        times.append(seconds)
    print(f"{name:<24} {1e3 * median(times):>9.0f} {1e3 * min(times):>9.0f} {1e3 * aim:>9.0f}", flush=True)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="name, GGUF file or folder (default: smollm2)")
    parser.add_argument("--device", default="vpu:cpu", help="as for `poot generate` (default: vpu:cpu)")
    parser.add_argument("--repeats", type=int, default=10, help="(default: 10)")
    parser.add_argument("--cold", action="store_true", help="measure with empty caches too")
    args = parser.parse_args()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    print(f"milliseconds, {args.repeats} processes each, {os.cpu_count()} cores, load {load:.1f} before")
    print(f"{'':<24} {'median':>9} {'least':>9} {'aim':>9}")
    measure("poot --help", ["--help"], args.repeats, HELP_SECONDS)
    words = ["generate", args.model, PROMPT, "--max-tokens", str(TOKENS), "--device", args.device]
    measure(f"first text, {args.device}", words, args.repeats, TOKEN_SECONDS)
    if args.cold:
        measure(f"cold, {args.device}", words, args.repeats, COLD_SECONDS, cold=True)


if __name__ == "__main__":
    main()

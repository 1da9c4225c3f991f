"""Text from a real checkpoint in one command: `hatch run demo`, or `python examples/demo.py`.

Fetches SmolLM2-135M-Instruct once, then generates on what `poot` chooses by default: in the demo's own environment an
Intel NPU or GPU where OpenVINO finds one, and else this processor, with no system package. Words after the command are
the prompt.
"""

from __future__ import annotations

import subprocess
import sys

PROMPT = "Write a Python function that reverses a string."


def main() -> int:
    """The exit status of the command that failed, else 0."""
    prompt = " ".join(sys.argv[1:]) or PROMPT
    for command in (
        ["poot", "pull", "smollm2"],
        ["poot", "generate", "smollm2", prompt, "--chat", "--max-tokens", "48"],
    ):
        sys.stderr.write(f"$ {' '.join(command[:3])} ...\n")
        finished = subprocess.run(command, check=False)
        if finished.returncode:
            return finished.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

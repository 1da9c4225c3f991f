"""Text from a real checkpoint in one command: `hatch run demo`, or `python examples/demo.py`.

Fetches SmolLM2-135M-Instruct once, then generates with the kernels of this repository on a GPU
that wgpu finds, or on Mesa's software Vulkan where there is none. Words after the command are the
prompt.
"""

from __future__ import annotations

import subprocess
import sys

from poot_executor.device import Missing
from poot_executor.discover import survey
from poot_executor.settings import read_settings

PROMPT = "Write a Python function that reverses a string."
NO_DRIVER = """\
No device for wgpu: {reason}
A Vulkan driver is missing. On Debian and Ubuntu, Mesa's software driver is enough:

    sudo apt-get install --yes libvulkan1 mesa-vulkan-drivers

then run this again.
"""


def why_no_device() -> str | None:
    """Why wgpu offers no device on this machine, or None where it offers one."""
    for status in survey(read_settings().device):
        if status.name == "wgpu":
            if status.found:
                return None
            return status.error or "; ".join(entry.reason for entry in status.entries if isinstance(entry, Missing))
    return "poot-wgpu-device is not installed"


def main() -> int:
    """The exit status of the command that failed, else 0."""
    reason = why_no_device()
    if reason is not None:
        sys.stderr.write(NO_DRIVER.format(reason=reason))
        return 2
    prompt = " ".join(sys.argv[1:]) or PROMPT
    for command in (
        ["poot", "pull", "smollm2"],
        ["poot", "generate", "smollm2", prompt, "--chat", "--device", "wgpu", "--max-tokens", "48"],
    ):
        sys.stderr.write(f"$ {' '.join(command[:3])} ...\n")
        finished = subprocess.run(command, check=False)
        if finished.returncode:
            return finished.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

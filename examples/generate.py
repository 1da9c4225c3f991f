"""Text from a model through the Python API: `python examples/generate.py MODEL PROMPT [DEVICE]`.

MODEL is the name of a model that was pulled, a GGUF file or a folder of safetensors; DEVICE is one of those that
`poot devices` lists.
"""

from __future__ import annotations

import sys

from poot_executor.discover import open_device
from poot_executor.engine import Engine
from poot_executor.settings import read_settings
from poot_llm.driver import Driver
from poot_llm.generation import TextStream
from poot_llm.registry import Models
from poot_llm.sampling import SamplingParams


def main(model: str, prompt: str, request: str = "auto") -> None:
    """Print the continuation as it comes."""
    handle = Models().open(model)
    prompt_ids = handle.tokenizer.encode(prompt, add_special=True, parse_special=False)
    device, choice = open_device(request, read_settings().device)
    print(choice, file=sys.stderr)
    with device, Engine(device) as engine, Driver(handle, engine) as driver:
        for piece in TextStream(driver, prompt_ids, SamplingParams(max_tokens=32)):
            print(piece.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])

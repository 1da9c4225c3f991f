"""`LLM`: a model by name or path on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poot_llm.answers import CompletionOutput, RequestOutput
from poot_llm.batching import BatchWorker
from poot_llm.driver import Driver, DriverOptions
from poot_llm.opening import open_driver
from poot_llm.registry import Models
from poot_llm.served_model import Message, ServedModel
from poot_llm.served_texts import Prompt

__all__ = ["LLM", "CompletionOutput", "Message", "Prompt", "RequestOutput", "ServedModel"]

ROWS = 16


class LLM(ServedModel):
    """A model by name or path on a device, with up to `rows` requests at once."""

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        rows: int = ROWS,
        capacity: int | None = None,
        options: DriverOptions | None = None,
    ) -> None:
        """`model` is a known name, a GGUF file or a folder; `device` as `poot devices` lists them. `options` say more
        than `rows` and `capacity` do, and take their place: without them prompts that begin alike share what was
        computed of them, on every device.

        Raises what opening the checkpoint and the device raises, and SettingsError for options that do not fit.
        """
        chosen = DriverOptions(rows=rows, capacity=capacity, prefix_cache=True) if options is None else options
        handle = Models().open(model)

        @contextmanager
        def opening() -> Iterator[Driver]:
            with open_driver(handle, device, chosen) as opened:
                yield opened.driver

        super().__init__(BatchWorker(opening))

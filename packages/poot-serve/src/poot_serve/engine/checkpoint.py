"""What a server serves, by name or path: a model that generates, or an encoder."""

from __future__ import annotations

from pathlib import Path

from poot_llm.encoders import EncoderHandle, open_encoder
from poot_llm.encoders.opening import MODEL_TYPES
from poot_llm.pull import resolve
from poot_llm.registry import ModelHandle, Models
from poot_llm.strict_json import read_object


def open_checkpoint(model: str | Path) -> ModelHandle | EncoderHandle:
    """The checkpoint, of which no weight is read. Raises what `Models.open` and `open_encoder` raise."""
    path = resolve(model)
    config = path / "config.json"
    if path.is_dir() and config.exists() and read_object(config).get("model_type") in MODEL_TYPES:
        return open_encoder(path)
    return Models().open(path)

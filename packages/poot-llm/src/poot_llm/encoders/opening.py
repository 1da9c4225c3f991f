"""Opening a checkpoint for what it gives of whole texts: that of an encoder, or of a model that generates too."""

from __future__ import annotations

from pathlib import Path

from poot_executor.errors import Unsupported
from poot_llm.models.bert import BERT
from poot_llm.registry import ModelHandle, Models

MODEL_TYPES = BERT.model_types
"""Encoders that generate nothing, by config.json's model_type."""


def open_encoder(path: str | Path) -> ModelHandle:
    """Raises what `Models.open` does, and Unsupported for a family that gives no hidden states."""
    handle = Models().open(path)
    if handle.family.hidden is None:
        raise Unsupported(f"hidden states of family {handle.family.name}", "its trace gives logits alone")
    return handle

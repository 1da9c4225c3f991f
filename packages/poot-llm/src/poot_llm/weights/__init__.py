"""Checkpoints as stored: GGUF files and safetensors directories, memory-mapped, nothing widened."""

from poot_llm.weights.gguf import GgufFile
from poot_llm.weights.safetensors import SafetensorsStore

__all__ = ["GgufFile", "SafetensorsStore"]

"""Encoders: models that read a whole text at once and give an embedding, or a score of a pair of texts."""

from poot_llm.encoders.encoder import Encoder, EncoderOptions
from poot_llm.encoders.opening import EncoderHandle, open_encoder
from poot_llm.encoders.pooling import Pool, Pooling

__all__ = ["Encoder", "EncoderHandle", "EncoderOptions", "Pool", "Pooling", "open_encoder"]

"""Encoders: models that read a whole text at once and give an embedding, or a score of a pair of texts."""

from poot_llm.driver import Encoded, NonFiniteEmbedding
from poot_llm.encoders.encoder import Encoder, EncoderOptions, TextEncoder
from poot_llm.encoders.opening import open_encoder
from poot_llm.encoders.reading import TextReader
from poot_llm.models.pooling import Pool, Pooling
from poot_llm.registry import EncoderHandle

__all__ = [
    "Encoded",
    "Encoder",
    "EncoderHandle",
    "EncoderOptions",
    "NonFiniteEmbedding",
    "Pool",
    "Pooling",
    "TextEncoder",
    "TextReader",
    "open_encoder",
]

"""The llama family's configuration, from a config.json and from GGUF metadata."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from poot_executor.errors import CheckpointError
from poot_llm.models.fields import Fields
from poot_llm.models.rope import RopeScaling, rope_scaling_from_gguf, rope_scaling_from_json


class Naming(Enum):
    """Whose tensor names a checkpoint uses."""

    HUGGING_FACE = "hugging face"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Hyperparameters of a llama. Sizes are in elements.

    `interleaved`: rotary pairs are (2i, 2i + 1), since GGUF files hold the rows of Q and K in that
    order; else (i, i + half). `rope_factors`: the file has a tensor that divides the frequencies.
    """

    naming: Naming
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    epsilon: float
    rope_base: float
    rope_dimensions: int
    rope_scaling: RopeScaling | None
    rope_factors: bool
    interleaved: bool
    attention_bias: frozenset[str]
    mlp_bias: frozenset[str]
    tied_head: bool

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise CheckpointError(f"llama: {self.heads} query heads do not share {self.kv_heads} KV heads evenly")
        if self.rope_dimensions % 2 or self.rope_dimensions > self.head_dim:
            raise CheckpointError(
                f"llama: {self.rope_dimensions} rotary dimensions of heads of {self.head_dim}: "
                "an even number, at most the head, can turn"
            )


ATTENTION = ("query", "key", "value", "attention_output")
MLP = ("gate", "up", "down")

_IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "_name_or_path": "where it was saved from",
        "architectures": "the class that loads it elsewhere; model_type decides here",
        "attention_dropout": "training alone",
        "bos_token_id": "read with the tokenizer",
        "dtype": "every tensor says its own",
        "eos_token_id": "read with the tokenizer",
        "initializer_range": "training alone",
        "is_llama_config": "a converter's mark",
        "pad_token_id": "read with the tokenizer",
        "torch_dtype": "every tensor says its own",
        "transformers.js_config": "another runtime's settings",
        "transformers_version": "what wrote it",
        "unsloth_fixed": "a converter's mark",
        "unsloth_version": "a converter's mark",
        "use_cache": "another runtime's setting",
    }
)
"""Fields of config.json that do not change what is computed here, with the reason."""


def config_from_json(fields: Mapping[str, Any], where: str) -> LlamaConfig:
    """From config.json. Raises CheckpointError for a field that is bad, missing or unknown."""
    read = Fields(fields, where)
    read.expect("model_type", "llama")
    read.expect("hidden_act", "silu")
    read.expect("pretraining_tp", 1)
    read.expect("rope_interleaved", False)
    read.expect("sliding_window")
    read.expect("quantization_config")
    width, heads = read.count("hidden_size"), read.count("num_attention_heads")
    head_dim = _head_dim(read, "head_dim", "hidden_size", width, heads)
    context = read.count("max_position_embeddings", 2048)
    base, scaling = rope_scaling_from_json(read, context)
    config = LlamaConfig(
        naming=Naming.HUGGING_FACE,
        vocabulary=read.count("vocab_size"),
        width=width,
        layers=read.count("num_hidden_layers"),
        heads=heads,
        kv_heads=read.count("num_key_value_heads", heads),
        head_dim=head_dim,
        ffn=read.count("intermediate_size"),
        context=context,
        epsilon=read.number("rms_norm_eps", 1e-6),
        rope_base=base,
        rope_dimensions=head_dim,
        rope_scaling=scaling,
        rope_factors=False,
        interleaved=False,
        attention_bias=frozenset(ATTENTION if read.flag("attention_bias", False) else ()),
        mlp_bias=frozenset(MLP if read.flag("mlp_bias", False) else ()),
        tied_head=read.flag("tie_word_embeddings", False),
    )
    read.finish(_IGNORED)
    return config


def config_from_gguf(metadata: Mapping[str, Any], names: Collection[str], where: str) -> LlamaConfig:
    """From the `llama.*` pairs of a GGUF file whose tensors have these names.

    Raises CheckpointError for a pair that is bad, missing or unknown. Keys outside `llama.` describe
    the file and the tokenizer, and are not read here, `split.count` apart.
    """
    read = Fields(metadata, where)
    read.expect("general.architecture", "llama")
    read.expect("split.count", 0, 1)
    read.expect("llama.expert_count", 0)
    read.expect("llama.expert_used_count", 0)
    width, heads = read.count("llama.embedding_length"), read.count("llama.attention.head_count")
    head_dim = _head_dim(read, "llama.attention.key_length", "llama.embedding_length", width, heads)
    read.expect("llama.attention.value_length", head_dim)
    tokens = metadata.get("tokenizer.ggml.tokens")
    vocabulary = len(tokens) if isinstance(tokens, list) and tokens else None
    held = set(names)
    config = LlamaConfig(
        naming=Naming.GGUF,
        vocabulary=read.count("llama.vocab_size", vocabulary),
        width=width,
        layers=read.count("llama.block_count"),
        heads=heads,
        kv_heads=read.count("llama.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=read.count("llama.feed_forward_length"),
        context=read.count("llama.context_length"),
        epsilon=read.number("llama.attention.layer_norm_rms_epsilon"),
        rope_base=read.number("llama.rope.freq_base", 10000.0),
        rope_dimensions=read.count("llama.rope.dimension_count", head_dim),
        rope_scaling=rope_scaling_from_gguf(read, "llama"),
        rope_factors="rope_freqs.weight" in held,
        interleaved=True,
        attention_bias=_biased(held, ATTENTION),
        mlp_bias=_biased(held, MLP),
        tied_head="output.weight" not in held,
    )
    read.finish(
        {"llama.pooling_type": "how texts are pooled: read where the file is opened"},
        also=lambda name: not name.startswith("llama."),
    )
    return config


GGUF_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attention_norm": "attn_norm",
        "query": "attn_q",
        "key": "attn_k",
        "value": "attn_v",
        "attention_output": "attn_output",
        "mlp_norm": "ffn_norm",
        "gate": "ffn_gate",
        "up": "ffn_up",
        "down": "ffn_down",
    }
)
"""Roles to the names of a GGUF file's tensors, within a block."""


def _biased(held: Collection[str], roles: Collection[str]) -> frozenset[str]:
    """The roles that have a bias: one that block 0 has, every block must have."""
    return frozenset(role for role in roles if f"blk.0.{GGUF_NAMES[role]}.bias" in held)


def _head_dim(read: Fields, name: str, width_name: str, width: int, heads: int) -> int:
    if read.has(name):
        return read.count(name)
    if width % heads:
        raise read.refuse(width_name, f"is {width}, which {heads} heads do not divide")
    return read.count(name, width // heads)

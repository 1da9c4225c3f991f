"""The llama family: RMS norms, rotary grouped-query attention, SwiGLU. Source: Touvron et al. 2023;
llama 2, llama 3 and their descendants (SmolLM2, TinyLlama) differ in numbers alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from types import MappingProxyType

from poot_executor.dtype import F32
from poot_executor.graph import primitives as p
from poot_executor.graph.functional import rms_norm, swiglu
from poot_executor.graph.traced import Traced
from poot_executor.weights import WeightKey
from poot_llm.blocks.attention import Rotary, cached_attention, rotary
from poot_llm.blocks.step import Step
from poot_llm.blocks.text_pass import TextPass
from poot_llm.blocks.weights import EMBEDDINGS, Weights, embed, project, vector
from poot_llm.models.family import Family
from poot_llm.models.llama_config import (
    GGUF_NAMES,
    LlamaConfig,
    Naming,
    config_from_gguf,
    config_from_json,
)
from poot_llm.models.rope import inverse_frequencies
from poot_llm.models.weight_map import Expected

_EMBEDDING = WeightKey(None, "embedding")
_FINAL_NORM = WeightKey(None, "final_norm")
_HEAD = WeightKey(None, "head")
_ROPE_FACTORS = WeightKey(None, "rope_factors")

_JSON_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "attention_norm": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "attention_output": "self_attn.o_proj",
        "mlp_norm": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
)


# The step


def _trace(step: Step, config: LlamaConfig, weights: Weights) -> Traced:
    """Logits f32[rows, vocabulary] of each row's last token."""
    x = step.last_of(_layers(step, config, weights))
    return project(step, weights, _normed(step, config, weights, x), _HEAD)


def _hidden(run: TextPass, config: LlamaConfig, weights: Weights) -> Traced:
    """f32[rows, tokens, width]: what the head reads, of every token."""
    step = run.step()
    x = _normed(step, config, weights, _layers(step, config, weights))
    return p.reshape(x, (run.shape.rows, run.shape.tokens, config.width))


def _normed(step: Step, config: LlamaConfig, weights: Weights, x: Traced) -> Traced:
    """The last norm of x[n, width]."""
    return rms_norm(x, vector(step, weights, _FINAL_NORM), config.epsilon)


def _layers(step: Step, config: LlamaConfig, weights: Weights) -> Traced:
    """f32[rows · tokens, width] after all layers."""
    x = embed(step, weights, _EMBEDDING)
    turned = _rotary(step, config, weights)
    for layer in range(config.layers):
        x = x + _attention(step, config, weights, layer, turned, x)
        x = x + _mlp(step, config, weights, layer, x)
    return x


def _rotary(step: Step, config: LlamaConfig, weights: Weights) -> Rotary:
    """The cosines and sines of all layers. Llama 3's GGUF files divide frequencies by a tensor."""
    numbers = inverse_frequencies(config.rope_base, config.rope_dimensions, config.rope_scaling)
    frequencies = step.builder.computed(numbers, F32)
    if config.rope_factors:
        frequencies = frequencies / vector(step, weights, _ROPE_FACTORS)
    return rotary(step, frequencies, config.interleaved)


def _attention(step: Step, config: LlamaConfig, weights: Weights, layer: int, turned: Rotary, x: Traced) -> Traced:
    """f32[rows · tokens, width] -> the same."""

    def heads(role: str, count: int) -> Traced:
        y = project(step, weights, h, *_keys(config.attention_bias, layer, role))
        return p.reshape(y, (step.shape.rows, step.shape.tokens, count, config.head_dim))

    h = rms_norm(x, vector(step, weights, WeightKey(layer, "attention_norm")), config.epsilon)
    q, k = turned.turn(heads("query", config.heads)), turned.turn(heads("key", config.kv_heads))
    v = heads("value", config.kv_heads)
    mixed = cached_attention(step, layer, q, k, v, config.head_dim**-0.5)
    return project(step, weights, mixed, *_keys(config.attention_bias, layer, "attention_output"))


def _mlp(step: Step, config: LlamaConfig, weights: Weights, layer: int, x: Traced) -> Traced:
    """f32[rows · tokens, width] -> the same."""
    h = rms_norm(x, vector(step, weights, WeightKey(layer, "mlp_norm")), config.epsilon)
    gate, up = (project(step, weights, h, *_keys(config.mlp_bias, layer, role)) for role in ("gate", "up"))
    return project(step, weights, swiglu(gate, up), *_keys(config.mlp_bias, layer, "down"))


def _kv(config: LlamaConfig) -> Iterator[tuple[int, ...]]:
    """K and V of each layer, as `cached_attention` keeps them."""
    return repeat((config.kv_heads, config.head_dim), 2 * config.layers)


def _keys(biased: frozenset[str], layer: int, role: str) -> tuple[WeightKey, WeightKey | None]:
    """A projection's weight, and its bias where it has one."""
    return WeightKey(layer, role), WeightKey(layer, f"{role}_bias") if role in biased else None


# The weights


def _expected(config: LlamaConfig) -> Iterator[Expected]:
    gguf = config.naming is Naming.GGUF
    table = (config.vocabulary, config.width)
    names = _GGUF_WHOLE if gguf else _JSON_WHOLE
    yield Expected(_EMBEDDING, names["embedding"], table)
    yield Expected(_FINAL_NORM, names["final_norm"], (config.width,))
    yield Expected(_HEAD, names["embedding" if config.tied_head else "head"], table)
    if config.rope_factors:
        yield Expected(_ROPE_FACTORS, names["rope_factors"], (config.rope_dimensions // 2,))
    within = GGUF_NAMES if gguf else _JSON_NAMES
    for layer in range(config.layers):
        prefix = f"blk.{layer}" if gguf else f"model.layers.{layer}"
        for role, shape in _layer_shapes(config).items():
            name = f"{prefix}.{within[role]}"
            yield Expected(WeightKey(layer, role), f"{name}.weight", shape)
            if role in config.attention_bias | config.mlp_bias:
                yield Expected(WeightKey(layer, f"{role}_bias"), f"{name}.bias", shape[:1])


_GGUF_WHOLE: Mapping[str, str] = MappingProxyType(
    {
        "embedding": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "head": "output.weight",
        "rope_factors": "rope_freqs.weight",
    }
)
_JSON_WHOLE: Mapping[str, str] = MappingProxyType(
    {
        "embedding": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "head": "lm_head.weight",
    }
)


def _layer_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    width, ffn = config.width, config.ffn
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "attention_norm": (width,),
        "query": (queries, width),
        "key": (keys, width),
        "value": (keys, width),
        "attention_output": (width, queries),
        "mlp_norm": (width,),
        "gate": (ffn, width),
        "up": (ffn, width),
        "down": (width, ffn),
    }


def _ignored(name: str) -> bool:
    """Rotary frequencies that old checkpoints saved beside the weights: the config gives them."""
    return name.endswith(".rotary_emb.inv_freq")


LLAMA = Family(
    name="llama",
    model_types=("llama",),
    architectures=("llama",),
    from_json=config_from_json,
    from_gguf=config_from_gguf,
    expected=_expected,
    trace=_trace,
    hidden=_hidden,
    ignored=_ignored,
    inputs=MappingProxyType({EMBEDDINGS: lambda config: config.width}),
    kv=_kv,
)

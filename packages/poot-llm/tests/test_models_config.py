"""Configurations: what is read, what is refused, and the rotary frequencies that follow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from poot_executor.errors import CheckpointError
from poot_llm.models.fields import Fields
from poot_llm.models.llama_config import config_from_gguf, config_from_json
from poot_llm.models.rope import LinearScaling, Llama3Scaling, inverse_frequencies

JSON: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 8, "intermediate_size": 96,
}  # fmt: skip
GGUF: dict[str, Any] = {
    "general.architecture": "llama", "general.file_type": 3, "mine.note": "kept",
    "llama.block_count": 3, "llama.context_length": 512, "llama.embedding_length": 64,
    "llama.feed_forward_length": 96, "llama.attention.head_count": 8,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": 100,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def from_json(**changes: Any) -> Any:
    return config_from_json(JSON | changes, "config.json")


def from_gguf(names: tuple[str, ...] = (), **changes: Any) -> Any:
    fields = GGUF | {f"llama.{k.replace('__', '.')}": v for k, v in changes.items()}
    return config_from_gguf(fields, names, "x.gguf")


def test_what_config_json_leaves_out() -> None:
    config = from_json()
    assert (config.kv_heads, config.head_dim, config.context) == (8, 8, 2048)
    assert (config.epsilon, config.rope_base) == (1e-6, 10000.0)
    assert not (config.tied_head or config.interleaved or config.rope_factors)
    assert config.attention_bias == config.mlp_bias == frozenset()
    assert from_json(head_dim=None, rope_scaling=None).head_dim == 8


def test_what_config_json_says() -> None:
    config = from_json(
        num_key_value_heads=2, head_dim=16, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=True, rms_norm_eps=1e-5, max_position_embeddings=131072,
        rope_theta=5e5, rope_scaling=LLAMA3, pretraining_tp=1, use_cache=True, torch_dtype="bf16",
    )  # fmt: skip
    assert (config.kv_heads, config.head_dim, config.rope_dimensions) == (2, 16, 16)
    assert config.attention_bias == {"query", "key", "value", "attention_output"}
    assert config.mlp_bias == {"gate", "up", "down"}
    assert config.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert config.tied_head and config.rope_base == 5e5


def test_rope_parameters_of_later_checkpoints() -> None:
    config = from_json(rope_parameters={"rope_theta": 77.0, "rope_type": "default"})
    assert (config.rope_base, config.rope_scaling) == (77.0, None)
    config = from_json(rope_parameters={"rope_theta": 77.0, "rope_type": "linear", "factor": 2})
    assert config.rope_scaling == LinearScaling(2.0)
    config = from_json(rope_scaling={"type": "linear", "factor": 4.0})
    assert config.rope_scaling == LinearScaling(4.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"vocab_size": "100"}, "vocab_size is '100'"),
        ({"vocab_size": 1 << 40}, "vocab_size is 1099511627776"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": 7}, "hidden_size is 64, which 7 heads do not divide"),
        ({"num_key_value_heads": 3}, "8 query heads do not share 3"),
        ({"head_dim": 7}, "7 rotary dimensions"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', this family supports 'silu'"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0, not above 0"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps is inf"),
        ({"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"pretraining_tp": 2}, "pretraining_tp is 2"),
        ({"pretraining_tp": True}, "pretraining_tp is True"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear', not an object"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 1}}, "unknown.*beta"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": LLAMA3, "rope_parameters": {}}, "beside rope_parameters"),
        ({"num_local_experts": 8, "logit_scale": 2}, "unknown.*logit_scale, num_local_experts"),
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
    ],
)
def test_config_json_that_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message.replace("rope_scaling f", "rope_scaling: f")):
        from_json(**changes)


def test_gguf_metadata() -> None:
    config = from_gguf(
        ("output.weight", "blk.0.attn_v.bias", "rope_freqs.weight"),
        attention__head_count_kv=4, attention__key_length=16, attention__value_length=16,
        rope__dimension_count=12, rope__freq_base=5e5, rope__scaling__type="linear",
        rope__scaling__factor=2.0, rope__scaling__original_context_length=256,
        rope__scaling__finetuned=True, expert_count=0,
    )  # fmt: skip
    assert (config.kv_heads, config.head_dim, config.rope_dimensions) == (4, 16, 12)
    assert config.rope_scaling == LinearScaling(2.0) and config.rope_base == 5e5
    assert config.interleaved and config.rope_factors and not config.tied_head
    assert config.attention_bias == {"value"}
    assert from_gguf(rope__scaling__type="none", rope__scaling__factor=3.0).rope_scaling is None
    assert from_gguf(rope__scaling__factor=3.0).rope_scaling == LinearScaling(3.0)
    assert from_gguf(rope__scale_linear=3.0).rope_scaling == LinearScaling(3.0)
    assert from_gguf().rope_scaling is None and from_gguf().tied_head


def test_the_vocabulary_of_a_gguf_file_without_one() -> None:
    fields = {k: v for k, v in GGUF.items() if k != "llama.vocab_size"}
    config = config_from_gguf(fields | {"tokenizer.ggml.tokens": ["a"] * 7}, (), "x.gguf")
    assert config.vocabulary == 7
    with pytest.raises(CheckpointError, match=r"x\.gguf: llama\.vocab_size is missing"):
        config_from_gguf(fields, (), "x.gguf")


def test_plain_and_linear_frequencies() -> None:
    plain = inverse_frequencies(100.0, 8, None)
    np.testing.assert_allclose(plain, [1, 100 ** (-1 / 4), 0.1, 100 ** (-3 / 4)], rtol=1e-7)
    np.testing.assert_allclose(inverse_frequencies(100.0, 8, LinearScaling(4.0)), plain / 4, rtol=1e-7)


def test_llama3_frequencies_by_wavelength() -> None:
    """Meta's rule, one frequency at a time."""
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 8192)
    got = inverse_frequencies(500000.0, 128, scaling)
    kinds = set()
    for i in range(64):
        frequency = 500000.0 ** (-i / 64)
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4.0:
            expected, kind = frequency, "high"
        elif wavelength > 8192 / 1.0:
            expected, kind = frequency / 8.0, "low"
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            expected = (1 - smooth) * frequency / 8.0 + smooth * frequency
            kind = "between"
        kinds.add(kind)
        assert got[i] == pytest.approx(expected, rel=1e-6)
    assert kinds == {"high", "low", "between"}


def test_fields_that_nothing_read_are_refused_with_their_names() -> None:
    fields = Fields({"a": 1, "b": 2, "c": 3, "d": None}, "here")
    assert fields.count("a") == 1 and not fields.has("d")
    with pytest.raises(CheckpointError, match="here: unknown fields, which could matter: c, d"):
        fields.finish({"b": "a reason"})

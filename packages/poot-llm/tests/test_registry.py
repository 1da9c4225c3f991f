"""Families by key, and checkpoints opened: what is refused is refused by name."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_executor.errors import CheckpointError, RequestError, Unsupported, WeightError
from poot_executor.weights import WeightKey
from poot_llm.models.llama import LLAMA
from poot_llm.models.weight_map import Expected, bind_weights
from poot_llm.registry import DuplicateFamily, Models, Registry, standard_registry
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)
tiny, reference = fixture.tiny, fixture.reference
writer = tiny.load_fixture("gguf_writer")


# Families


def test_a_third_party_registers_a_family(tmp_path: Path) -> None:
    registry = standard_registry()
    registry.register(replace(LLAMA, name="mine", model_types=("my_llama",), architectures=()))
    assert list(registry.families) == ["llama", "bert", "mine"]
    assert registry.for_model_type("my_llama", tmp_path).name == "mine"
    assert registry.for_architecture("llama", tmp_path) is LLAMA
    assert list(standard_registry().families) == ["llama", "bert"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_types": ("new",), "architectures": ()}, "the name 'llama'"),
        ({"name": "x", "model_types": ("new", "llama"), "architectures": ()}, "'llama'"),
        ({"name": "x", "model_types": ("new",), "architectures": ("llama",)}, "'llama'"),
        ({"name": "x", "model_types": ("new", "new"), "architectures": ()}, "'new'"),
    ],
)
def test_a_duplicate_is_refused_and_changes_nothing(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    registry = standard_registry()
    with pytest.raises(DuplicateFamily) as caught:
        registry.register(replace(LLAMA, **changes))
    assert what in str(caught.value) and caught.value.second == changes.get("name", "llama")
    assert list(registry.families) == ["llama", "bert"]
    with pytest.raises(Unsupported):
        registry.for_model_type("new", tmp_path)


def test_an_empty_registry_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="the known ones are none"):
        Registry().for_architecture("llama", tmp_path)


# GGUF


def test_a_gguf_file_opens(tmp_path: Path) -> None:
    handle = fixture.checkpoint(tmp_path, format="q4_0", layers=2)
    assert (handle.name, handle.family.name) == ("tiny", "llama")
    assert handle.weight_map[WeightKey(1, "gate")] == "blk.1.ffn_gate.weight"
    assert handle.weight_map[WeightKey(None, "head")] == "token_embd.weight"
    assert handle.weights[WeightKey(0, "query")].format.name == "q4_0"
    assert handle.config.interleaved and handle.config.tied_head
    total = sum(handle.store.tensor(name).data.nbytes for name in handle.store.names())
    assert handle.stored_bytes == total
    assert handle.template.source is not None and handle.tokenizer.eos_ids


def altered(
    folder: Path,
    *,
    metadata: Callable[[dict[str, Any]], None] = lambda m: None,
    tensors: Callable[[dict[str, Any]], None] = lambda t: None,
) -> Path:
    """The tiny checkpoint with its metadata and its (name: (shape, format, bytes)) changed."""
    handle = fixture.checkpoint(folder)
    pairs = dict(handle.store.metadata)
    held = {}
    for name in handle.store.names():
        tensor = handle.store.tensor(name)
        held[name] = (tensor.shape, tensor.format.name, tensor.data.tobytes())
    metadata(pairs)
    tensors(held)
    path = folder / "altered.gguf"
    rows = [(name, *rest) for name, rest in held.items()]
    path.write_bytes(writer.gguf_bytes(pairs, rows))
    return path


def test_an_unaltered_copy_opens(tmp_path: Path) -> None:
    assert Models().open(altered(tmp_path)).name == "altered"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"general.architecture": "mamba"}, r"architecture 'mamba' of .*altered.*ones are llama"),
        ({"general.architecture": 3}, "general.architecture is missing or not a string"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.block_count": -1}, "llama.block_count is -1"),
        ({"llama.block_count": True}, "llama.block_count is True"),
        ({"llama.embedding_length": 33}, "embedding_length is 33, which 2 heads do not divide"),
        ({"llama.attention.head_count_kv": 3}, "2 query heads do not share 3 KV heads"),
        ({"llama.rope.dimension_count": 5}, "5 rotary dimensions"),
        ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type is 'yarn'"),
        ({"llama.rope.freq_base": 0.0}, "rope.freq_base is 0.0, not above 0"),
        ({"llama.expert_count": 8}, "expert_count is 8"),
        ({"llama.attention.sliding_window": 64}, "unknown fields.*llama.attention.sliding_window"),
        ({"split.count": 3}, "split.count is 3"),
        ({"llama.attention.value_length": 8}, "value_length is 8, this family supports 16"),
    ],
)
def test_metadata_that_is_refused(pairs: dict[str, Any], message: str, tmp_path: Path) -> None:
    def change(metadata: dict[str, Any]) -> None:
        metadata.update(pairs)
        for name in [name for name, value in pairs.items() if value is None]:
            del metadata[name]

    path = altered(tmp_path, metadata=change)
    with pytest.raises((CheckpointError, Unsupported), match=message) as caught:
        Models().open(path)
    if "heads" not in message and "rotary" not in message:
        assert "altered.gguf" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("blk.0.ffn_up.weight"), r"no tensor 'blk.0.ffn_up.weight' for 0.up"),
        (lambda t: t.update({"blk.7.x": ((4,), "f32", bytes(16))}), "'blk.7.x'"),
        (
            lambda t: t.update({"output_norm.weight": ((4,), "f32", bytes(16))}),
            r"'output_norm.weight' is \[4\], final_norm is \[32\]",
        ),
        (
            lambda t: t.update({"output_norm.weight": ((32,), "q8_0", bytes(34))}),
            "'output_norm.weight' is q8_0, final_norm is dense",
        ),
        (
            lambda t: t.update({"blk.0.attn_k.bias": ((3,), "f32", bytes(12))}),
            r"'blk.0.attn_k.bias' is \[3\], 0.key_bias is \[16\]",
        ),
    ],
)
def test_weights_that_are_refused(change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=message):
        Models().open(altered(tmp_path, tensors=change))


def test_a_format_that_poot_does_not_decode(tmp_path: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["blk.0.attn_q.weight"] = ((4, 256), "q4_k", bytes(4 * 144))

    with pytest.raises(Unsupported, match=r"q4_k.*blk.0.attn_q.weight"):
        Models().open(altered(tmp_path, tensors=change))


def test_rope_factors_and_biases_come_from_the_tensors(tmp_path: Path) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["rope_freqs.weight"] = ((8,), "f32", np.ones(8, "<f4").tobytes())
        tensors["blk.0.attn_q.bias"] = ((32,), "f32", bytes(128))

    handle = Models().open(altered(tmp_path, tensors=change))
    assert handle.config.rope_factors and handle.config.attention_bias == {"query"}
    assert handle.weight_map[WeightKey(None, "rope_factors")] == "rope_freqs.weight"
    assert handle.weight_map[WeightKey(0, "query_bias")] == "blk.0.attn_q.bias"


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="nowhere"):
        Models().open("nowhere")
    (tmp_path / "x.gguf").write_bytes(b"not a model at all")
    with pytest.raises(CheckpointError, match="GGUF"):
        Models().open(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Models().open(tmp_path)


# Directories


def safetensors_directory(folder: Path, config: dict[str, Any], store: Any) -> Path:
    header: dict[str, Any] = {}
    data = b""
    for name in store.names():
        tensor = store.tensor(name)
        end = len(data) + tensor.data.nbytes
        header[name] = {
            "dtype": tensor.format.name.upper(),
            "shape": list(tensor.shape),
            "data_offsets": [len(data), end],
        }
        data += tensor.data.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    tokens = {chr(97 + i): i for i in range(26)} | {"<s>": 26}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": 26, "content": "<s>", "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True,
        },
        "model": {"type": "BPE", "vocab": tokens, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


TINY_JSON = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 53,
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 100.0, "hidden_act": "silu", "torch_dtype": "float32",
    "bos_token_id": 26, "eos_token_id": 26, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
def test_a_directory_answers_as_the_reference_does(format: str, tmp_path: Path, rng: np.random.Generator) -> None:
    config = reference.tiny()
    store = reference.random_store(config, rng, format)
    handle = Models().open(safetensors_directory(tmp_path, TINY_JSON, store))
    assert handle.config == config
    assert handle.weight_map[WeightKey(None, "head")] == "lm_head.weight"
    prompt = [5, 1, 9]
    with fixture.driving(handle) as rig:
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        got = [item.token for item in rig.driver.generate(prompt, params)]
    expected = reference.Reference(config, store)
    assert got[0] == int(expected.logits(prompt)[-1].argmax())
    assert got == expected.greedy(prompt, 6)


def test_a_tied_directory(tmp_path: Path, rng: np.random.Generator) -> None:
    store = reference.random_store(reference.tiny(tied_head=True), rng)
    fields = TINY_JSON | {"tie_word_embeddings": True}
    handle = Models().open(safetensors_directory(tmp_path, fields, store))
    assert handle.weight_map[WeightKey(None, "head")] == "model.embed_tokens.weight"


def test_an_unknown_model_type_is_named(tmp_path: Path, rng: np.random.Generator) -> None:
    store = reference.random_store(reference.tiny(), rng)
    safetensors_directory(tmp_path, TINY_JSON | {"model_type": "gpt_oss"}, store)
    with pytest.raises(Unsupported, match=r"model_type 'gpt_oss' of .*the known ones are bert, llama"):
        Models().open(tmp_path)
    safetensors_directory(tmp_path, TINY_JSON | {"model_type": None}, store)
    with pytest.raises(CheckpointError, match="model_type"):
        Models().open(tmp_path)


def test_old_rotary_buffers_are_left_unread(tmp_path: Path, rng: np.random.Generator) -> None:
    store = reference.random_store(reference.tiny(), rng)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    store.tensors[name] = reference.stored(name, np.ones(4, np.float32), "f32")
    handle = Models().open(safetensors_directory(tmp_path, TINY_JSON, store))
    assert name not in handle.weight_map.values()


# Weight maps


def test_surplus_names_are_counted(rng: np.random.Generator) -> None:
    store = reference.random_store(reference.tiny(), rng)
    for place in range(7):
        store.tensors[f"x{place}"] = reference.stored(f"x{place}", np.ones(4, np.float32), "f32")
    with pytest.raises(WeightError, match=r"'x0', 'x1', 'x2', 'x3', 'x4' and 2 more"):
        bind_weights(LLAMA.expected(reference.tiny()), store, LLAMA.ignored)


def test_a_hostile_layer_count_stops_at_the_first_missing_layer(rng: np.random.Generator) -> None:
    store = reference.random_store(reference.tiny(), rng)
    endless = reference.tiny(layers=(1 << 31) - 1)
    with pytest.raises(WeightError, match=r"model.layers.2.input_layernorm.weight"):
        bind_weights(LLAMA.expected(endless), store)


def test_a_name_that_nobody_stores() -> None:
    store = reference.MemoryStore({})
    with pytest.raises(WeightError, match=r"'w' for 3\.gate"):
        bind_weights([Expected(WeightKey(3, "gate"), "w", (2, 2))], store)

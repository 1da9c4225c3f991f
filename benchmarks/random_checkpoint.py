"""A checkpoint of a model shape with random weights: `python benchmarks/random_checkpoint.py FOLDER --shape 0.5B`.

For what is measured from a file on: the start of a process to its first token (`benchmarks/startup.py FOLDER --device
ptx`). A folder as the hub has it: config.json, model.safetensors in f16, a tokenizer of single bytes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from shapes import SHAPES, RandomStore
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from poot_executor.formats import FORMATS
from poot_executor.weights import StoredTensor
from poot_llm.models.llama_config import LlamaConfig, Naming


def config_json(config: LlamaConfig) -> dict[str, object]:
    """The configuration with the names of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float16",
        "vocab_size": config.vocabulary,
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.epsilon,
        "rope_theta": config.rope_base,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def tokenizer(vocabulary: int) -> Tokenizer:
    """Bytes as tokens, and words that no text has for the rest of the vocabulary, so that any token is text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"word{i}" for i in range(vocabulary - len(letters)))]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


def write(folder: Path, config: LlamaConfig) -> int:
    """Write the folder; gives the bytes of its weights."""
    store = RandomStore(config, FORMATS["f16"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_json(config), indent=1))
    tokenizer(config.vocabulary).save(str(folder / "tokenizer.json"))
    tensors = {name: array(store.tensor(name)) for name in store.names()}
    save_file(tensors, folder / "model.safetensors")
    return sum(each.nbytes for each in tensors.values())


def array(tensor: StoredTensor) -> NDArray[np.generic]:
    """A dense tensor as numpy has it."""
    dtype = tensor.format.dtype
    assert dtype is not None
    return tensor.data.view(dtype.numpy).reshape(tensor.shape)


def main() -> None:
    """Write what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="0.5B", help="(default: 0.5B)")
    args = parser.parse_args()
    config = replace(SHAPES[args.shape], naming=Naming.HUGGING_FACE, interleaved=False)
    print(f"{args.folder}: {args.shape}, {write(args.folder, config):,} bytes of weights")


if __name__ == "__main__":
    main()

"""BERT's configuration, from a config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from poot_executor.errors import CheckpointError
from poot_llm.models.fields import Fields


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Hyperparameters of a BERT. `labels` are the scores that a classifier gives; None where the checkpoint ends in
    hidden states. `tanh` says that the activation is GELU in its tanh approximation.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    ffn: int
    context: int
    types: int
    epsilon: float
    tanh: bool
    labels: int | None

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise CheckpointError(f"bert: {self.heads} heads do not share {self.width} columns evenly")


_ACTIVATIONS: Mapping[str, bool] = MappingProxyType({"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True})
_CLASSES: Mapping[str, bool] = MappingProxyType(
    {"BertModel": False, "BertForMaskedLM": False, "BertForSequenceClassification": True}
)
"""The class that a checkpoint was saved from, and whether a classifier ends it."""

_IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "_name_or_path": "where it was saved from",
        "_num_labels": "said by id2label",
        "attention_probs_dropout_prob": "training alone",
        "bos_token_id": "read with the tokenizer",
        "classifier_dropout": "training alone",
        "dtype": "every tensor says its own",
        "eos_token_id": "read with the tokenizer",
        "gradient_checkpointing": "training alone",
        "hidden_dropout_prob": "training alone",
        "initializer_range": "training alone",
        "label2id": "names of labels",
        "output_past": "another runtime's setting",
        "pad_token_id": "padding is masked, whatever its id",
        "problem_type": "training alone",
        "sbert_ce_default_activation_function": "applied to scores by another runtime; raw ones are given here",
        "sentence_transformers": "another runtime's settings",
        "torch_dtype": "every tensor says its own",
        "transformers_version": "what wrote it",
        "use_cache": "another runtime's setting",
    }
)


def config_from_json(fields: Mapping[str, Any], where: str) -> BertConfig:
    """From config.json. Raises CheckpointError for a field that is bad, missing or unknown."""
    read = Fields(fields, where)
    read.expect("model_type", "bert")
    read.expect("position_embedding_type", "absolute")
    read.expect("is_decoder", False)
    read.expect("add_cross_attention", False)
    read.expect("pruned_heads", {})
    read.expect("quantization_config")
    activation = read.text("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise read.refuse("hidden_act", f"is {activation!r}, bert supports {', '.join(_ACTIVATIONS)}")
    config = BertConfig(
        vocabulary=read.count("vocab_size"),
        width=read.count("hidden_size"),
        layers=read.count("num_hidden_layers"),
        heads=read.count("num_attention_heads"),
        ffn=read.count("intermediate_size"),
        context=read.count("max_position_embeddings"),
        types=read.count("type_vocab_size", 2),
        epsilon=read.number("layer_norm_eps", 1e-12),
        tanh=_ACTIVATIONS[activation],
        labels=_labels(read, fields),
    )
    read.finish(_IGNORED)
    return config


def _labels(read: Fields, fields: Mapping[str, Any]) -> int | None:
    """How many scores the classifier gives: as many as id2label names, 2 where nothing is said."""
    read.expect("architectures", *([name] for name in _CLASSES))
    classes = fields.get("architectures") or ["BertModel"]
    named = read.mapping("id2label")
    count = read.count("num_labels", 2 if named is None else len(fields["id2label"]) or 1)
    return count if _CLASSES[classes[0]] else None

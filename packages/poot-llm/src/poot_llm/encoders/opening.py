"""Opening a checkpoint of an encoder: a directory with config.json, safetensors, tokenizer files, and what sentence
embeddings add to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poot_executor.errors import CheckpointError, Unsupported
from poot_executor.weights import WeightMap, WeightStore
from poot_llm.blocks.weights import Weights
from poot_llm.encoders.pooling import Pooling, pooling_of
from poot_llm.models.bert import bert_ignored, bert_weights
from poot_llm.models.bert_config import BertConfig, config_from_json
from poot_llm.models.weight_map import bind_weights
from poot_llm.strict_json import read_object
from poot_llm.tokenizer import Tokenizer
from poot_llm.weights.safetensors import SafetensorsStore

MODEL_TYPES = ("bert",)
"""What `open_encoder` opens, by config.json's model_type."""


@dataclass(frozen=True, slots=True, eq=False)
class EncoderHandle:
    """An open checkpoint; weights are views of mapped files. `limit` is the most tokens of a text, with those that go
    around it.
    """

    name: str
    path: Path
    config: BertConfig
    pooling: Pooling
    store: WeightStore
    weight_map: WeightMap
    weights: Weights
    tokenizer: Tokenizer

    @property
    def limit(self) -> int:
        """What the checkpoint's files say, within its positions."""
        said = self.pooling.limit
        return self.config.context if said is None else min(said, self.config.context)

    @property
    def scores_pairs(self) -> bool:
        """Whether it is a cross-encoder: it scores pairs of texts, and gives no embeddings."""
        return self.config.labels is not None


def open_encoder(path: str | Path) -> EncoderHandle:
    """Raises CheckpointError (file, field, tensor or offset), Unsupported (a model_type, module or format, by name) or
    WeightError (missing, surplus or mis-shaped, by name).
    """
    folder = Path(path).expanduser()
    fields = read_object(folder / "config.json")
    kind = fields.get("model_type")
    if not isinstance(kind, str):
        raise CheckpointError(f"{folder / 'config.json'}: model_type is missing or not a string")
    if kind not in MODEL_TYPES:
        raise Unsupported(
            f"model_type {kind!r} of {folder}", f"the encoders that poot knows are {', '.join(MODEL_TYPES)}"
        )
    config = config_from_json(fields, str(folder / "config.json"))
    store = SafetensorsStore.open(folder)
    bound = bind_weights(bert_weights(config), store, bert_ignored)
    tokenizer = Tokenizer.from_directory(folder)
    if len(tokenizer.complete(())) < 2:
        raise Unsupported(f"the tokenizer of {folder}", "it puts no tokens around a text, and a BERT needs two")
    return EncoderHandle(
        name=folder.name,
        path=folder,
        config=config,
        pooling=pooling_of(folder),
        store=store,
        weight_map=bound.names,
        weights=bound.stored,
        tokenizer=tokenizer,
    )

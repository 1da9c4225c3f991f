"""Which families poot knows, and opening a checkpoint of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from poot_executor.errors import CheckpointError, PootError, Unsupported
from poot_executor.weights import WeightMap, WeightStore
from poot_llm.blocks.weights import Weights
from poot_llm.chat import ChatTemplate
from poot_llm.models.bert import BERT
from poot_llm.models.family import Config, Family
from poot_llm.models.llama import LLAMA
from poot_llm.models.pooling import DECODERS, PLAIN, Pooling, pooling_of, pooling_of_gguf
from poot_llm.models.weight_map import bind_weights
from poot_llm.pull import resolve
from poot_llm.strict_json import read_object
from poot_llm.tokenizer import Tokenizer
from poot_llm.weights.gguf import GgufFile
from poot_llm.weights.safetensors import SafetensorsStore


class DuplicateFamily(PootError):
    """Two families of one name, or two that claim one key."""

    def __init__(self, what: str, first: str, second: str) -> None:
        super().__init__(f"{what} is registered by family {first}: family {second} is refused")
        self.what = what
        self.first = first
        self.second = second


class Registry:
    """Families by Hugging Face `model_type` and by GGUF `general.architecture`."""

    __slots__ = ("_architectures", "_families", "_model_types")

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._model_types: dict[str, Family] = {}
        self._architectures: dict[str, Family] = {}

    def register(self, family: Family) -> None:
        """Add a family with all of its keys. Raises DuplicateFamily, and changes nothing then."""
        if family.name in self._families:
            raise DuplicateFamily(f"the name {family.name!r}", family.name, family.name)
        for what, keys, table in (
            ("model_type", family.model_types, self._model_types),
            ("architecture", family.architectures, self._architectures),
        ):
            for place, key in enumerate(keys):
                if key in table:
                    raise DuplicateFamily(f"{what} {key!r}", table[key].name, family.name)
                if key in keys[:place]:
                    raise DuplicateFamily(f"{what} {key!r}", family.name, family.name)
        self._families[family.name] = family
        self._model_types.update(dict.fromkeys(family.model_types, family))
        self._architectures.update(dict.fromkeys(family.architectures, family))

    @property
    def families(self) -> Mapping[str, Family]:
        """Every family by name, in the order of registration."""
        return MappingProxyType(self._families)

    def for_model_type(self, key: str, path: Path) -> Family:
        """The family of a config.json. Raises Unsupported naming the path and the known ones."""
        return _found(self._model_types, "model_type", key, path)

    def for_architecture(self, key: str, path: Path) -> Family:
        """The family of a GGUF file. Raises Unsupported naming the path and the known ones."""
        return _found(self._architectures, "architecture", key, path)


def _found(table: Mapping[str, Family], what: str, key: str, path: Path) -> Family:
    if key not in table:
        known = ", ".join(sorted(table)) or "none"
        raise Unsupported(f"{what} {key!r} of {path}", f"the known ones are {known}")
    return table[key]


def standard_registry() -> Registry:
    """A new registry of the families that poot has."""
    registry = Registry()
    registry.register(LLAMA)
    registry.register(BERT)
    return registry


@dataclass(frozen=True, slots=True, eq=False)
class ModelHandle:
    """An open checkpoint. Nothing is read of its weights yet: they are views of mapped files.

    `weight_map` binds roles to the store's keys; `weights` says how each is stored. `template`
    holds no source where the checkpoint has no chat template. `pooling` is how hidden states become a text's embedding.
    """

    name: str
    path: Path
    family: Family
    config: Config
    store: WeightStore
    weight_map: WeightMap
    weights: Weights
    tokenizer: Tokenizer
    template: ChatTemplate
    pooling: Pooling = DECODERS

    @property
    def generates(self) -> bool:
        """Whether it gives next tokens; otherwise it encodes texts alone."""
        return self.family.trace is not None

    @property
    def limit(self) -> int:
        """The most tokens of a text that is encoded, with those that go around it: what the checkpoint's files say,
        within its positions.
        """
        said = self.pooling.limit
        return self.config.context if said is None else min(said, self.config.context)

    @property
    def labels(self) -> int | None:
        """Scores of its classifier; None where it has none."""
        return self.family.labels(self.config)

    @property
    def scores_pairs(self) -> bool:
        """Whether it is a cross-encoder: it scores pairs of texts, and gives no embeddings."""
        return self.labels is not None

    @property
    def stored_bytes(self) -> int:
        """Bytes of the tensors that the model reads, a shared one once."""
        names = set(self.weight_map.values())
        return sum(self.store.tensor(name).data.nbytes for name in names)


@dataclass(frozen=True, slots=True, eq=False)
class EncoderHandle(ModelHandle):
    """An open checkpoint of a model that encodes texts, and generates nothing."""


class Models:
    """Opens checkpoints of the families in a registry."""

    __slots__ = ("_registry",)

    def __init__(self, registry: Registry | None = None) -> None:
        """`registry`: by default poot's own families."""
        self._registry = standard_registry() if registry is None else registry

    def open(self, name_or_path: str | Path) -> ModelHandle:
        """A GGUF file, a directory with config.json, safetensors and tokenizer files, or the name of
        a model that was pulled.

        Raises RequestError for what is neither there nor a known name, CheckpointError (file, field,
        tensor or offset), Unsupported (an architecture or a format, by name, with the known ones) or
        WeightError (missing, surplus or mis-shaped, by name).
        """
        path = resolve(name_or_path)
        return self._open_directory(path) if path.is_dir() else self._open_gguf(path)

    def _open_gguf(self, path: Path) -> ModelHandle:
        file = GgufFile.open(path)
        key = file.metadata.get("general.architecture")
        if not isinstance(key, str):
            raise CheckpointError(f"{path}: general.architecture is missing or not a string")
        family = self._registry.for_architecture(key, path)
        # A family that names an architecture reads its files: `Family` sees to that.
        assert family.from_gguf is not None
        config = family.from_gguf(file.metadata, file.names(), str(path))
        tokenizer = Tokenizer.from_gguf(file)
        template = ChatTemplate.from_gguf(file, tokenizer)
        return _handle(path, family, config, file, tokenizer, template, pooling_of_gguf(file.metadata, key, str(path)))

    def _open_directory(self, path: Path) -> ModelHandle:
        fields = read_object(path / "config.json")
        key = fields.get("model_type")
        if not isinstance(key, str):
            raise CheckpointError(f"{path / 'config.json'}: model_type is missing or not a string")
        family = self._registry.for_model_type(key, path)
        config = family.from_json(fields, str(path / "config.json"))
        store = SafetensorsStore.open(path)
        tokenizer = Tokenizer.from_directory(path)
        template = ChatTemplate.from_directory(path)
        pooling = pooling_of(path, PLAIN if family.trace is None else DECODERS)
        return _handle(path, family, config, store, tokenizer, template, pooling)


def _handle(
    path: Path,
    family: Family,
    config: Config,
    store: WeightStore,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    pooling: Pooling,
) -> ModelHandle:
    if family.token_types is not None and len(tokenizer.complete(())) < 2:
        raise Unsupported(f"the tokenizer of {path}", f"it puts no tokens around a text, and {family.name} needs two")
    bound = bind_weights(family.expected(config), store, family.ignored)
    kind = EncoderHandle if family.trace is None else ModelHandle
    return kind(
        name=path.stem if path.is_file() else path.name,
        path=path,
        family=family,
        config=config,
        store=store,
        weight_map=bound.names,
        weights=bound.stored,
        tokenizer=tokenizer,
        template=template,
        pooling=pooling,
    )

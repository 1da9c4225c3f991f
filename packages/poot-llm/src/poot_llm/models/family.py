"""What a model family is to the rest of poot: its keys, its configuration, its weights, its trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from poot_executor.errors import Unsupported
from poot_executor.graph.traced import Traced
from poot_llm.blocks.step import Step
from poot_llm.blocks.text_pass import TextPass
from poot_llm.blocks.weights import Weights
from poot_llm.models.weight_map import Expected


class Config(Protocol):
    """What every family's configuration says. Families add their own fields."""

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table: token ids are below it."""
        ...

    @property
    def width(self) -> int:
        """Columns of a hidden state."""
        ...

    @property
    def context(self) -> int:
        """Positions that the model was trained for."""
        ...

    @property
    def layers(self) -> int:
        """Layers."""
        ...


@dataclass(frozen=True, slots=True)
class Family:
    """A model family. `model_types` are Hugging Face's, `architectures` GGUF's `general.architecture`. It generates, or
    encodes, or both. Raises Unsupported where it does neither, or names architectures without reading their files.

    - `from_json(config, where)`: the configuration in a config.json.
    - `from_gguf(metadata, names, where)`: that in a GGUF file whose tensors have these names; None where there are no
      architectures.
      Both raise CheckpointError for a field that is missing, bad, or unknown.
    - `expected(config)`: its weights, lazily: a caller may stop at the first that is missing.
    - `ignored(name)`: whether a tensor that no role names may be left unread.
    - `trace(step, config, weights)`: record one step; gives logits f32[rows, vocabulary] of the
      tokens that `step.last` names. None for one that generates nothing.
    - `hidden(run, config, weights)`: record a pass over whole texts; gives hidden states f32[rows, tokens, width],
      those that a head would read. None for one that encodes nothing.
    - `scores(run, config, weights, hidden)`: a classifier's raw scores f32[rows, labels] of them; `labels(config)` is
      their number, None where a checkpoint has no classifier.
    - `token_types(config)`: how many types tell the texts of a pair apart; None where nothing does.
    - `inputs`: the values that a prompt may supply beside its tokens, a row f32[width] for some of its positions: the
      input's name and `width(config)`. The trace finds those of a step in `step.supplied`.
    - `kv(config)`: the shape of what each KV state of the trace holds of one position, a state after the other. None
      for a family that does not say: whoever asks then traces a step and looks.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    from_json: Callable[[Mapping[str, Any], str], Any]
    from_gguf: Callable[[Mapping[str, Any], Collection[str], str], Any] | None
    expected: Callable[[Any], Iterable[Expected]]
    trace: Callable[[Step, Any, Weights], Traced] | None = None
    hidden: Callable[[TextPass, Any, Weights], Traced] | None = None
    scores: Callable[[TextPass, Any, Weights, Traced], Traced] | None = None
    labels: Callable[[Any], int | None] = lambda _: None
    token_types: Callable[[Any], int] | None = None
    ignored: Callable[[str], bool] = lambda _: False
    inputs: Mapping[str, Callable[[Any], int]] = field(default_factory=lambda: MappingProxyType({}))
    kv: Callable[[Any], Iterable[tuple[int, ...]]] | None = None

    def __post_init__(self) -> None:
        if self.trace is None and self.hidden is None:
            raise Unsupported(f"family {self.name}", "it neither generates nor encodes")
        if self.architectures and self.from_gguf is None:
            raise Unsupported(f"family {self.name}", f"it reads no GGUF file of {', '.join(self.architectures)}")

    def logits(self, step: Step, config: Config, weights: Weights) -> Traced:
        """What `trace` gives. Raises Unsupported for a family that generates nothing."""
        if self.trace is None:
            raise Unsupported(f"generation by family {self.name}", "it encodes texts, and gives no next token")
        return self.trace(step, config, weights)

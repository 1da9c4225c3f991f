"""Reading weights by role: projections, embedding rows, vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from poot_executor.dtype import F32, DType
from poot_executor.errors import BindError
from poot_executor.formats import Format
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.functional import embedding, linear, stored_weight
from poot_executor.graph.traced import Traced
from poot_executor.weights import WeightKey
from poot_llm.blocks.step import Step


class Recording(Protocol):
    """A pass that is being recorded: a step, or an encoder's."""

    @property
    def builder(self) -> Builder:
        """Where it is recorded."""
        ...

    @property
    def activations(self) -> DType:
        """What activations are rounded to before a contraction."""
        ...


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """How a weight is stored: what a trace needs to know of it. `shape` is row-major."""

    format: Format
    shape: tuple[int, ...]


Weights = Mapping[WeightKey, StoredWeight]
"""Every weight of a checkpoint by role, as stored."""


def read(step: Recording, weights: Weights, key: WeightKey) -> tuple[Traced, Format]:
    """A weight as stored, with its format. Raises BindError where the checkpoint has no such role."""
    if key not in weights:
        raise BindError(f"the model reads weight {key}, which its weight map does not name")
    stored = weights[key]
    return stored_weight(step.builder, key, stored.format, stored.shape), stored.format


def vector(step: Recording, weights: Weights, key: WeightKey) -> Traced:
    """A dense weight [n] -> f32[n]."""
    return p.cast(read(step, weights, key)[0], F32)


def project(step: Recording, weights: Weights, x: Traced, key: WeightKey, bias: WeightKey | None = None) -> Traced:
    """x[m, k], rounded to the step's activations, times the weight [n, k] transposed, plus the bias
    [n] where it has one -> f32[m, n].
    """
    weight, format = read(step, weights, key)
    added = None if bias is None else vector(step, weights, bias)
    return linear(x, weight, format, bias=added, activations=step.activations)


EMBEDDINGS = "embeddings"
"""The input that supplies embedding rows in place of those of some tokens."""


def embed(step: Step, weights: Weights, key: WeightKey) -> Traced:
    """Rows of the table [vocabulary, n] for the step's tokens -> f32[rows · tokens, n], with those that a prompt
    supplies in their place.
    """
    table, format = read(step, weights, key)
    rows = embedding(table, format, step.tokens)
    if EMBEDDINGS not in step.supplied:
        return rows
    supplied = step.supplied[EMBEDDINGS]
    given = step.builder.broadcast_to(p.reshape(supplied.given, (rows.shape[0], 1)), rows.shape)
    return p.select(given, supplied.rows, rows)

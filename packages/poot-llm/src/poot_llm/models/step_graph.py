"""A whole step of a model as a graph: slots and checks, the family's trace, the sampling suffix."""

from __future__ import annotations

from collections.abc import Iterable

from poot_executor.dtype import F32, DType
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph
from poot_llm.blocks.step import StepShape, begin_step
from poot_llm.blocks.weights import Weights
from poot_llm.models.family import Config, Family
from poot_llm.sampling import Suffix, append_suffix


def trace_step(
    family: Family,
    config: Config,
    shape: StepShape,
    weights: Weights,
    suffix: Suffix,
    activations: DType = F32,
    inputs: Iterable[str] = (),
) -> Graph:
    """The graph of one step shape; `inputs` are those of the family's that it takes. Equal arguments give equal graphs.

    Its slots, states and checks are those of `begin_step` and `append_suffix`, with the KV states
    of the family's layers.
    """
    kind = "_window" if shape.window else ""
    builder = Builder(f"{family.name}_{shape.rows}x{shape.tokens}x{shape.span}{kind}_{suffix.value}")
    widths = {name: family.inputs[name](config) for name in inputs}
    step = begin_step(builder, shape, config.vocabulary, activations, widths)
    append_suffix(step.drawing(), suffix, family.logits(step, config, weights))
    return builder.build()

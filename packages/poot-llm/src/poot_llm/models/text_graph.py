"""A pass over whole texts as a graph: texts in, one row each out."""

from __future__ import annotations

from poot_executor.dtype import F32, I32, DType
from poot_executor.errors import Unsupported
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.traced import Traced
from poot_llm.blocks.step import LAST, TOKEN, first_index
from poot_llm.blocks.text_pass import TextPass, TextShape, visible_tokens
from poot_llm.blocks.weights import Weights
from poot_llm.models.family import Config, Family
from poot_llm.models.pooling import Pooling, pooled

TYPES = SlotKey(SlotKind.INPUT, "token_types")
TEXTS = "texts"
"""The output: a row for each text."""


def trace_texts(
    family: Family,
    config: Config,
    shape: TextShape,
    weights: Weights,
    pooling: Pooling | None,
    activations: DType = F32,
) -> Graph:
    """The graph of one pass; without `pooling`, of a classifier's scores. Equal arguments give equal graphs.

    Slots: TOKEN i32[rows, tokens], padded on the right with any id; LAST i32[rows], the index of a text's last token,
    -1 for a row that is not used; where the family has token types, INPUT "token_types" i32[rows, tokens]. Checks: 0, a
    token id outside the vocabulary; 1, a last index outside [-1, tokens); 2, a type that there is none of. The output
    `texts` is f32[rows, width], f32[rows, labels] of scores, and f32[rows, tokens, width] where every token keeps its
    own; what is beside a text means nothing. Raises Unsupported for a family that gives no hidden states, or no scores.
    """
    if family.hidden is None:
        raise Unsupported(f"hidden states of family {family.name}", "its trace gives logits alone")
    what = "scores" if pooling is None else f"{pooling.pool.name.lower()}{'_unit' if pooling.normalized else ''}"
    builder = Builder(f"{family.name}_texts_{shape.rows}x{shape.tokens}_{what}")
    both = TensorType((shape.rows, shape.tokens), I32)
    last = builder.slot(LAST, TensorType((shape.rows,), I32))
    tokens = _checked(builder.slot(TOKEN, both), config.vocabulary)
    builder.check(first_index((last < -1) | (last >= shape.tokens)))
    types = None
    if family.token_types is not None:
        types = _checked(builder.slot(TYPES, both), family.token_types(config))
    visible = visible_tokens(last, shape)
    run = TextPass(builder, activations, tokens, last, visible, types)
    hidden = family.hidden(run, config, weights)
    if pooling is not None:
        builder.output(TEXTS, pooled(hidden, last, visible, pooling))
    elif family.scores is None:
        raise Unsupported(f"scores of family {family.name}", "it has no classifier")
    else:
        builder.output(TEXTS, family.scores(run, config, weights, hidden))
    return builder.build()


def _checked(ids: Traced, count: int) -> Traced:
    """Ids within their table, after a check that they were."""
    builder = ids.builder
    builder.check(first_index(p.reshape((ids < 0) | (ids >= count), (ids.type.count,))))
    return p.minimum(p.maximum(ids, builder.splat(0, ids.type)), builder.splat(count - 1, ids.type))

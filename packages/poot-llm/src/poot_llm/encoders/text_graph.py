"""A pass of an encoder as a graph: whole texts in, one row each out."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.dtype import F32, I32, DType
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.traced import Traced
from poot_llm.blocks.step import LAST, TOKEN, first_index
from poot_llm.encoders.opening import EncoderHandle
from poot_llm.encoders.pooling import pooled
from poot_llm.models.bert import EncoderPass, bert_hidden, bert_scores

TYPES = SlotKey(SlotKind.INPUT, "token_types")
EMBEDDING = "embedding"
SCORES = "scores"


@dataclass(frozen=True, slots=True, order=True)
class TextShape:
    """Texts of a pass, and the tokens that each may have."""

    rows: int
    tokens: int


def trace_texts(handle: EncoderHandle, shape: TextShape, activations: DType = F32) -> Graph:
    """The graph of one pass. Equal arguments give equal graphs.

    Slots: TOKEN i32[rows, tokens], padded on the right with any id; LAST i32[rows], the index of a text's last token,
    -1 for a row that is not used; INPUT "token_types" i32[rows, tokens]. Checks: 0, a token id outside the vocabulary;
    1, a last index outside [-1, tokens); 2, a type that there is none of. Outputs `embedding` f32[rows, width], or for
    a cross-encoder `scores` f32[rows, labels]; those of a row that is not used mean nothing.
    """
    config = handle.config
    builder = Builder(f"bert_{shape.rows}x{shape.tokens}")
    both = TensorType((shape.rows, shape.tokens), I32)
    last = builder.slot(LAST, TensorType((shape.rows,), I32))
    tokens = _checked(builder.slot(TOKEN, both), config.vocabulary)
    builder.check(first_index((last < -1) | (last >= shape.tokens)))
    types = _checked(builder.slot(TYPES, both), config.types)
    visible = p.iota(builder, both.shape, 1, I32) <= p.reshape(last, (shape.rows, 1))
    run = EncoderPass(builder, activations, tokens, types, visible)
    hidden = bert_hidden(run, config, handle.weights)
    if handle.scores_pairs:
        first = p.slice_(hidden, (0, 0, 0), (shape.rows, 1, config.width))
        scores = bert_scores(run, handle.weights, p.reshape(first, (shape.rows, config.width)))
        builder.output(SCORES, scores)
    else:
        builder.output(EMBEDDING, pooled(hidden, visible, handle.pooling))
    return builder.build()


def _checked(ids: Traced, count: int) -> Traced:
    """Ids within their table, after a check that they were."""
    builder = ids.builder
    builder.check(first_index(p.reshape((ids < 0) | (ids >= count), (ids.type.count,))))
    return p.minimum(p.maximum(ids, builder.splat(0, ids.type)), builder.splat(count - 1, ids.type))

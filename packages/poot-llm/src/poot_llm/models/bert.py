"""BERT: post-norm attention over the whole text, learned positions. Source: Devlin et al. 2019. MiniLM and most small
embedding models and cross-encoders are of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from poot_executor.dtype import F32, I32
from poot_executor.graph import primitives as p
from poot_executor.graph.attention import attention
from poot_executor.graph.functional import embedding, gelu, gelu_tanh, layer_norm
from poot_executor.graph.traced import Traced
from poot_executor.weights import WeightKey
from poot_llm.blocks.text_pass import TextPass
from poot_llm.blocks.weights import Weights, project, read, vector
from poot_llm.models.bert_config import BertConfig, config_from_json
from poot_llm.models.family import Family
from poot_llm.models.weight_map import Expected


def _hidden(run: TextPass, config: BertConfig, weights: Weights) -> Traced:
    """Hidden states f32[rows, tokens, width]; what stands beside a text means nothing."""
    rows, tokens = run.tokens.shape
    count, width = rows * tokens, config.width
    place = p.reshape(p.iota(run.builder, (rows, tokens), 1, I32), (count,))
    assert run.types is not None
    x = _rows(run, weights, "word", p.reshape(run.tokens, (count,)))
    x = x + _rows(run, weights, "type", p.reshape(run.types, (count,))) + _rows(run, weights, "position", place)
    x = _norm(run, config, weights, None, "embedding_norm", x)
    mask = run.builder.broadcast_to(p.reshape(run.visible, (rows, 1, tokens)), (rows, tokens, tokens))
    heads = (rows, tokens, config.heads, width // config.heads)
    for layer in range(config.layers):
        q, k, v = (p.reshape(_linear(run, weights, layer, role, x), heads) for role in ("query", "key", "value"))
        mixed = attention(q, k, v, mask, heads[-1] ** -0.5, visible=run.visible, activations=run.activations)
        mixed = _linear(run, weights, layer, "attention_output", p.reshape(mixed, (count, width)))
        x = _norm(run, config, weights, layer, "attention_norm", x + mixed)
        inner = _linear(run, weights, layer, "up", x)
        inner = gelu_tanh(inner) if config.tanh else gelu(inner)
        x = _norm(run, config, weights, layer, "mlp_norm", x + _linear(run, weights, layer, "down", inner))
    return p.reshape(x, (rows, tokens, width))


def _scores(run: TextPass, config: BertConfig, weights: Weights, hidden: Traced) -> Traced:
    """A classifier's raw scores f32[rows, labels] of the first token's hidden state."""
    rows, _, width = hidden.shape
    first = p.reshape(p.slice_(hidden, (0, 0, 0), (rows, 1, width)), (rows, width))
    return _linear(run, weights, None, "classifier", p.tanh(_linear(run, weights, None, "pooler", first)))


def _rows(run: TextPass, weights: Weights, role: str, index: Traced) -> Traced:
    table, format = read(run, weights, WeightKey(None, f"{role}_embedding"))
    return embedding(table, format, index)


def _linear(run: TextPass, weights: Weights, layer: int | None, role: str, x: Traced) -> Traced:
    return project(run, weights, x, WeightKey(layer, role), WeightKey(layer, f"{role}_bias"))


def _norm(run: TextPass, config: BertConfig, weights: Weights, layer: int | None, role: str, x: Traced) -> Traced:
    weight, bias = (vector(run, weights, WeightKey(layer, name)) for name in (role, f"{role}_bias"))
    return layer_norm(p.cast(x, F32), weight, bias, config.epsilon)


# The weights


def _expected(config: BertConfig) -> Iterator[Expected]:
    """What is read of a checkpoint. One with a classifier names the rest with a prefix."""
    width, ffn = config.width, config.ffn
    prefix = "" if config.labels is None else "bert."
    tables = {"word": config.vocabulary, "position": config.context, "type": config.types}
    for role, count in tables.items():
        name = "token_type" if role == "type" else role
        table = f"{prefix}embeddings.{name}_embeddings.weight"
        yield Expected(WeightKey(None, f"{role}_embedding"), table, (count, width))
    yield from _pair(None, "embedding_norm", f"{prefix}embeddings.LayerNorm", (width,))
    for layer in range(config.layers):
        within = f"{prefix}encoder.layer.{layer}"
        for role in ("query", "key", "value"):
            yield from _pair(layer, role, f"{within}.attention.self.{role}", (width, width))
        yield from _pair(layer, "attention_output", f"{within}.attention.output.dense", (width, width))
        yield from _pair(layer, "attention_norm", f"{within}.attention.output.LayerNorm", (width,))
        yield from _pair(layer, "up", f"{within}.intermediate.dense", (ffn, width))
        yield from _pair(layer, "down", f"{within}.output.dense", (width, ffn))
        yield from _pair(layer, "mlp_norm", f"{within}.output.LayerNorm", (width,))
    if config.labels is not None:
        yield from _pair(None, "pooler", f"{prefix}pooler.dense", (width, width))
        yield from _pair(None, "classifier", "classifier", (config.labels, width))


def _pair(layer: int | None, role: str, name: str, shape: tuple[int, ...]) -> Iterator[Expected]:
    yield Expected(WeightKey(layer, role), f"{name}.weight", shape)
    yield Expected(WeightKey(layer, f"{role}_bias"), f"{name}.bias", shape[:1])


def _ignored(name: str) -> bool:
    """Tensors that are not read: positions saved as numbers, and heads of a pre-training."""
    return name.endswith("embeddings.position_ids") or name.startswith(("pooler.", "cls."))


BERT = Family(
    name="bert",
    model_types=("bert",),
    architectures=(),
    from_json=config_from_json,
    from_gguf=None,
    expected=_expected,
    hidden=_hidden,
    scores=_scores,
    labels=lambda config: config.labels,
    token_types=lambda config: config.types,
    ignored=_ignored,
)

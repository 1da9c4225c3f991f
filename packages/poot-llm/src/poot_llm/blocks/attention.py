"""Attention over KV states, contiguous or paged, and the rotary tables that every layer of a step shares."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import StateKey
from poot_executor.graph.traced import Traced
from poot_llm.blocks.step import Step


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines f32[rows, tokens, half] of a step's positions, and which columns pair."""

    cos: Traced
    sin: Traced
    interleaved: bool

    def turn(self, x: Traced) -> Traced:
        """Rotate x f32[rows, tokens, heads, head_dim]."""
        return f.rope(x, self.cos, self.sin, interleaved=self.interleaved)


def rotary(step: Step, frequencies: Traced, interleaved: bool) -> Rotary:
    """The tables of a step for inverse frequencies f32[half]."""
    cos, sin = f.rotary_table(step.position, step.shape.tokens, frequencies)
    return Rotary(cos, sin, interleaved)


def cached_attention(step: Step, layer: int, q: Traced, k: Traced, v: Traced, scale: float) -> Traced:
    """Write the step's K and V rows into the layer's states, then attend over what each row has.

    q f32[rows, tokens, heads, d], k and v f32[rows, tokens, kv_heads, d] -> f32[rows · tokens,
    heads · d]. States "k" and "v" are [positions, kv_heads, d] in the step's activations. Contiguous, position n of row
    r lies at r · capacity + n; paged, where the step's slots say. A pass over whole texts has no states: it attends
    over its own K and V, rounded as states would be.
    """
    keys, values = (_remember(step, layer, role, x) for role, x in (("k", k), ("v", v)))
    out = f.attention(q, keys, values, step.mask, scale, visible=step.visible, activations=step.activations)
    return p.reshape(out, (step.count, out.shape[2] * out.shape[3]))


def _remember(step: Step, layer: int, role: str, x: Traced) -> Traced:
    """The state after this step's rows of x are in it, as the step sees it -> [rows, span, ...]."""
    if step.places is None:
        return p.cast(x, step.activations)
    shape, per_position = step.shape, x.shape[2:]
    key = StateKey(layer, role)
    kind = TensorType((shape.positions, *per_position), step.activations)
    before = step.builder.state(key, kind)
    fresh = p.cast(p.reshape(x, (step.count, *per_position)), step.activations)
    after = p.scatter_update(before, step.places, fresh)
    step.builder.next_state(key, after)
    if step.held is not None:
        return p.gather(after, step.held)
    held = p.reshape(after, (shape.rows, shape.capacity, *per_position))
    if shape.span == shape.capacity:
        return held
    zeros = (0,) * len(held.shape)
    return p.slice_(held, zeros, (shape.rows, shape.span, *per_position))

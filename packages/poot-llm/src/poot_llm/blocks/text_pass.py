"""A pass over whole texts as a tracer sees it: nothing is kept of it, and all of a text is there at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from poot_executor.dtype import I32, DType
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.functional import causal_mask
from poot_executor.graph.traced import Traced
from poot_llm.blocks.step import Step, StepShape


@dataclass(frozen=True, slots=True, order=True)
class TextShape:
    """Texts of a pass, and the tokens that each may have."""

    rows: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.rows} texts x {self.tokens} tokens"


@dataclass(frozen=True, slots=True)
class TextPass:
    """A pass that is being recorded.

    - `tokens` i32[rows, tokens]: ids, every one inside the vocabulary; `last` i32[rows]: the index of a text's last
      token, -1 for a row that is not used; `visible` bool[rows, tokens]: the positions that hold a token.
    - `types` i32[rows, tokens]: which text of a pair a token is of, every one inside its table; None where the family
      tells none apart.
    - `activations`: what activations are rounded to before a contraction.
    """

    builder: Builder
    activations: DType
    tokens: Traced
    last: Traced
    visible: Traced
    types: Traced | None = None
    shape: TextShape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", TextShape(*self.tokens.shape))

    def step(self) -> Step:
        """The pass as a step of a decoder from position 0 on, which sees its own tokens and keeps no K and V."""
        rows, tokens = self.shape.rows, self.shape.tokens
        zero = self.builder.splat(0, self.last.type)
        return Step(
            builder=self.builder,
            shape=StepShape(rows, tokens, tokens, tokens),
            activations=self.activations,
            tokens=p.reshape(self.tokens, (rows * tokens,)),
            position=zero,
            last=self.last,
            places=None,
            held=None,
            mask=causal_mask(zero, self.last, tokens, tokens),
            visible=self.visible,
            supplied=MappingProxyType({}),
        )


def visible_tokens(last: Traced, shape: TextShape) -> Traced:
    """bool[rows, tokens]: whether a position is at most its row's last i32[rows]."""
    place = p.iota(last.builder, (shape.rows, shape.tokens), 1, I32)
    return place <= p.reshape(last, (shape.rows, 1))

"""Rotary frequencies: base, and the two ways of stretching them that poot knows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from poot_llm.models.fields import Fields


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every frequency divided by `factor`. Source: Chen et al. 2023, position interpolation."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, those between blended.

    A frequency is high where its wavelength is below original_context / high_factor, and low where
    it is above original_context / low_factor. Source: Meta's llama 3.1.
    """

    factor: float
    low_factor: float
    high_factor: float
    original_context: int


RopeScaling = LinearScaling | Llama3Scaling


def inverse_frequencies(base: float, dimensions: int, scaling: RopeScaling | None) -> NDArray[np.float32]:
    """base^(-2i / dimensions) for i below half, scaled, in radians a position -> f32[half].

    Computed in float64 and rounded once.
    """
    half = dimensions // 2
    frequencies = np.float64(base) ** (-np.arange(half, dtype=np.float64) / half)
    if isinstance(scaling, LinearScaling):
        frequencies = frequencies / scaling.factor
    elif isinstance(scaling, Llama3Scaling):
        turns = scaling.original_context * frequencies / (2 * math.pi)
        spread = scaling.high_factor - scaling.low_factor
        kept = np.clip((turns - scaling.low_factor) / spread, 0, 1)
        frequencies = frequencies * (kept + (1 - kept) / scaling.factor)
    return frequencies.astype(np.float32)


def rope_scaling_from_json(read: Fields, context: int) -> tuple[float, RopeScaling | None]:
    """The base and the scaling that a config.json says, as `rope_theta` and `rope_scaling` or both
    in `rope_parameters`. Raises CheckpointError for a type that poot does not know, by name.
    """
    nested = read.mapping("rope_parameters")
    old = read.mapping("rope_scaling")
    if nested is not None and old is not None:
        raise read.refuse("rope_scaling", "is there beside rope_parameters")
    base = read.number("rope_theta", 10000.0)
    scaling = nested if nested is not None else old
    if scaling is None:
        return base, None
    if nested is not None:
        base = nested.number("rope_theta", base)
    else:
        scaling.expect("rope_theta", base)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    found = _scaling(scaling, kind, context)
    scaling.finish({})
    return base, found


def _scaling(fields: Fields, kind: str, context: int) -> RopeScaling | None:
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(fields.number("factor"))
    if kind == "llama3":
        scaling = Llama3Scaling(
            fields.number("factor"),
            fields.number("low_freq_factor"),
            fields.number("high_freq_factor"),
            fields.count("original_max_position_embeddings", context),
        )
        if scaling.high_factor <= scaling.low_factor:
            raise fields.refuse("high_freq_factor", "is not above low_freq_factor")
        return scaling
    raise fields.refuse("rope_type", f"is {kind!r}, poot knows default, linear and llama3")


def rope_scaling_from_gguf(read: Fields, architecture: str) -> RopeScaling | None:
    """The scaling that `<architecture>.rope.scaling.*` says. Llama 3's lies in a tensor instead.
    A factor without a type is linear.

    Raises CheckpointError for a type that poot does not know, by name.
    """
    prefix = f"{architecture}.rope.scaling"
    kind = read.text(f"{prefix}.type", "linear")
    # Said of the file, and used by no formula of the types below.
    read.expect(f"{prefix}.finetuned", True, False)
    if read.has(f"{prefix}.original_context_length"):
        read.count(f"{prefix}.original_context_length")
    factor = read.number(f"{prefix}.factor", 1.0)
    old = f"{architecture}.rope.scale_linear"
    if read.has(old):
        kind, factor = "linear", read.number(old)
    if kind == "none":
        return None
    if kind == "linear":
        return None if factor == 1.0 else LinearScaling(factor)
    raise read.refuse(f"{prefix}.type", f"is {kind!r}, poot knows none and linear")

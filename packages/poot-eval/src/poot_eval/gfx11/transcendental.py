"""The units that approximate: reciprocals, roots, exponentials, logarithms, sines.

The hardware promises about one unit in the last place. Here each result is the real value rounded
once, so what follows from it is one of the results that are allowed, and no other is tried. As in
hardware the float32 units take denormals for zeros and give none, whatever the mode says; sines and
cosines take revolutions and refuse magnitudes past 256 (by giving 0, or 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poot_eval.gfx11.rules import Rule, flush, rule

Array = NDArray[Any]


def _unit(function: Callable[[Array], Array], dtype: str) -> Rule:
    def compute(x: Array) -> Array:
        if dtype == "f32":
            return flush(function(flush(x).astype(np.float64)).astype(np.float32))
        return function(x.astype(np.float64)).astype(x.dtype)

    return rule(f"{dtype} {dtype}", compute)


def _sine(x: Array) -> Array:
    return np.where(np.abs(x) > 256, np.where(np.isfinite(x), 0.0, np.nan), np.sin(2 * np.pi * (x - np.rint(x))))


def _cosine(x: Array) -> Array:
    return np.where(np.abs(x) > 256, np.where(np.isfinite(x), 1.0, np.nan), np.cos(2 * np.pi * (x - np.rint(x))))


def _reciprocal_root(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


TRANSCENDENTALS: dict[str, Rule] = {
    **{
        f"v_{name}_{dtype}": _unit(function, dtype)
        for dtype in ("f32", "f16")
        for name, function in (
            ("rcp", np.reciprocal), ("rsq", _reciprocal_root), ("sqrt", np.sqrt), ("exp", np.exp2), ("log", np.log2),
            ("sin", _sine), ("cos", _cosine),
        )
    },
    "v_rcp_iflag_f32": _unit(np.reciprocal, "f32"),
    "v_rcp_f64": rule("f64 f64", np.reciprocal), "v_rsq_f64": rule("f64 f64", _reciprocal_root),
    "v_sqrt_f64": rule("f64 f64", np.sqrt),
}  # fmt: skip
"""Rules by mnemonic."""

"""Gumbel noise on scores, which makes the greatest of them a draw."""

from __future__ import annotations

from poot_executor.kernel.handle import Handle
from poot_executor.kernel.lang import device, f32, log, select, u32
from poot_executor.kernels.scores import LOWEST
from poot_executor.kernels.threefry import threefry


@device
def gumbel(bits: Handle) -> Handle:
    """-log(-log(u)) for u = ((bits >> 9) + 0.5) · 2^-23."""
    u = (f32(bits >> 9) + 0.5) * (2.0**-23)
    return -log(-log(u))


@device
def perturbed(score: Handle, noise: Handle, key0: Handle, key1: Handle, at: Handle, id: Handle) -> Handle:
    """The score with its noise; NaN counts as -inf."""
    value = score
    if noise != 0.0:
        value = score + noise * gumbel(threefry(key0, key1, at, u32(id)))
        value = select(value == value, value, LOWEST)
    return value

"""Names of features among the caps that the emitter asks for, besides those of the kernel operation table."""

from __future__ import annotations

PACK_HALF = "pack_half"
"""PackHalf2x16 rounds to nearest even, overflows to infinity and keeps denormals and NaN."""

UNPACK_HALF = "unpack_half"
"""UnpackHalf2x16 is exact, denormals, infinities and NaN included."""

DENORM_PRESERVE = "denorm_preserve"
INF_NAN_PRESERVE = "inf_nan_preserve"
ROUNDING_RTE = "rounding_rte"
"""Execution modes of VK_KHR_shader_float_controls for f32."""

UNBOUNDED_LOOPS = "unbounded_loops"
"""Loops run for as long as they are told to. Mesa's llvmpipe ends those of a thread after `LOOP_LIMIT` rounds,
silently.
"""

LOOP_LIMIT = 65_535
"""Rounds of all loops of one thread together, nested ones multiplied (LP_MAX_TGSI_LOOP_ITERATIONS in Mesa's
gallivm).
"""

"""Floats that are one for a wave: gfx1151 computes them in scalar registers, gfx1100 in vector ones. Equal bits."""

from __future__ import annotations

import numpy as np
import pytest

TEXT = """
KERNEL(32) uniform(const float* x, const int* k, float* y, int* z) {
  #pragma clang fp contract(off)
  float a = x[GID * 2], b = x[GID * 2 + 1]; int n = k[GID];
  float s = a + b, d = a - b, p = a * b, f = __builtin_fmaf(a, b, s), r = __builtin_rintf(p), w = (float)n;
  float most = __builtin_fmaxf(s, p), least = __builtin_fminf(d, f), c = __builtin_ceilf(f), t = __builtin_truncf(d);
  float chosen = s < p ? f + w : d * w; int whole = (int)(r + t);
  float total = ((most - least) + (c + chosen)) * (float)(f16)a;
  if (total >= 4.0f) total -= 4.0f;
  for (int i = 0; i < (whole & 3); i++) total = total * 0.5f + w;
  if (TID == 0) { y[GID] = total; z[GID] = whole; }
}
"""
GROUPS = 200


@pytest.mark.parametrize("architecture", ["gfx1100", "gfx1151"])
def test_uniform_floats(hip, rng, architecture):
    kernels = hip(TEXT, architecture=architecture)
    code = [instruction.mnemonic for instruction in kernels.program.code("uniform").instructions.values()]
    assert any(name.startswith("s_") and "f32" in name for name in code) is (architecture == "gfx1151")
    x, k = rng.standard_normal((GROUPS, 2)).astype(np.float32) * 9, rng.integers(-99, 99, GROUPS, np.int32)
    y, z = np.zeros(GROUPS, np.float32), np.zeros(GROUPS, np.int32)
    kernels.run("uniform", [x, k, y, z], groups=(GROUPS, 1, 1))
    a, b, w = x[:, 0].copy(), x[:, 1].copy(), k.astype(np.float32)
    s, d, p = a + b, a - b, a * b
    # The product is exact in float64; so is, at these magnitudes, what is added to it up to far below a unit.
    f = (a.astype(np.float64) * b + s).astype(np.float32)
    whole = np.trunc(np.rint(p) + np.trunc(d)).astype(np.int32)
    chosen = np.where(s < p, f + w, d * w)
    total = (np.maximum(s, p) - np.minimum(d, f) + (np.ceil(f) + chosen)) * a.astype(np.float16).astype(np.float32)
    total = np.where(total >= 4, total - np.float32(4), total)
    for i in range(3):
        total = np.where(i < (whole & 3), total * np.float32(0.5) + w, total)
    np.testing.assert_array_equal(z, whole)
    np.testing.assert_array_equal(y, total)

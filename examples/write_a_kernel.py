"""Write a kernel in poot's kernel language, read its IR before and after the passes, and run it without a device.

The kernel scales each row of x by the reciprocal of its root mean square (RMS norm): one group of threads a row.

    python examples/write_a_kernel.py
"""

from __future__ import annotations

import numpy as np

from poot_eval.kernel_ir import run_kernel
from poot_executor.kernel import Handle, show
from poot_executor.kernel.lang import (
    In,
    Out,
    device,
    f32,
    fma,
    group_id,
    group_size,
    group_sum,
    kernel,
    loop,
    rsqrt,
    thread_id,
)
from poot_executor.kernel.passes import optimize


@device
def sum_of_squares(x: In[f32], row: Handle, columns: int) -> Handle:
    """Σ x² over a row: each thread takes every group_size-th column, then the group adds up."""
    total = 0.0
    for column in loop(thread_id(), columns, group_size(), unroll=2):
        value = x[row * columns + column]
        total = fma(value, value, total)
    return group_sum(total)


@kernel
def rms_norm(x: In[f32], weight: In[f32], y: Out[f32], *, columns: int, epsilon: float = 1e-5) -> None:
    """y[row, column] = x[row, column] · weight[column] / √(mean of x[row]² + epsilon)."""
    row = group_id()
    scale = rsqrt(sum_of_squares(x, row, columns) / columns + epsilon)
    for column in range(thread_id(), columns, group_size()):
        y[row * columns + column] = x[row * columns + column] * scale * weight[column]


def main() -> None:
    """Specialize, print, run and compare."""
    rows, columns = 5, 96
    written = rms_norm.specialize(group_size=32, columns=columns)
    print("As written, with source names:\n")
    print(show(written, hints=True))
    optimized = optimize(written, subgroup=True, subgroup_width=8)
    print("As an emitter gets it, for a device with subgroups of 8:\n")
    print(show(optimized, hints=True))

    seed = int(np.random.default_rng().integers(1 << 31))
    rng = np.random.default_rng(seed)
    x, weight = (rng.standard_normal(n).astype(np.float32) for n in (rows * columns, columns))
    y = np.full_like(x, np.nan)
    run_kernel(optimized, [x, weight, y], (rows, 1, 1), subgroup_width=8)

    wide = x.astype(np.float64).reshape(rows, columns)
    mean = (wide**2).mean(axis=1, keepdims=True)
    want = wide / np.sqrt(mean + 1e-5) * weight
    # Two roundings a product, columns + 2 in the sum, whose relative error the root halves; 2⁻²⁴ each.
    bound = np.abs(want) * 2.0**-24 * (columns / 2 + 8)
    error = np.abs(y.reshape(rows, columns) - want)
    if not (error <= bound).all():
        raise SystemExit(f"seed {seed}: the kernel is off by {(error / bound).max():.1f} times the bound")
    print(f"seed {seed}: largest error {error.max():.2e}, at most {(error / bound).max():.2f} of the bound")


if __name__ == "__main__":
    main()

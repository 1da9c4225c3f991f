"""Every region kind × weight format × row count × awkward shape, and which region each became."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pytest

from poot_eval.conformance.inputs import Recorder, Rng, floats, integers
from poot_eval.conformance.matching import Match, assert_device_matches
from poot_executor.compile.program import CopyCommand
from poot_executor.compile.target import Granularity
from poot_executor.device import Device
from poot_executor.dtype import BF16, F16, F32, I32, U32, DType
from poot_executor.formats import FORMATS, Format
from poot_executor.graph import functional as f
from poot_executor.graph import primitives as p
from poot_executor.graph.traced import Traced

ROWS = (1, 2, 3, 7, 8, 17, 33)
"""Row counts of a contraction: matvec, multi-row matvec, a full tile, and past one."""

WIDTHS = (7, 64, 100, 577)
"""Columns of a row reduction."""


CONTRACTION = "contraction|projection"
"""A contraction with stored weights: alone, or with others of the same input."""


def assert_regions(device: Device, match: Match, expected: Sequence[str]) -> None:
    """The regions in order, on a device that poot plans for; "a|b" is either."""
    if device.target.caps.granularity is Granularity.KERNEL:
        fits = len(match.regions) == len(expected)
        fits = fits and all(got in names.split("|") for got, names in zip(match.regions, expected, strict=True))
        assert fits, f"{match.regions} are not {list(expected)}\n{match.program.explain()}"


def shapes(format: Format) -> tuple[tuple[int, int], ...]:
    """(rows, columns) of weights: whole blocks, and for dense formats any depth at all."""
    return ((2, 32), (67, 96), (130, 160)) if format.is_packed else ((67, 96), (5, 2), (33, 67), (3, 577))


class PointwiseRegions:
    """Elementwise work fused into one kernel."""

    def test_a_chain_is_one_kernel(self, device: Device, rng: Rng) -> None:
        """Arithmetic, comparison, selection and a broadcast row."""
        g = Recorder("pointwise", rng)
        x, y, row = g.floats(5, 67), g.floats(5, 67), g.floats(67)
        z = f.silu(x) * y + row
        g.output(p.select(z > 0.5, z, p.exp(-(z * z))))
        assert_regions(device, assert_device_matches(device, g.builder.build(), g.given()), ["pointwise"])

    @pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
    def test_rounding_between_is_kept(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Casts that the graph states round where they stand."""
        g = Recorder("rounding", rng)
        x = p.cast(g.floats(3, 67), dtype)
        g.output(p.cast(x * x, F32) + 1.0)
        g.output(p.cast(p.cast(x, F32) * 1.7, dtype))
        assert_device_matches(device, g.builder.build(), g.given())


_ROWS: Mapping[str, Callable[[Recorder, int, int], Traced]] = MappingProxyType(
    {
        "rms_norm": lambda g, rows, width: f.rms_norm(g.floats(rows, width), g.floats(width), 1e-5),
        "layer_norm": lambda g, rows, width: f.layer_norm(
            g.floats(rows, width), g.floats(width), g.floats(width), 1e-5
        ),
        "softmax": lambda g, rows, width: f.softmax(g.floats(rows, width, low=-3, high=5)),
    }
)


class RowRegions:
    """Norms and softmax, a group of threads a row."""

    @pytest.mark.parametrize("kind", list(_ROWS))
    def test_row_reduction(self, device: Device, rng: Rng, kind: str) -> None:
        """One row and several, of each width."""
        g = Recorder(kind, rng)
        for width in WIDTHS:
            for rows in (1, 5):
                g.output(_ROWS[kind](g, rows, width))
        match = assert_device_matches(device, g.builder.build(), g.given())
        assert_regions(device, match, ["row_reduction"] * (2 * len(WIDTHS)))

    def test_rows_of_one_element(self, device: Device, rng: Rng) -> None:
        """Nothing is left to reduce, whatever region that makes."""
        g = Recorder("one", rng)
        for made in _ROWS.values():
            g.output(made(g, 5, 1))
        assert_device_matches(device, g.builder.build(), g.given())

    def test_a_norm_with_its_residual(self, device: Device, rng: Rng) -> None:
        """The sum before a norm, which is an output too."""
        g = Recorder("residual", rng)
        x = g.floats(3, 96) + g.floats(3, 96)
        g.output(x)
        g.output(f.rms_norm(x, g.floats(96), 1e-6))
        match = assert_device_matches(device, g.builder.build(), g.given())
        assert_regions(device, match, ["pointwise", "row_reduction"])


class ContractionRegions:
    """Contractions with weights in every format."""

    @pytest.mark.parametrize("rows", ROWS)
    @pytest.mark.parametrize("name", list(FORMATS))
    def test_contraction(self, device: Device, rng: Rng, name: str, rows: int) -> None:
        """Each weight shape for one number of rows; the last with an epilogue."""
        format = FORMATS[name]
        g = Recorder(f"contraction_{name}_{rows}", rng)
        for n, k in shapes(format):
            g.output(f.linear(g.floats(rows, k), g.weight(format, n, k), format))
        x = f.linear(g.floats(rows, 64), g.weight(format, 67, 64), format, bias=g.floats(67))
        g.output(x * 0.5 + g.floats(rows, 67))
        match = assert_device_matches(device, g.builder.build(), g.given())
        # A dense depth that is not whole blocks may take the kernel that reads element by element.
        expected = [CONTRACTION + ("" if k % 32 == 0 else "|batched_contraction") for _, k in shapes(format)]
        assert_regions(device, match, [*expected, CONTRACTION])

    @pytest.mark.parametrize("name", list(FORMATS))
    def test_a_weight_of_one_row(self, device: Device, rng: Rng, name: str) -> None:
        """Its transpose is a reshape, whatever region that makes it."""
        g = Recorder("one", rng)
        for rows in (1, 3):
            g.output(f.linear(g.floats(rows, 32), g.weight(FORMATS[name], 1, 32), FORMATS[name]))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("activations", [F16, BF16], ids=str)
    def test_narrow_activations(self, device: Device, rng: Rng, activations: DType) -> None:
        """Activations that the graph rounds before they are contracted."""
        g = Recorder("narrow", rng)
        for name in ("f32", "bf16", "q4_1"):
            for rows in (1, 9):
                weight = g.weight(FORMATS[name], 35, 64)
                g.output(f.linear(g.floats(rows, 64), weight, FORMATS[name], activations=activations))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("name", ["f32", "f16", "q4_1", "q8_0"])
    def test_weights_of_one_input(self, device: Device, rng: Rng, name: str) -> None:
        """A norm, then gate and up of one input, the activation over both."""
        format = FORMATS[name]
        g = Recorder("gated", rng)
        for rows in (1, 5):
            normed = f.rms_norm(g.floats(rows, 96), g.floats(96), 1e-5)
            gate, up = (f.linear(normed, g.weight(format, 70, 96), format) for _ in range(2))
            g.output(f.swiglu(gate, up))
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("names", [("f16", "q5_0"), ("q4_1", "q8_0"), ("f32", "bf16", "q4_0")], ids="-".join)
    def test_weights_of_one_input_in_several_formats(self, device: Device, rng: Rng, names: tuple[str, ...]) -> None:
        """Of equal shape and of different ones; checkpoints mix formats within a layer."""
        g = Recorder("mixed", rng)
        for rows in (1, 5):
            x = g.floats(rows, 64)
            for n in (20, 33):
                for name in names:
                    g.output(f.linear(x, g.weight(FORMATS[name], n, 64), FORMATS[name]))
        assert_device_matches(device, g.builder.build(), g.given())


class IndexedRegions:
    """Gathers from stored weights, writes into state, selections and draws."""

    @pytest.mark.parametrize("name", list(FORMATS))
    def test_gather_of_stored_rows(self, device: Device, rng: Rng, name: str) -> None:
        """Rows of a table by token, decoded as they are read, exactly."""
        format = FORMATS[name]
        g = Recorder("gather", rng)
        tables = ((1, 32, (1,)), (37, 96, (4, 5)), (70, 64, (33,)))
        for n, k, tokens in tables:
            g.output(f.embedding(g.weight(format, n, k), format, g.indices(tokens, n)))
        match = assert_device_matches(device, g.builder.build(), g.given())
        assert_regions(device, match, ["gather"] * len(tables))
        assert not any(match.bounds.output(name).any() for name in match.oracle.outputs)

    @pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
    def test_state_is_updated_in_place(self, device: Device, rng: Rng, dtype: DType) -> None:
        """Rows of a pool replaced, others kept, dropped ones written nowhere; read before and
        after."""
        g = Recorder("pool", rng)
        positions, heads, width, count = 23, 2, 6, 9
        index = rng.permutation(positions)[:count].astype(np.int32)
        index[[1, 4]] = -1
        key, pool = g.state("pool", floats(rng, (positions, heads, width), dtype), dtype)
        rows = p.cast(g.floats(count, heads, width), dtype)
        after = p.scatter_update(pool, g.slot(index, I32), rows)
        g.builder.next_state(key, after)
        g.output(p.cast(p.gather(after, g.indices((5,), positions)), F32))
        match = assert_device_matches(device, g.builder.build(), g.given())
        assert not any(isinstance(c, CopyCommand) and c.target.key == key for c in match.program.commands)
        if device.target.caps.granularity is Granularity.KERNEL:
            assert "scatter" in match.regions

    def test_a_state_may_be_replaced_whole(self, device: Device, rng: Rng) -> None:
        """A recurrent state, whose old value is read everywhere first; and one that nothing
        changes."""
        g = Recorder("recurrent", rng)
        key, state = g.state("hidden", floats(rng, (3, 32), F32), F32)
        fixed, table = g.state("fixed", floats(rng, (7,), F32), F32)
        g.builder.next_state(key, p.tanh(p.matmul(state, g.floats(32, 32)) * 0.2 + g.floats(3, 32)))
        g.output(state * 2.0)
        g.output(table + 1.0)
        match = assert_device_matches(device, g.builder.build(), g.given())
        assert {key, fixed} == set(match.result.state)

    def test_an_old_state_may_be_an_output(self, device: Device, rng: Rng) -> None:
        """What it was before the step, though the step replaces it in place."""
        g = Recorder("old", rng)
        key, state = g.state("value", floats(rng, (5, 7), F32), F32)
        other, pool = g.state("pool", floats(rng, (9, 4), F32), F32)
        g.builder.next_state(key, state * 3.0)
        g.builder.next_state(other, p.scatter_update(pool, g.slot(np.array([2, 8], np.int32), I32), g.floats(2, 4)))
        g.output(state)
        g.output(pool)
        assert_device_matches(device, g.builder.build(), g.given())

    @pytest.mark.parametrize("rows", [1, 5])
    def test_selections_and_draws(self, device: Device, rng: Rng, rows: int) -> None:
        """argmax, arg_top_k and sample_token of logits that a kernel has just written."""
        g = Recorder("selection", rng)
        logits = f.linear(g.floats(rows, 64), g.weight(FORMATS["f32"], 1031, 64), FORMATS["f32"])
        stored = g.floats(rows, 1031, low=-6, high=6)
        g.output(logits)
        g.output(p.argmax(stored, 1))
        g.output(p.arg_top_k(stored, 20))
        settings = np.tile(np.array([1.25, 0.02, 0.9, 1.0], np.float32), (rows, 1))
        others = (
            g.slot(integers(rng, (rows, 2), U32), U32), g.slot(integers(rng, (rows,), I32, 0, 999), I32),
            g.slot(settings, F32), g.slot(np.full(rows, 50, np.int32), I32),
        )  # fmt: skip
        g.output(p.sample_token(stored, *others))
        match = assert_device_matches(device, g.builder.build(), g.given(), undecided=0.01)
        assert_regions(device, match, [CONTRACTION, "argmax", "top_k", "sample"])


class AttentionRegions:
    """Attention over a capacity of which each row sees a part, beside positions that hold NaN."""

    @pytest.mark.parametrize("tokens", [1, 3])
    @pytest.mark.parametrize("dtype", [F32, F16], ids=str)
    def test_attention(self, device: Device, rng: Rng, dtype: DType, tokens: int) -> None:
        """Grouped heads; what no row may see is NaN and must not show."""
        g = Recorder("attention", rng)
        rows, capacity, heads, kv_heads, width = 2, 67, 6, 2, 16
        position = g.slot(np.array([40, 5], np.int32), I32)
        last = g.slot(np.full(rows, tokens - 1, np.int32), I32)
        q = g.floats(rows, tokens, heads, width, low=-1, high=1)
        k, v = (self._pool(g, dtype, (rows, capacity, kv_heads, width), (40, 5), tokens) for _ in range(2))
        mask = f.causal_mask(position, last, tokens, capacity)
        g.output(f.attention(q, k, v, mask, width**-0.5))
        assert_device_matches(device, g.builder.build(), g.given())

    @staticmethod
    def _pool(g: Recorder, dtype: DType, shape: tuple[int, ...], seen: tuple[int, ...], tokens: int) -> Traced:
        values = floats(g.rng, shape, dtype, -1, 1)
        for row, count in enumerate(seen):
            values[row, count + tokens :] = np.nan
        return g.slot(values, dtype)

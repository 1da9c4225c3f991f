"""The sampled draw on devices, through every way that its kernel has: a list of the greatest scores, and sweeps."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil

import numpy as np
import pytest

from poot_eval.conformance.matching import assert_device_matches
from poot_eval.conformance.opening import open_or_skip
from poot_eval.conformance.session import Session
from poot_eval.kernel_ir import run_kernel
from poot_executor.compile import CompileOptions, compile
from poot_executor.compile.lower.rows import row_threads
from poot_executor.compile.target import Caps
from poot_executor.device import Device
from poot_executor.dtype import F32, I32, U32
from poot_executor.graph import primitives as p
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph, TensorType
from poot_executor.graph.keys import SlotKey, SlotKind
from poot_executor.graph.numerics import ORACLE
from poot_executor.graph.sampling import sampled_tokens
from poot_executor.kernel.lang import In, Out, kernel, thread_id
from poot_executor.kernel.lang import f32 as f32_type
from poot_executor.kernel.lang import u32 as u32_type
from poot_executor.kernels.mass import share_of

NAMES = ("logits", "seed", "position", "settings", "top_k")
f32 = np.float32
INF = np.inf


@pytest.fixture(
    scope="module", params=["reference", *(pytest.param(n, marks=pytest.mark.device(n)) for n in ("wgpu", "vulkan"))]
)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_or_skip(request.param)
    yield opened
    opened.close()


def draw_graph(rows: int, vocabulary: int) -> Graph:
    builder = Builder("draw")
    shapes = ((rows, vocabulary), (rows, 2), (rows,), (rows, 4), (rows,))
    slots = [
        builder.slot(SlotKey(SlotKind.INPUT, name), TensorType(shape, dtype))
        for name, shape, dtype in zip(NAMES, shapes, (F32, U32, I32, F32, I32), strict=True)
    ]
    builder.output("token", p.sample_token(*slots))
    return builder.build()


def settings_of(temperature: float, min_p: float, top_p: float, noise: float = 1.0) -> tuple[float, ...]:
    return 1 / temperature, min_p, top_p, noise


def rows_of(rng: np.random.Generator, vocabulary: int) -> list[tuple[np.ndarray, tuple[float, ...], int]]:
    """Logits, settings and top_k of rows, one for each way."""

    def normal(spread: float = 3.0) -> np.ndarray:
        return rng.normal(0, spread, vocabulary).astype(f32)

    few = np.full(vocabulary, -INF, f32)
    few[rng.choice(vocabulary, 5, replace=False)] = rng.normal(0, 1, 5)
    holes = normal()
    holes[::7] = -INF
    holes[3] = np.nan
    steps = np.round(normal() * 2) / 2
    return [
        (normal(), settings_of(0.8, 0, 1), 0),
        (normal(), settings_of(0.8, 0, 1), 40),
        (normal(), settings_of(0.8, 0, 0.9), 40),
        (normal(), settings_of(0.8, 0, 0.9), 0),
        (normal(), settings_of(0.7, 0.05, 0.9), 0),
        (normal(), settings_of(0.7, 0.05, 1), 0),
        (normal(), settings_of(0.7, 0.02, 0.95), 100),
        (normal(0.5), settings_of(2.0, 0, 0.95), 0),  # flat: more is kept than a list holds
        (normal(), settings_of(1.0, 0, 0.99), 400),  # more than the bound can be of
        (normal(), settings_of(1.0, 0, 1), vocabulary - 1),
        (np.zeros(vocabulary, f32), settings_of(1.0, 0, 0.5), 3),  # all tie: all are kept
        (steps, settings_of(1.0, 0, 0.8), 11),
        (steps, settings_of(1.0, 0.1, 0.8), 0),
        (few, settings_of(1.0, 0, 0.9), 40),
        (few, settings_of(1.0, 0.01, 1), 2),
        (holes, settings_of(0.9, 0, 0.9), 20),
        (holes, settings_of(0.9, 0, 0.7), 0),
        (np.full(vocabulary, -INF, f32), settings_of(1.0, 0.1, 0.5), 7),
        (normal(), settings_of(1.0, 0, 0.0), 0),
        (normal(), settings_of(1.0, 1.0, 1), 0),
        (normal(), settings_of(1.0, 0, 1), 1),
        (normal(), settings_of(1.0, 0, 0.9, noise=0.0), 40),
        (steps, settings_of(1.0, 0, 1, noise=0.0), 0),
        (normal(8), settings_of(0.3, 0, 0.999), 0),
    ]  # fmt: skip


@pytest.mark.parametrize("vocabulary", [67, 1030, 4100])
def test_every_way_of_drawing(device: Device, rng: np.random.Generator, vocabulary: int) -> None:
    rows = rows_of(rng, vocabulary)
    count = len(rows)
    arrays = (
        np.stack([row[0] for row in rows]), rng.integers(0, 2**32, (count, 2), np.uint32),
        rng.integers(0, 5000, count, np.int32), np.array([row[1] for row in rows], f32),
        np.array([row[2] for row in rows], np.int32),
    )  # fmt: skip
    inputs = {SlotKey(SlotKind.INPUT, name): array for name, array in zip(NAMES, arrays, strict=True)}
    match = assert_device_matches(device, draw_graph(count, vocabulary), inputs, undecided=0.15)
    assert match.regions == ("sample",)


@pytest.mark.parametrize("vocabulary", [1030, 4100])
def test_drawn_in_parts_as_whole(device: Device, rng: np.random.Generator, vocabulary: int) -> None:
    """A target with many groups shares rows that filter nothing out; every row draws what it does otherwise."""
    rows = rows_of(rng, vocabulary)
    rows = [rows[i] for i in (0, 1, 5, 7, 22)]
    rows += [
        (rows[0][0], settings_of(1.3, 0, 1), 0),
        (rng.normal(0, 1, vocabulary).astype(f32), settings_of(2, 0, 1), 0),
    ]
    rows += [(np.full(vocabulary, -INF, f32), settings_of(1, 0, 1), 0)]
    count = len(rows)
    arrays = (
        np.stack([row[0] for row in rows]), rng.integers(0, 2**32, (count, 2), np.uint32),
        rng.integers(0, 5000, count, np.int32), np.array([row[1] for row in rows], f32),
        np.array([row[2] for row in rows], np.int32),
    )  # fmt: skip
    inputs = {SlotKey(SlotKind.INPUT, name): array for name, array in zip(NAMES, arrays, strict=True)}
    graph = draw_graph(count, vocabulary)
    caps = replace(device.target.caps, parallel_groups=8 * count, group_threads=8)
    programs = [compile(graph, t, CompileOptions()) for t in (device.target, replace(device.target, caps=caps))]
    assert [[d.kernel.name for d in program.dispatches] for program in programs] == [
        ["sample_token"], ["draw_parts", "sample_token"],
    ]  # fmt: skip
    assert programs[1].dispatches[0].groups == (count, 8, 1)
    tokens = []
    for program in programs:
        session = Session(device, program, inputs)
        session.set_inputs(inputs)
        session.poison()
        tokens.append(session.run(session.lower()).outputs["token"].tolist())
        session.close()
    assert tokens[0] == tokens[1]


@pytest.mark.device("vulkan")
def test_many_draws_of_one_row(rng: np.random.Generator) -> None:
    """A row drawn with many seeds gives what the rule gives each time, not only the likeliest id."""
    device = open_or_skip("vulkan")
    try:
        count, vocabulary = 64, 2048
        # Of normal logits one may be so far above the others that nearly every draw is it.
        logits = np.tile(rng.uniform(-6, 6, vocabulary).astype(f32), (count, 1))
        arrays = (
            logits, rng.integers(0, 2**32, (count, 2), np.uint32), np.zeros(count, np.int32),
            np.tile(np.array(settings_of(0.9, 0, 0.95), f32), (count, 1)), np.full(count, 50, np.int32),
        )  # fmt: skip
        inputs = {SlotKey(SlotKind.INPUT, name): array for name, array in zip(NAMES, arrays, strict=True)}
        match = assert_device_matches(device, draw_graph(count, vocabulary), inputs, undecided=0.1)
        expected = sampled_tokens(*arrays, ORACLE)
        assert len(set(match.result.outputs["token"].tolist())) > 15
        assert np.mean(match.result.outputs["token"] == expected) >= 0.9
    finally:
        device.close()


@pytest.mark.parametrize(("columns", "k"), [(1030, 20), (4096, 1), (4099, 256), (1024, 257)])
def test_the_greatest_of_long_rows(device: Device, rng: np.random.Generator, columns: int, k: int) -> None:
    """Rows with ties, with few numbers, and with none; the last shape is one of a sweep a pick."""
    values = rng.normal(0, 3, (7, columns)).astype(f32)
    values[1] = np.round(values[1])
    values[2] = 1.5
    values[3, 5:] = -INF
    values[4] = -INF
    values[5, ::3] = np.nan
    values[6] = np.where(values[6] > 0, 0.0, -0.0)
    builder = Builder("greatest")
    key = SlotKey(SlotKind.INPUT, "values")
    builder.output("ids", p.arg_top_k(builder.slot(key, TensorType(values.shape, F32)), k))
    match = assert_device_matches(device, builder.build(), {key: values})
    order = np.argsort(-np.where(np.isnan(values), -INF, values), axis=1, kind="stable")[:, :k]
    assert match.result.outputs["ids"].tolist() == order.tolist()
    assert (match.program.dispatches[0].kernel.name == "listed_top_k") == (k <= 256)


@kernel
def shares(top_p: In[f32_type], high: In[u32_type], low: In[u32_type], high_of: Out[u32_type], low_of: Out[u32_type]):
    """The share of each mass."""
    i = thread_id()
    high_of[i], low_of[i] = share_of(top_p[i], high[i], low[i])


def test_a_share_of_a_mass_is_exact(rng: np.random.Generator) -> None:
    """ceil(top_p · mass) of a float32 and an integer of 44 bits, in integers; and comparisons with it."""
    count = 256
    top_p = rng.uniform(0, 1, count).astype(f32)
    top_p[:8] = 0, 1e-45, 1e-38, 2**-24, 0.5, 0.9, np.nextafter(f32(1), f32(0)), 2**-40
    mass = rng.integers(0, 1 << 44, count)
    mass[8:20] = 1 << np.arange(30, 42)
    mass[20:22] = 0, (1 << 44) - 1
    arrays = [top_p, (mass >> 12).astype(np.uint32), (mass & 4095).astype(np.uint32), *np.zeros((2, count), np.uint32)]
    run_kernel(shares.specialize(group_size=count), arrays, (1, 1, 1), strict=True)
    got = (arrays[3].astype(np.int64) << 12) + arrays[4]
    assert got.tolist() == [ceil(Fraction(float(p)) * int(m)) for p, m in zip(top_p, mass, strict=True)]


def test_threads_of_a_row() -> None:
    """Narrow subgroups make reductions dear: fewer threads, unless a sweep would have too many rounds."""
    wide = Caps(group_threads=64, max_group_size=1024, subgroup_width=32)
    narrow = Caps(group_threads=32, max_group_size=1024, subgroup_width=8)
    assert [row_threads(n, wide) for n in (100, 5000, 49152, 1 << 20)] == [64, 256, 1024, 1024]
    assert [row_threads(n, narrow) for n in (100, 5000, 49152, 151_936, 1 << 20)] == [32, 64, 64, 256, 1024]
    assert row_threads(49152, Caps(group_threads=64, max_group_size=256)) == 256

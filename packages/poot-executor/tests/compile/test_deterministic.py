"""Deterministic programs: a row's bits depend on its tokens alone, not on neighbours, chunks or what is fused."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from poot_eval.conformance.inputs import packed_rows
from poot_eval.conformance.session import Session, open_session
from poot_eval.device import ReferenceDevice
from poot_executor.compile import Caps, CompileOptions, Target, compile
from poot_executor.dtype import F32, to_bytes
from poot_executor.formats import FORMATS
from poot_executor.graph import functional as f
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import TensorType
from poot_executor.graph.keys import SlotKey, SlotKind, StateKey
from poot_executor.weights import WeightKey

# Few threads, so that a row of 160 columns would take more of them alone, and positions would be split.
ROWS = Caps(group_threads=4, parallel_groups=64)
LANES = Caps(group_threads=8, subgroup_width=4, parallel_groups=64, features=frozenset(["subgroup"]), max_bindings=31)
CAPS = {"rows": ROWS, "lanes": LANES}
DETERMINISTIC = CompileOptions(deterministic=True)
TOKEN, POS, LAST, WRITE, BLOCKS = (
    SlotKey(k) for k in (SlotKind.TOKEN, SlotKind.POS, SlotKind.LAST, SlotKind.WRITE_MAP, SlotKind.SLOT_MAP)
)


@pytest.fixture(scope="module")
def compiled(decoder):
    """compiled(caps, rows, tokens, paged): a decoder's layer, compiled once for all tests."""

    @cache
    def program(caps, rows, tokens, paged):
        graph = decoder(rows, tokens, layers=1, paged=paged).graph()
        return compile(graph, ReferenceDevice(caps).target, DETERMINISTIC)

    return program


@pytest.fixture
def bench(decoder, compiled, rng):
    """bench(caps, like, paged): a decoder, with the weights of another where one is given."""

    def made(caps, like=None, paged=False):
        return Bench(compiled, decoder.CAPACITY, rng, caps, like, paged)

    return made


class Bench:
    """A decoder with its weights, stepped on a device; KV states are kept between steps."""

    def __init__(self, compiled, capacity, rng, caps, like, paged):
        self.compiled, self.capacity, self.caps, self.paged = compiled, capacity, caps, paged
        self.device = ReferenceDevice(caps)
        self.weights = {} if like is None else like.weights
        self.rng = rng
        self.states = {}

    def step(self, tokens, starts, lasts=None):
        """Logits [rows, vocabulary] of each row's last token; tokens [rows][tokens]."""
        ids = np.array(tokens, np.int32)
        rows, count = ids.shape
        starts = np.array(starts, np.int32)
        lasts = np.full(rows, count - 1, np.int32) if lasts is None else np.array(lasts, np.int32)
        at = starts[:, None] + np.arange(count)
        write = np.where(np.arange(count) <= lasts[:, None], at + np.arange(rows)[:, None] * self.capacity, -1)
        program = self.compiled(self.caps, rows, count, self.paged)
        inputs = {TOKEN: ids, POS: starts, LAST: lasts, WRITE: write.astype(np.int32)}
        for item in program.graph.inputs:
            shape = item.value.shape
            if isinstance(item.key, WeightKey):
                fresh = (self.rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
                inputs[item.key] = self.weights.setdefault(item.key, fresh)
            elif isinstance(item.key, StateKey):
                inputs[item.key] = self.states.get(item.key, np.full(shape, np.nan, np.float32))
            elif item.key == BLOCKS:
                own = np.arange(rows * self.capacity // 4).reshape(rows, -1)
                inputs[item.key] = own.astype(np.int32)
        session = Session(self.device, program, inputs)
        session.set_inputs(inputs)
        session.poison()
        result = session.run(session.lower())
        session.close()
        self.states = dict(result.state)
        return result.outputs["logits"]


def bits(x):
    return to_bytes(x, F32)


@pytest.fixture
def prompt(rng):
    return [[int(i) for i in rng.integers(0, 11, 4)] for _ in range(3)]


@pytest.mark.parametrize("caps", CAPS)
def test_alone_as_in_a_batch_and_in_any_chunks(bench, prompt, caps):
    batched = bench(CAPS[caps])
    together = batched.step(prompt, [0, 0, 0])
    alone = bench(CAPS[caps], batched)
    assert bits(alone.step([prompt[1]], [0])[0]) == bits(together[1])
    chunked = bench(CAPS[caps], batched)
    first, second, third, fourth = prompt[0]
    chunked.step([[first, 0]], [0], [0])  # padded by a token that is none
    chunked.step([[second, third]], [1])
    assert bits(chunked.step([[fourth, 0]], [3], [0])[0]) == bits(together[0])
    for key, pool in chunked.states.items():
        assert bits(pool[:4]) == bits(batched.states[key][:4]), key


@pytest.mark.parametrize("caps", CAPS)
def test_a_row_is_the_same_among_any_number_of_rows(bench, rng, caps):
    """One, three or eight rows through block tables, a prompt each and then a token: where a row is, and who is beside
    it, changes no bit of it."""
    prompts = [[int(i) for i in rng.integers(0, 11, 3)] for _ in range(8)]
    found: dict[int, set[bytes]] = {}
    eight = bench(CAPS[caps], paged=True)
    for rows in ([*range(8)], [5, 0, 2], [0], [5]):
        stepped = eight if len(rows) == 8 else bench(CAPS[caps], eight, paged=True)
        first = stepped.step([prompts[r] for r in rows], [0] * len(rows))
        then = stepped.step([[r % 11] for r in rows], [3] * len(rows))
        for place, row in enumerate(rows):
            found.setdefault(row, set()).add(bits(first[place]) + bits(then[place]))
    assert all(len(same) == 1 for same in found.values())
    assert len(found) == 8 and len(set().union(*found.values())) > 1


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
@pytest.mark.parametrize("caps", CAPS)
def test_any_chunks_give_the_same_bits(bench, prompt, caps, paged):
    """A prompt of four tokens in every way to cut it."""
    whole = bench(CAPS[caps], paged=paged)
    expected = bits(whole.step([prompt[0]], [0])[0])
    for sizes in ([1, 3], [3, 1], [2, 2], [1, 2, 1], [1, 1, 1, 1]):
        stepped, at = bench(CAPS[caps], whole, paged=paged), 0
        for size in sizes:
            last = stepped.step([prompt[0][at : at + size]], [at])
            at += size
        assert bits(last[0]) == expected, sizes


def test_token_by_token_as_at_once(bench, prompt):
    """From a paged pool and a contiguous one."""
    whole = bench(ROWS, paged=True)
    together = whole.step(prompt[:2], [0, 0])
    single = bench(ROWS, whole)
    for place, token in enumerate(prompt[1]):
        last = single.step([[token]], [place])
    assert bits(last[0]) == bits(together[1])


@pytest.mark.parametrize("caps", CAPS)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_norm_alone_as_before_a_contraction(g, rng, caps, kind):
    """What an output needs is stored and read; otherwise each group norms its rows for itself."""
    dense = FORMATS["f32"]
    x, scale, shift, weight = g.floats(3, 160), g.floats(160), g.floats(160), g.weight(dense, 8, 160)
    normed = f.rms_norm(x, scale, 1e-5) if kind == "rms" else f.layer_norm(x, scale, shift, 1e-5)
    g.builder.output("y", f.linear(normed, weight, dense))
    fused = g.builder.build()
    g.builder.output("normed", normed)
    results = []
    for graph in (fused, g.builder.build()):
        with open_session(ReferenceDevice(CAPS[caps]), graph, g.given() | {}, DETERMINISTIC) as session:
            results.append(session.run(session.lower()).outputs["y"])
            regions = [d.region for d in session.program.dispatches]
        assert regions == (["projection"] if graph is fused else ["row_reduction", "contraction"])
    assert bits(results[0]) == bits(results[1])


@pytest.mark.parametrize("name", ["bf16", "q4_1", "q8_0"])
def test_a_row_is_the_same_whatever_fragments_would_take(rng, name):
    """One, five or twenty rows on a target with matrix fragments, which take some of these numbers of rows."""
    features = frozenset(["subgroup", "packed_half", "mma"])
    caps = Caps(group_threads=128, subgroup_width=32, max_bindings=31, max_shared_bytes=48 << 10, features=features)
    x, found = rng.standard_normal((20, 128)).astype(np.float32), []
    for rows in (1, 5, 20):
        builder, format_ = Builder("rows"), FORMATS[name]
        weight = f.stored_weight(builder, WeightKey(None, "w"), format_, (24, 128))
        slot = builder.slot(SlotKey(SlotKind.INPUT, "x"), TensorType((rows, 128), F32))
        builder.output("y", f.linear(slot, weight, format_))
        stored = packed_rows(np.random.default_rng(7), format_, 24, 128)
        inputs = {WeightKey(None, "w"): stored, SlotKey(SlotKind.INPUT, "x"): x[:rows]}
        with open_session(ReferenceDevice(caps), builder.build(), inputs, DETERMINISTIC) as session:
            found.append(session.run(session.lower()).outputs["y"][0])
    assert bits(found[0]) == bits(found[1]) == bits(found[2])


@pytest.mark.parametrize("caps", CAPS)
def test_only_deterministic_programs_give_up_splits(decoder, caps):
    graph = decoder(1, 1).graph()

    def splits(options):
        program = compile(graph, Target("paper", CAPS[caps]), options)
        return {d.schedule["splits"] for d in program.dispatches if d.region == "attention"}

    assert splits(DETERMINISTIC) == {1}
    assert min(splits(CompileOptions())) > 1

"""Steps over paged KV and windows, evaluated by the oracle, against the float64 forward pass."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval import EvalOptions, eval
from poot_executor.compile import compile
from poot_executor.compile.target import Caps, Target
from poot_executor.dtype import F32
from poot_executor.errors import GraphError
from poot_executor.graph.builder import Builder
from poot_executor.graph.keys import StateKey
from poot_llm.blocks.step import LAST, LAST_TOKEN, POS, SLOT_MAP, TOKEN, WRITE_MAP, StepShape, begin_step
from poot_llm.models.llama import LLAMA
from poot_llm.models.llama_config import LlamaConfig
from poot_llm.models.step_graph import trace_step
from poot_llm.models.weight_map import bind_weights
from poot_llm.sampling import SamplerRow, SamplerShape, SamplerSlots, SamplingParams, Suffix

_PATH = Path(__file__).parent / "fixtures" / "reference_llama.py"
_SPEC = importlib.util.spec_from_file_location("reference_llama", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
ref = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(ref)

FAST = EvalOptions(order="blas")
BLOCKS = 8
IDS = [7, 50, 3, 3, 19, 0, 52, 11, 28, 45, 6, 14, 33, 2, 9, 41, 8, 8, 30, 21]


class Pool:
    """Steps over one pool whose content is NaN where nothing was written, the reserved block apart."""

    def __init__(self, config: LlamaConfig, store: Any) -> None:
        self.config = config
        self.bound = bind_weights(LLAMA.expected(config), store)
        self.tensors = {key: store.tensor(name) for key, name in self.bound.names.items()}
        self.state: dict[StateKey, NDArray] = {}

    def run(
        self, shape: StepShape, rows: list[tuple[list[int], int, list[int]]], suffix: Suffix | None = None, **more: Any
    ) -> Any:
        """A step of rows (ids, position of the first, blocks); a row of no ids is spare."""
        tokens = np.zeros((shape.rows, shape.tokens), np.int32)
        table = np.zeros((shape.rows, shape.span // 16), np.int32)
        write = np.full((shape.rows, shape.tokens), -1, np.int32)
        position, last = np.zeros(shape.rows, np.int32), np.full(shape.rows, -1, np.int32)
        for row, (ids, start, blocks) in enumerate(rows):
            tokens[row, : len(ids)] = ids
            table[row, : len(blocks)] = blocks
            write[row, : len(ids)] = [blocks[n // 16] * 16 + n % 16 for n in range(start, start + len(ids))]
            position[row], last[row] = start, len(ids) - 1
        inputs: dict[Any, Any] = {TOKEN: tokens, POS: position, LAST: last, SLOT_MAP: table, WRITE_MAP: write}
        inputs |= more.get("slots", {})
        if suffix is None:
            builder = Builder("logits")
            step = begin_step(builder, shape, self.config.vocabulary, F32)
            builder.output("logits", LLAMA.trace(step, self.config, self.bound.stored))
            graph = builder.build()
        else:
            graph = trace_step(LLAMA, self.config, shape, self.bound.stored, suffix)
        for pair in graph.state:
            # Steps of other row counts see another length of it; nothing here reads it.
            if pair.key not in self.state or pair.key == LAST_TOKEN:
                fresh = np.full(pair.before.shape, np.nan if pair.key != LAST_TOKEN else 0, pair.before.dtype.numpy)
                if pair.key != LAST_TOKEN:
                    fresh[:16] = 0
                self.state[pair.key] = fresh
        result = eval(graph, {**inputs, **self.tensors, **{p.key: self.state[p.key] for p in graph.state}}, FAST)
        self.state.update(result.state)
        return result


def model(rng: np.random.Generator) -> tuple[Pool, Any]:
    config = ref.tiny()
    store = ref.random_store(config, rng)
    return Pool(config, store), ref.Reference(config, store)


def close(got: NDArray, expected: NDArray) -> None:
    assert np.isfinite(got).all()
    assert np.abs(got - expected).max() <= 2e-4 * np.abs(expected).max()


def shape(rows: int, tokens: int, window: bool = False) -> StepShape:
    return StepShape(rows, tokens, 32, 32, BLOCKS, window)


@pytest.mark.parametrize("chunks", [[20], [16, 4], [15, 1, 4], [8, 8, 1, 1, 1, 1]])
def test_scattered_blocks_give_what_a_row_gives(chunks: list[int], rng: np.random.Generator) -> None:
    steps, reference = model(rng)
    expected, at = reference.logits(IDS), 0
    for chunk in chunks:
        width = 1 if chunk == 1 else 8 if chunk <= 8 else 32
        result = steps.run(shape(2, width), [([], 0, []), (IDS[at : at + chunk], at, [5, 3])])
        assert result.checks == (-1, -1, -1, -1)
        at += chunk
        close(result.outputs["logits"][1], expected[at - 1])
    for role in "kv":
        state = steps.state[StateKey(0, role)].reshape(BLOCKS, 16, -1)
        assert np.isfinite(state[5]).all() and np.isfinite(state[3, :4]).all()
        assert np.isnan(state[3, 4:]).all() and np.isnan(state[[1, 2, 4, 6, 7]]).all()
        assert (state[0] == 0).all()


def test_rows_share_a_prefix(rng: np.random.Generator) -> None:
    """Two rows read one block that a third step wrote; each goes on in a block of its own."""
    steps, reference = model(rng)
    steps.run(shape(1, 16), [(IDS[:16], 0, [4])])
    other = [*IDS[:16], 1, 2]
    result = steps.run(shape(4, 4), [(IDS[16:18], 16, [4, 2]), (other[16:], 16, [4, 6]), ([], 0, []), ([], 0, [])])
    close(result.outputs["logits"][0], reference.logits(IDS[:18])[-1])
    close(result.outputs["logits"][1], reference.logits(other)[-1])


def test_a_window_gives_logits_of_every_token(rng: np.random.Generator) -> None:
    steps, reference = model(rng)
    steps.run(shape(1, 16), [(IDS[:16], 0, [4])])
    result = steps.run(shape(2, 4, window=True), [([], 0, []), (IDS[16:19], 16, [4, 1])])
    logits = result.outputs["logits"].reshape(2, 4, -1)
    close(logits[1, :3], reference.logits(IDS[:19])[16:])
    assert np.isfinite(logits).all()


def test_a_window_draws_each_token_at_its_place(rng: np.random.Generator) -> None:
    """Greedy and drawn tokens of a window are those of decoding token by token."""
    steps, _ = model(rng)
    params = (SamplingParams(), SamplingParams(temperature=1.0, seed=3))
    rows = [([9, 8, 7], 0, [1]), ([5, 6, 7], 0, [2])]
    vocabulary = steps.config.vocabulary

    def slots(count: int, used: dict[int, int]) -> dict[str, Any]:
        filled = SamplerSlots(Suffix.SAMPLED, SamplerShape(count, vocabulary, 32)).fill(
            {row: SamplerRow(3, params[which]) for row, which in used.items()}
        )
        return {"slots": dict(filled)}

    window = shape(2, 4, window=True)
    places = {row * 4 + token: row for row in range(2) for token in range(3)}
    got = steps.run(window, rows, Suffix.SAMPLED, **slots(8, places)).outputs["token"].reshape(2, 4)
    assert steps.state[LAST_TOKEN].shape == (8,)
    steps.state = {}
    for token in range(3):
        part = [([ids[token]], token, blocks) for ids, _, blocks in rows]
        result = steps.run(shape(2, 1), part, Suffix.SAMPLED, **slots(2, {0: 0, 1: 1}))
        assert result.outputs["token"].tolist() == got[:, token].tolist()


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ({SLOT_MAP: np.int32([[1, 8]])}, (-1, -1, 1, -1)),
        ({SLOT_MAP: np.int32([[-1, 2]])}, (-1, -1, 0, -1)),
        ({WRITE_MAP: np.int32([[16, 128]])}, (-1, -1, -1, 1)),
        ({WRITE_MAP: np.int32([[15, 17]])}, (-1, -1, -1, 0)),
        ({WRITE_MAP: np.int32([[-2, 17]])}, (-1, -1, -1, 0)),
        ({WRITE_MAP: np.int32([[-1, 17]])}, (-1, -1, -1, -1)),
        ({POS: np.int32([31])}, (-1, 0, -1, -1)),
    ],
)
def test_checks_of_maps(slots: dict[Any, NDArray], expected: tuple[int, ...], rng: np.random.Generator) -> None:
    """What is rejected reads and writes inside the pool, and never the reserved block."""
    steps, _ = model(rng)
    steps.run(shape(1, 2), [([1, 2], 0, [1, 2])])
    result = steps.run(shape(1, 2), [([1, 2], 0, [1, 2])], slots=slots)
    assert result.checks == expected
    for role in "kv":
        assert (steps.state[StateKey(0, role)][:16] == 0).all()


def test_a_spare_row_writes_nothing(rng: np.random.Generator) -> None:
    """Even where its maps say that it would."""
    steps, _ = model(rng)
    spare = {LAST: np.int32([-1]), WRITE_MAP: np.int32([[16, 17]])}
    steps.run(shape(1, 2), [([1, 2], 0, [1])], slots=spare)
    assert np.isnan(steps.state[StateKey(0, "k")][16:]).all()


def test_paged_attention_is_one_region(rng: np.random.Generator) -> None:
    """A layer over a pool takes as many dispatches as one over contiguous rows."""
    steps, _ = model(rng)
    counts = []
    for made in (StepShape(2, 1, 32, 32), shape(2, 1)):
        graph = trace_step(LLAMA, steps.config, made, steps.bound.stored, Suffix.GREEDY)
        program = compile(graph, Target("reference", Caps(max_bindings=12)))
        kinds = [dispatch.region for dispatch in program.dispatches]
        counts.append(sum("attention" in kind for kind in kinds))
    assert counts == [steps.config.layers] * 2


@pytest.mark.parametrize("made", [(1, 1, 24, 24, 4), (1, 1, 32, 32, 1)])
def test_a_pool_that_is_none(made: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(GraphError, match="whole blocks of 16"):
        StepShape(*made)

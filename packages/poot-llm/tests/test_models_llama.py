"""The llama trace, evaluated by the oracle, against a float64 forward pass that shares no code."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_eval import EvalOptions, eval
from poot_executor.dtype import BF16, F16, F32, DType
from poot_executor.errors import GraphError
from poot_executor.graph.builder import Builder
from poot_executor.graph.graph import Graph
from poot_executor.graph.keys import StateKey, Storage
from poot_llm.blocks.step import LAST, LAST_TOKEN, POS, TOKEN, StepShape, begin_step
from poot_llm.models.llama import LLAMA
from poot_llm.models.llama_config import LlamaConfig, Naming
from poot_llm.models.step_graph import trace_step
from poot_llm.models.weight_map import bind_weights
from poot_llm.sampling import Suffix

_PATH = Path(__file__).parent / "fixtures" / "reference_llama.py"
_SPEC = importlib.util.spec_from_file_location("reference_llama", _PATH)
assert _SPEC is not None and _SPEC.loader is not None
ref = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(ref)

FAST = EvalOptions(order="blas")
IDS = [7, 50, 3, 3, 19, 0, 52, 11, 28, 45, 6]


class Steps:
    """Steps of one model through the oracle, the states carried from one to the next."""

    def __init__(self, config: LlamaConfig, store: Any, activations: DType = F32) -> None:
        self.config, self.activations = config, activations
        self.bound = bind_weights(LLAMA.expected(config), store)
        self.tensors = {key: store.tensor(name) for key, name in self.bound.names.items()}
        self.state: dict[StateKey, NDArray] = {}

    def graph(self, shape: StepShape) -> Graph:
        """A step that gives its raw logits beside what a real one gives."""
        builder = Builder("logits")
        step = begin_step(builder, shape, self.config.vocabulary, self.activations)
        builder.output("logits", LLAMA.trace(step, self.config, self.bound.stored))
        return builder.build()

    def run(
        self, shape: StepShape, tokens: list[list[int]], position: list[int], last: list[int]
    ) -> tuple[NDArray, tuple[int, ...]]:
        """Logits [rows, vocabulary] and the checks of a step; tokens are padded on the right."""
        graph = self.graph(shape)
        padded = np.zeros((shape.rows, shape.tokens), np.int32)
        for row, ids in enumerate(tokens):
            padded[row, : len(ids)] = ids
        inputs: dict[Any, Any] = {
            TOKEN: padded, POS: np.int32(position), LAST: np.int32(last), **self.tensors
        }  # fmt: skip
        for pair in graph.state:
            kind = pair.before.type
            fresh = np.zeros(kind.shape, kind.dtype.numpy)
            inputs[pair.key] = self.state.get(pair.key, fresh)
        result = eval(graph, inputs, FAST)
        self.state.update(result.state)
        return result.outputs["logits"], result.checks


def one_row(config: LlamaConfig, tokens: int, span: int | None = None) -> StepShape:
    return StepShape(1, tokens, 24, 24 if span is None else span)


def close(got: NDArray, expected: NDArray, tolerance: float = 2e-4) -> None:
    scale = np.abs(expected).max()
    assert np.isfinite(got).all()
    assert np.abs(got - expected).max() <= tolerance * scale


CASES: Mapping[str, dict[str, Any]] = {
    "hugging face": {},
    "gguf": {"naming": Naming.GGUF, "interleaved": True},
    "one KV head": {"kv_heads": 1},
    "no sharing": {"kv_heads": 4},
    "tied": {"tied_head": True},
    "biases": {
        "attention_bias": frozenset(("query", "key", "value", "attention_output")),
        "mlp_bias": frozenset(("gate", "up", "down")),
    },
    "biases of Q, K and V": {"attention_bias": frozenset(("query", "key", "value"))},
    "wide heads": {"head_dim": 16, "rope_dimensions": 16},
    "partly turned": {"rope_dimensions": 4},
    "partly turned, interleaved": {
        "naming": Naming.GGUF, "rope_dimensions": 4, "interleaved": True
    },
    "frequency factors": {"naming": Naming.GGUF, "interleaved": True, "rope_factors": True},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_the_reference(case: str, rng: np.random.Generator) -> None:
    config = ref.tiny(**CASES[case])
    store = ref.random_store(config, rng)
    expected = ref.Reference(config, store).logits(IDS)
    steps = Steps(config, store)
    for end in (1, 4, len(IDS)):
        logits, checks = steps.run(one_row(config, 16), [IDS[:end]], [0], [end - 1])
        assert checks == (-1, -1)
        close(logits[0], expected[end - 1])


@pytest.mark.parametrize("format", ["f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_stored_formats(format: str, rng: np.random.Generator) -> None:
    config = ref.tiny(tied_head=True)
    vectors = format if format in ("f16", "bf16") else "f32"
    store = ref.random_store(config, rng, format, vectors)
    logits, _ = Steps(config, store).run(one_row(config, 16), [IDS], [0], [len(IDS) - 1])
    close(logits[0], ref.Reference(config, store).logits(IDS)[-1])


@pytest.mark.parametrize("chunks", [[11], [8, 3], [4, 4, 3], [1] * 11, [2, 8, 1]])
@pytest.mark.parametrize("interleaved", [False, True])
def test_chunks_equal_the_whole(chunks: list[int], interleaved: bool, rng: np.random.Generator) -> None:
    """Each chunk is padded to 8 places: what is padding in one is written by the next."""
    config = ref.tiny(interleaved=interleaved)
    store = ref.random_store(config, rng)
    expected = ref.Reference(config, store).logits(IDS)
    steps, at = Steps(config, store), 0
    for chunk in chunks:
        width = 1 if chunk == 1 else 8 if chunk <= 8 else 16
        ids = IDS[at : at + chunk]
        logits, checks = steps.run(one_row(config, width), [ids], [at], [chunk - 1])
        assert checks == (-1, -1)
        at += chunk
        close(logits[0], expected[at - 1])


def test_a_shorter_span_sees_the_same(rng: np.random.Generator) -> None:
    config = ref.tiny()
    store = ref.random_store(config, rng)
    expected = ref.Reference(config, store).logits(IDS)
    steps = Steps(config, store)
    steps.run(one_row(config, 8, span=8), [IDS[:8]], [0], [7])
    logits, _ = steps.run(one_row(config, 4, span=12), [IDS[8:]], [8], [2])
    close(logits[0], expected[-1])


def test_rows_do_not_see_one_another(rng: np.random.Generator) -> None:
    """Stale KV of every row, and of positions that a row has not reached, is NaN."""
    config = ref.tiny()
    store = ref.random_store(config, rng)
    reference, steps = ref.Reference(config, store), Steps(config, store)
    shape = StepShape(3, 4, 24, 24)
    stale = {p.key: np.full(p.before.shape, np.nan, np.float32) for p in steps.graph(shape).state}
    stale[LAST_TOKEN] = np.zeros(3, np.int32)
    steps.state = stale
    first, second = IDS[:6], IDS[5:8]
    logits, checks = steps.run(shape, [first[:4], [], second[:2]], [0, 0, 0], [3, -1, 1])
    assert checks == (-1, -1)
    close(logits[0], reference.logits(first)[3])
    close(logits[2], reference.logits(second)[1])
    assert np.isfinite(logits[1]).all()
    kept = steps.state[StateKey(0, "k")].reshape(3, 24, -1)
    assert np.isnan(kept[1]).all()
    assert np.isnan(kept[0, 4:]).all() and np.isnan(kept[2, 2:]).all()
    logits, _ = steps.run(shape, [first[4:], [], second[2:]], [4, 0, 2], [1, -1, 0])
    close(logits[0], reference.logits(first)[-1])
    close(logits[2], reference.logits(second)[-1])


def test_fewer_rows_share_the_first_part_of_the_state(rng: np.random.Generator) -> None:
    config = ref.tiny()
    store = ref.random_store(config, rng)
    steps = Steps(config, store)
    steps.run(StepShape(2, 8, 24, 24), [IDS[:8], [1]], [0, 0], [7, 0])
    held = steps.state
    steps.state = {key: value[: len(value) // 2] for key, value in held.items()}
    logits, _ = steps.run(StepShape(1, 4, 24, 24), [IDS[8:]], [8], [2])
    close(logits[0], ref.Reference(config, store).logits(IDS)[-1])


@pytest.mark.parametrize(("activations", "tolerance"), [(F16, 5e-3), (BF16, 5e-2)])
def test_activations_round_where_the_graph_says(activations: DType, tolerance: float) -> None:
    config = ref.tiny()
    # One model: how far a tiny one's roundings carry is chance. With seed 3822554031 they carried to 0.006 in f16.
    store = ref.random_store(config, np.random.default_rng(11))
    expected = ref.Reference(config, store).logits(IDS)
    steps = Steps(config, store, activations)
    whole, _ = steps.run(one_row(config, 16), [IDS], [0], [len(IDS) - 1])
    scale = np.abs(expected[-1]).max()
    error = np.abs(whole[0] - expected[-1]).max() / scale
    assert 1e-6 < error < tolerance
    kinds = {v.type.dtype for k, v in _inputs(steps.graph(one_row(config, 1)), Storage.STATE)
             if k != LAST_TOKEN}  # fmt: skip
    assert kinds == {activations}
    chunked = Steps(config, store, activations)
    chunked.run(one_row(config, 8), [IDS[:8]], [0], [7])
    logits, _ = chunked.run(one_row(config, 4), [IDS[8:]], [8], [2])
    np.testing.assert_allclose(logits, whole, atol=1e-5 * scale)


def _inputs(graph: Graph, storage: Storage) -> list[tuple[Any, Any]]:
    return [(item.key, item.value) for item in graph.inputs if item.storage is storage]


# Checks


@pytest.mark.parametrize(
    ("tokens", "position", "last", "expected"),
    [
        ([[1, 2, 3], [4, 5, 6]], [0, 5], [2, 2], (-1, -1)),
        ([[1, 2, 3], [53, 5, 6]], [0, 0], [2, 2], (4, -1)),
        ([[1, 2, -1], [4, 5, 99]], [0, 0], [2, 2], (2, -1)),
        ([[1, 2, 3], [4, 5, 6]], [0, 22], [2, 2], (-1, 1)),
        ([[1, 2, 3], [4, 5, 6]], [21, 21], [2, 2], (-1, -1)),
        ([[1, 2, 3], [4, 5, 6]], [-1, 22], [2, 2], (-1, 0)),
        ([[1, 2, 3], [4, 5, 6]], [0, 0], [-1, -2], (-1, 1)),
        ([[1, 2, 3], [4, 5, 6]], [0, 0], [4, 0], (-1, 0)),
    ],
)
def test_checks_say_which_input_is_wrong(
    tokens: list[list[int]], position: list[int], last: list[int], expected: tuple[int, int],
    rng: np.random.Generator,
) -> None:  # fmt: skip
    config = ref.tiny(layers=1)
    steps = Steps(config, ref.random_store(config, rng))
    logits, checks = steps.run(StepShape(2, 4, 24, 24), tokens, position, last)
    assert checks == expected
    assert np.isfinite(logits).all()


def test_a_rejected_step_writes_into_no_other_row(rng: np.random.Generator) -> None:
    config = ref.tiny(layers=1)
    steps = Steps(config, ref.random_store(config, rng))
    _, checks = steps.run(StepShape(2, 4, 24, 24), [[1, 2, 3, 4], [5]], [22, 0], [3, 0])
    assert checks == (-1, 0)
    keys = steps.state[StateKey(0, "k")].reshape(2, 24, -1)
    assert (keys[0, :22] == 0).all() and (keys[0, 22:] != 0).any()
    assert (keys[1, 0] != 0).any() and (keys[1, 1:] == 0).all()


# The whole step


def suffixed(config: LlamaConfig, store: Any, shape: StepShape) -> Graph:
    bound = bind_weights(LLAMA.expected(config), store)
    return trace_step(LLAMA, config, shape, bound.stored, Suffix.GREEDY)


def test_decoding_from_the_last_token_equals_recomputing(rng: np.random.Generator) -> None:
    """After the prompt the host gives positions alone: tokens come from the state."""
    config = ref.tiny()
    store = ref.random_store(config, rng)
    expected = ref.Reference(config, store).greedy(IDS, 8)
    tensors = Steps(config, store).tensors
    state: dict[StateKey, NDArray] = {}
    got: list[int] = []
    for place in range(8):
        width = 16 if place == 0 else 1
        graph = suffixed(config, store, one_row(config, width))
        ids = np.full((1, width), -1, np.int32)
        if place == 0:
            ids[0] = 0
            ids[0, : len(IDS)] = IDS
        position, last = (0, len(IDS) - 1) if place == 0 else (len(IDS) + place - 1, 0)
        inputs: dict[Any, Any] = {
            TOKEN: ids, POS: np.int32([position]), LAST: np.int32([last]), **tensors
        }  # fmt: skip
        for pair in graph.state:
            zeros = np.zeros(pair.before.shape, pair.before.dtype.numpy)
            inputs[pair.key] = state.get(pair.key, zeros)
        result = eval(graph, inputs, FAST)
        assert result.checks == (-1, -1) and result.outputs["non_finite"].tolist() == [0]
        state.update(result.state)
        got.append(int(result.outputs["token"][0]))
        assert state[LAST_TOKEN].tolist() == [got[-1]]
    assert got == expected


def test_a_spare_row_keeps_its_last_token(rng: np.random.Generator) -> None:
    config = ref.tiny(layers=1)
    store = ref.random_store(config, rng)
    graph = suffixed(config, store, StepShape(2, 1, 24, 24))
    inputs: dict[Any, Any] = dict(Steps(config, store).tensors)
    inputs |= {p.key: np.zeros(p.before.shape, p.before.dtype.numpy) for p in graph.state}
    inputs |= {TOKEN: np.int32([[5], [0]]), POS: np.int32([0, 0]), LAST: np.int32([0, -1])}
    inputs[LAST_TOKEN] = np.int32([40, 41])
    result = eval(graph, inputs, FAST)
    assert result.state[LAST_TOKEN].tolist() == [int(result.outputs["token"][0]), 41]


def test_non_finite_logits_are_told_by_row(rng: np.random.Generator) -> None:
    config = ref.tiny(layers=1, tied_head=False)
    store = ref.random_store(config, rng)
    table = store.tensors["model.embed_tokens.weight"]
    values = table.data.view("<f4").reshape(table.shape).copy()
    values[9] = np.nan
    store.tensors[table.name] = ref.stored(table.name, values, "f32")
    graph = suffixed(config, store, StepShape(2, 1, 24, 24))
    inputs: dict[Any, Any] = dict(Steps(config, store).tensors)
    inputs |= {p.key: np.zeros(p.before.shape, p.before.dtype.numpy) for p in graph.state}
    inputs |= {TOKEN: np.int32([[5], [9]]), POS: np.int32([0, 0]), LAST: np.int32([0, 0])}
    outputs = eval(graph, inputs, FAST).outputs
    assert outputs["non_finite"].tolist() == [0, 1]
    assert outputs["token"].min() >= 0 and outputs["token"].max() < config.vocabulary


def test_tracing_is_deterministic_and_shares_what_it_can(rng: np.random.Generator) -> None:
    config = ref.tiny(layers=5)
    store = ref.random_store(config, rng)
    shape = StepShape(2, 4, 24, 24)
    graph = suffixed(config, store, shape)
    assert str(graph) == str(suffixed(config, store, shape))
    ops = [equation.op for equation in graph.equations]
    assert (ops.count("cos"), ops.count("sin")) == (1, 1)
    assert ops.count("scatter_update") == 2 * config.layers
    assert ops.count("matmul") == 9 * config.layers + 1


def test_steps_share_weights_and_states(rng: np.random.Generator) -> None:
    config = ref.tiny()
    store = ref.random_store(config, rng)
    decode, prefill = (suffixed(config, store, one_row(config, n)) for n in (1, 8))
    for storage in (Storage.CONST, Storage.STATE):
        kinds = [{k: v.type for k, v in _inputs(g, storage)} for g in (decode, prefill)]
        assert kinds[0] == kinds[1]
    assert {key.role for key, _ in _inputs(decode, Storage.STATE)} == {"k", "v", "last_token"}


@pytest.mark.parametrize("shape", [(0, 1, 8, 8), (1, 0, 8, 8), (1, 1, 8, 9), (1, 9, 16, 8)])
def test_a_shape_that_is_none(shape: tuple[int, int, int, int]) -> None:
    with pytest.raises(GraphError):
        StepShape(*shape)


def test_activations_are_floats(rng: np.random.Generator) -> None:
    config = ref.tiny()
    with pytest.raises(GraphError, match="u8"):
        Steps(config, ref.random_store(config, rng), DType.U8).graph(one_row(config, 1))

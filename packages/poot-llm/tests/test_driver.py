"""The driver over the oracle: answers equal a float64 recomputation, however they are scheduled."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_executor.dtype import BF16
from poot_executor.engine import Engine
from poot_executor.errors import (
    BindError,
    CheckFailed,
    CompileLimit,
    RequestError,
    SettingsError,
)
from poot_llm.driver import Driver, DriverOptions, FinishReason, InputRows, NonFiniteLogits, Sequence
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams, Suffix

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)
driving, greedy = fixture.driving, fixture.greedy

PROMPT = [104, 277, 102, 110, 35, 101, 117, 114, 122, 113, 290]
OTHER = [7, 300, 9, 12, 60]


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


def params(count: int | None = 8, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True, **more)


def tokens(stream: Iterator[Any]) -> list[int]:
    return [item.token for item in stream]


def run(driver: Driver, sequences: list[Sequence]) -> None:
    """Step and commit until all are finished, all that can go on together in each step."""
    while going := [s for s in sequences if s.finish_reason is None]:
        for result in driver.step(going):
            if result.token is not None:
                driver.commit(result.sequence, result.token)


def run_to_token(driver: Driver, sequence: Sequence) -> None:
    """Prefill a sequence and commit its first token."""
    while not sequence.tokens:
        (result,) = driver.step([sequence])
        if result.token is not None:
            driver.commit(sequence, result.token)


# Answers


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 11])
def test_greedy_tokens_equal_the_reference(handle: ModelHandle, length: int, ahead: bool) -> None:
    prompt = PROMPT[:length]
    with driving(handle, ahead=ahead) as rig:
        stream = rig.driver.generate(prompt, params())
        assert tokens(stream) == greedy(handle, prompt, 8)
        timings = stream.sequence.timings
        assert (timings.prefill_tokens, timings.decode_tokens) == (length, 7)
        assert timings.prefill_seconds > 0 and timings.decode_seconds > 0


def test_chunks_are_full_then_padded_up(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        tokens(rig.driver.generate(PROMPT, params(3)))
        names = [name.removeprefix("llama_") for name in rig.device.replayed]
        assert names == ["1x4x32_greedy"] * 3 + ["1x1x32_greedy"] * 2


def test_a_step_ahead_is_submitted_before_its_token_is_known(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        stream = rig.driver.generate(PROMPT[:4], params())
        next(stream)
        assert len(rig.device.replayed) == 2
        next(stream)
        assert len(rig.device.replayed) == 3
        stream.close()
        assert tokens(rig.driver.generate(OTHER, params())) == greedy(handle, OTHER, 8)


def test_the_last_step_has_none_ahead(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        assert len(tokens(rig.driver.generate(PROMPT[:4], params(3)))) == 3
        assert len(rig.device.replayed) == 3


def test_sampling_depends_on_the_seed_alone(handle: ModelHandle) -> None:
    drawn = params(12, temperature=1.0, seed=(1 << 64) - 5)
    with driving(handle) as rig:
        first = tokens(rig.driver.generate(PROMPT, drawn))
        assert tokens(rig.driver.generate(PROMPT, drawn)) == first
        other = params(12, temperature=1.0, seed=(1 << 63) - 5)
        assert tokens(rig.driver.generate(PROMPT, other)) != first
    with driving(handle, ahead=False, chunk=16) as rig:
        assert tokens(rig.driver.generate(PROMPT, drawn)) == first
    with driving(handle, rows=3) as rig:
        requests = [(OTHER, params(6)), (PROMPT, drawn), (PROMPT[:2], params(9, temperature=2.0))]
        opened = [rig.driver.open(*request) for request in requests]
        sequences = [s for s in opened if s is not None]
        run(rig.driver, sequences)
        assert sequences[1].tokens == first
        assert sequences[0].tokens == greedy(handle, OTHER, 6)


def test_a_seed_is_drawn_where_none_is_given(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        streams = [rig.driver.generate(PROMPT, params(12, temperature=3.0)) for _ in "a"]
        first = tokens(streams[0])
        again = rig.driver.generate(PROMPT, params(12, temperature=3.0))
        assert again.sequence.seed != streams[0].sequence.seed
        assert tokens(again) != first
        repeated = params(12, temperature=3.0, seed=streams[0].sequence.seed)
        assert tokens(rig.driver.generate(PROMPT, repeated)) == first


def test_rows_join_and_leave(handle: ModelHandle) -> None:
    """Prompts of unequal length, one that joins late in a row that another left."""
    with driving(handle, rows=2) as rig:
        driver = rig.driver
        first, second = driver.open(PROMPT, params(4)), driver.open(OTHER, params(9))
        assert first is not None and second is not None
        assert driver.open(OTHER, params(1)) is None
        run(driver, [first])
        driver.step([second])
        driver.release(first)
        third = driver.open(PROMPT[3:], params(5))
        assert third is not None and third.row == first.row
        run(driver, [second, third])
        assert first.tokens == greedy(handle, PROMPT, 4)
        assert second.tokens == greedy(handle, OTHER, 9)
        assert third.tokens == greedy(handle, PROMPT[3:], 5)


def test_streams_interleave(handle: ModelHandle) -> None:
    with driving(handle, rows=2) as rig:
        streams = [rig.driver.generate(p, params()) for p in (PROMPT, OTHER)]
        got: list[list[int]] = [[], []]
        for place in (0, 0, 1, 0, 1, 1, 1, 1, 0, 0):
            got[place].append(next(streams[place]).token)
        for place in (0, 1):
            got[place] += tokens(streams[place])
        assert got == [greedy(handle, PROMPT, 8), greedy(handle, OTHER, 8)]


def test_a_step_of_few_rows_runs_few(handle: ModelHandle) -> None:
    with driving(handle, rows=4) as rig:
        tokens(rig.driver.generate(PROMPT[:4], params(3)))
        assert {name.split("x")[0] for name in rig.device.replayed} == {"llama_1"}


def test_spans(handle: ModelHandle) -> None:
    with driving(handle, spans=(8, 16)) as rig:
        assert tokens(rig.driver.generate(PROMPT[:5], params(20))) == greedy(handle, PROMPT[:5], 20)
        spans = [name.split("x")[2].removesuffix("_greedy") for name in rig.device.replayed]
        assert spans == ["8"] * 5 + ["16"] * 8 + ["32"] * 8


def test_rounded_activations_run(handle: ModelHandle) -> None:
    with driving(handle, activations=BF16) as rig:
        assert len(tokens(rig.driver.generate(PROMPT, params()))) == 8


def test_a_token_that_is_not_committed_is_computed_again(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        sequence = rig.driver.open(PROMPT[:4], params(2))
        assert sequence is not None
        first, again = (rig.driver.step([sequence])[0].token for _ in range(2))
        assert first == again == greedy(handle, PROMPT[:4], 1)[0]
        rig.driver.commit(sequence, first)
        run(rig.driver, [sequence])
        assert sequence.tokens == greedy(handle, PROMPT[:4], 2)


def test_another_token_than_the_drawn_one_can_be_committed(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        sequence = rig.driver.open(PROMPT[:4], params(3))
        assert sequence is not None
        rig.driver.step([sequence])
        rig.driver.commit(sequence, 42)
        run(rig.driver, [sequence])
        assert sequence.tokens == [42, *greedy(handle, [*PROMPT[:4], 42], 2)]


# Ends


def test_the_capacity_ends_an_answer(handle: ModelHandle) -> None:
    with driving(handle, capacity=16) as rig:
        stream = rig.driver.generate(PROMPT, params(None))
        got = list(stream)
        assert [item.token for item in got] == greedy(handle, PROMPT, 5)
        assert [item.finish_reason for item in got] == [None] * 4 + [FinishReason.LENGTH]
        full = rig.driver.generate([*PROMPT, 1, 2, 3, 4], params(None))
        assert len(tokens(full)) == 1


def test_stop_tokens(handle: ModelHandle) -> None:
    expected = greedy(handle, PROMPT, 8)
    with driving(handle) as rig:
        third = SamplingParams(max_tokens=8, stop_token_ids=(expected[2],), ignore_eos=True)
        got = list(rig.driver.generate(PROMPT, third))
        end = expected.index(expected[2]) + 1
        assert [item.token for item in got] == expected[:end]
        assert got[-1].finish_reason is FinishReason.STOP
        assert tokens(rig.driver.generate(OTHER, params(2))) == greedy(handle, OTHER, 2)


def test_the_checkpoints_end_of_sequence(handle: ModelHandle) -> None:
    eos = min(handle.tokenizer.eos_ids)
    with driving(handle) as rig:
        sequences = [rig.driver.open(OTHER, SamplingParams(ignore_eos=False))]
        assert sequences[0] is not None
        rig.driver.step([sequences[0]])
        rig.driver.step([sequences[0]])
        assert rig.driver.commit(sequences[0], eos) is FinishReason.STOP
        rig.driver.release(sequences[0])
        ignoring = rig.driver.open(OTHER, SamplingParams(ignore_eos=True))
        assert ignoring is not None
        rig.driver.step([ignoring])
        rig.driver.step([ignoring])
        assert rig.driver.commit(ignoring, eos) is None


# What is prepared


def test_after_opening_nothing_is_compiled_or_allocated(handle: ModelHandle) -> None:
    with driving(handle, capacity=256) as rig:
        stream = rig.driver.generate(PROMPT, params(220))
        prepared = rig.driver.prepared
        assert {(k.shape.tokens, k.suffix) for k in prepared} == {
            (4, Suffix.GREEDY), (1, Suffix.GREEDY)
        }  # fmt: skip
        before = rig.engine.stats()
        assert len(tokens(stream)) == 220
        after = rig.engine.stats()
        assert rig.driver.prepared == prepared
        assert after.steps - before.steps == 3 + 219
        assert (after.recordings, after.allocations) == (before.recordings, before.allocations)
        assert after.failures == 0


def test_prepare_covers_every_request(handle: ModelHandle) -> None:
    with driving(handle, rows=2, spans=(16,)) as rig:
        rig.driver.prepare([Suffix.SAMPLED])
        prepared = rig.driver.prepared
        assert len(prepared) == len(set(prepared)) == 2 * 3 * 2 + 1
        stats = rig.engine.stats()
        sequences = []
        for prompt, request in ((PROMPT, params()), (OTHER, params(3, temperature=1.0, seed=1))):
            opened = rig.driver.open(prompt, request)
            assert opened is not None
            sequences.append(opened)
        run(rig.driver, sequences)
        assert sequences[0].tokens == greedy(handle, PROMPT, 8)
        assert rig.driver.prepared == prepared
        assert rig.engine.stats().allocations == stats.allocations


def test_entries_are_bounded(handle: ModelHandle) -> None:
    with driving(handle, max_entries=2) as rig:
        with pytest.raises(CompileLimit, match="entries of a driver"):
            rig.driver.prepare()
        assert len(rig.driver.prepared) == 2
    with driving(handle, max_entry_bytes=16) as rig, pytest.raises(CompileLimit, match="bytes"):
        rig.driver.prepare_for(3, params())


def test_weights_are_uploaded_once(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        rig.driver.prepare()
        assert rig.engine.stats().uploaded_bytes == handle.stored_bytes
        assert rig.driver.prepare_seconds > 0


# Failures


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([1, 2, 320], r"prompt\[2\] is 320.*0 to 319"),
        ([1, -1], r"prompt\[1\] is -1"),
        ([1.5], "whole numbers"),
        (list(range(32)), "32 tokens and one to generate are 33, the capacity is 32"),
    ],
)
def test_prompts_that_are_refused(handle: ModelHandle, prompt: list[Any], message: str) -> None:
    with driving(handle) as rig:
        with pytest.raises(RequestError, match=message):
            rig.driver.generate(prompt, params())
        assert rig.driver.prepared == ()
        assert tokens(rig.driver.generate(OTHER, params(1))) == greedy(handle, OTHER, 1)


def test_no_room(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        stream = rig.driver.generate(OTHER, params())
        with pytest.raises(RequestError, match="all 1 rows are taken"):
            rig.driver.generate(PROMPT, params())
        del stream
        assert tokens(rig.driver.generate(OTHER, params(2))) == greedy(handle, OTHER, 2)


def test_a_rejected_step_costs_its_own_sequences(handle: ModelHandle) -> None:
    """The checks of a step reject an id that slipped past the host; other rows recompute."""
    with driving(handle, rows=3) as rig:
        driver = rig.driver
        opened = [driver.open(p, params()) for p in (PROMPT, OTHER, PROMPT[2:])]
        first, second, third = (s for s in opened if s is not None)
        for _ in range(4):
            for result in driver.step([first, second, third]):
                if result.token is not None:
                    driver.commit(result.sequence, result.token)
        second.tokens[-1] = 320
        results = driver.step([second])
        failure = results[0].failure
        assert isinstance(failure, CheckFailed) and (failure.code, failure.index) == (0, 1)
        assert second.finish_reason is FinishReason.ERROR and second.failure is failure
        assert (first.cached, third.cached) == (0, 0)
        run(driver, [first, third])
        assert first.tokens == greedy(handle, PROMPT, 8)
        assert third.tokens == greedy(handle, PROMPT[2:], 8)
        assert rig.engine.stats().failures == 1


def test_a_failed_step_ends_the_stream_and_not_the_driver(handle: ModelHandle) -> None:
    with driving(handle, rows=2, ahead=False) as rig:
        stream, other = (rig.driver.generate(p, params()) for p in (PROMPT, OTHER))
        got = [next(other).token, next(other).token]
        next(stream)
        stream.sequence.tokens[-1] = 320
        with pytest.raises(CheckFailed):
            next(stream)
        assert stream.sequence.released and tokens(stream) == []
        assert got + tokens(other) == greedy(handle, OTHER, 8)


def test_a_step_that_is_lost_with_another_is_repeated(handle: ModelHandle) -> None:
    """One stream has a step ahead under way when the step of another sequence is rejected."""
    with driving(handle, rows=2) as rig:
        stream = rig.driver.generate(PROMPT, params())
        got = [next(stream).token, next(stream).token]
        bad = rig.driver.open(OTHER, params())
        assert bad is not None
        run_to_token(rig.driver, bad)
        got.append(next(stream).token)
        bad.tokens[-1] = 320
        assert rig.driver.step([bad])[0].failure is not None
        assert got + tokens(stream) == greedy(handle, PROMPT, 8)


def test_non_finite_logits_fail_one_row(tmp_path: Path) -> None:
    handle = fixture.checkpoint(tmp_path, tied=False)
    raw = bytearray(handle.path.read_bytes())
    table = handle.store.tensor("token_embd.weight")
    start = raw.find(table.data.tobytes())
    row = start + 33 * handle.config.width * 4
    raw[row : row + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "damaged.gguf").write_bytes(raw)
    damaged = fixture.Models().open(tmp_path / "damaged.gguf")
    with driving(damaged, rows=2) as rig:
        bad, good = (rig.driver.open(p, params()) for p in ([5, 33], OTHER))
        assert bad is not None and good is not None
        run(rig.driver, [bad, good])
        assert isinstance(bad.failure, NonFiniteLogits) and bad.failure.position == 1
        assert bad.tokens == [] and bad.finish_reason is FinishReason.ERROR
        assert good.tokens == greedy(handle, OTHER, 8)
        rig.driver.release(bad)
        with pytest.raises(NonFiniteLogits):
            next(rig.driver.generate([33], params()))
        assert rig.driver.open(OTHER, params()) is not None


def test_an_interrupted_wait_loses_nothing(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        stream = rig.driver.generate(PROMPT, params())
        got = [next(stream).token, next(stream).token]

        def interrupt() -> None:
            rig.device.before_wait = lambda: None
            signal.raise_signal(signal.SIGINT)

        rig.device.before_wait = interrupt
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert got + tokens(stream) == greedy(handle, PROMPT, 8)
        assert tokens(rig.driver.generate(OTHER, params(2))) == greedy(handle, OTHER, 2)


def test_inputs_that_the_family_does_not_declare(handle: ModelHandle) -> None:
    with driving(handle) as rig:
        pixels = InputRows((0,), np.zeros((1, 3), np.float32))
        with pytest.raises(BindError, match=r"llama declares no input 'pixels': its inputs are embeddings"):
            rig.driver.generate_with_inputs(OTHER, {"pixels": pixels})
        stream = rig.driver.generate_with_inputs(OTHER, {}, params(2))
        assert tokens(stream) == greedy(handle, OTHER, 2)


def test_misuse_is_refused(handle: ModelHandle) -> None:
    with driving(handle, rows=2) as rig:
        driver = rig.driver
        sequence = driver.open(OTHER, params(1))
        assert sequence is not None
        with pytest.raises(BindError, match="at least one"):
            driver.step([])
        with pytest.raises(BindError, match="each once"):
            driver.step([sequence, sequence])
        with pytest.raises(BindError, match="5 ids are pending"):
            driver.commit(sequence, 1)
        run_one = driver.step([sequence])
        assert run_one[0].token is None
        token = driver.step([sequence])[0].token
        assert token is not None
        with pytest.raises(BindError, match="token 320"):
            driver.commit(sequence, 320)
        driver.commit(sequence, token)
        with pytest.raises(BindError, match=r"finished \(length\)"):
            driver.step([sequence])
        driver.release(sequence)
        driver.release(sequence)
        with pytest.raises(BindError, match="not open"):
            driver.commit(sequence, 1)
        driver.close()
        driver.close()
        with pytest.raises(BindError, match="closed"):
            driver.open(OTHER)
        assert rig.engine.stats().executables == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 0}, "rows is 0"),
        ({"rows": True}, "rows is True"),
        ({"capacity": 1}, "capacity is 1"),
        ({"chunk": 24}, "chunk is 24, not a power of two"),
        ({"spans": (0,)}, "spans is 0"),
        ({"activations": fixture.oracle_device.np.float32}, "activations"),
        ({"max_entries": 0}, "max_entries"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DriverOptions(**options)


def test_options_that_the_model_refuses(handle: ModelHandle) -> None:
    with fixture.oracle_device.OracleDevice() as device, Engine(device) as engine:
        with pytest.raises(SettingsError, match="capacity is 257, the model's context is 256"):
            Driver(handle, engine, DriverOptions(capacity=257))
        with pytest.raises(SettingsError, match="spans"):
            Driver(handle, engine, DriverOptions(capacity=16, spans=(16,)))
        assert engine.stats().executables == 0
        with Driver(handle, engine) as driver:
            assert driver.capacity == 256

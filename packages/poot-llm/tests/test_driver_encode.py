"""`Driver.encode` of models that generate, beside their sequences: hidden states and embeddings against numpy."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from poot_executor.dtype import F16
from poot_executor.errors import BindError, CompileLimit, RequestError, SettingsError, Unsupported
from poot_llm.blocks.text_pass import TextShape
from poot_llm.driver import Encoded, NonFiniteEmbedding
from poot_llm.encoders import Pool, Pooling, TextEncoder
from poot_llm.models.pooling import DECODERS
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams

_SPEC = importlib.util.spec_from_file_location("driving", Path(__file__).parent / "fixtures" / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
fixture = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(fixture)

TEXTS = [[104, 277, 9], [5], [102, 110, 35, 101, 117, 114, 122, 113, 290, 7, 300, 9, 12, 60, 8, 8, 3, 4], [9, 8, 9]]
ITEMS = [Encoded.single(ids) for ids in TEXTS]
LENGTHS = [len(ids) for ids in TEXTS]
EVERY = Pooling(Pool.TOKENS)


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"), layers=2)


@pytest.fixture(scope="module")
def expected(handle: ModelHandle) -> list[NDArray[np.float64]]:
    model = fixture.reference.Reference(handle.config, handle.store)
    return [model.hidden(ids) for ids in TEXTS]


@pytest.fixture(scope="module")
def rig(handle: ModelHandle) -> Iterator[fixture.Rig]:
    with fixture.driving(handle, encode_rows=4, encode_tokens=64) as made:
        yield made


def test_hidden_states_are_what_numpy_gives(rig: fixture.Rig, expected: list[NDArray[np.float64]]) -> None:
    rig.driver.prepare_encode(LENGTHS, EVERY)
    found = rig.driver.hidden_states(ITEMS)
    for mine, exact in zip(found, expected, strict=True):
        assert mine.shape == exact.shape
        np.testing.assert_allclose(mine, exact, atol=2e-5)


@pytest.mark.parametrize("pooling", [DECODERS, Pooling(Pool.MEAN), Pooling(Pool.LAST), Pooling(Pool.MAX, True)])
def test_pooled_hidden_states_are_what_numpy_gives(
    rig: fixture.Rig, expected: list[NDArray[np.float64]], pooling: Pooling
) -> None:
    pools = {Pool.MEAN: lambda x: x.mean(0), Pool.LAST: lambda x: x[-1], Pool.MAX: lambda x: x.max(0)}
    rig.driver.prepare_encode(LENGTHS, pooling)
    found = rig.driver.encode(ITEMS, None if pooling == DECODERS else pooling)
    for mine, hidden in zip(found, expected, strict=True):
        exact = pools[pooling.pool](hidden)
        np.testing.assert_allclose(mine, exact / np.linalg.norm(exact) if pooling.normalized else exact, atol=2e-5)


def test_texts_alone_are_texts_together(rig: fixture.Rig) -> None:
    rig.driver.prepare_encode()
    together = rig.driver.encode(ITEMS)
    alone = np.concatenate([rig.driver.encode([item]) for item in ITEMS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert rig.driver.encode([]).shape == (0, 32)


def test_encoding_between_steps_changes_no_answer(rig: fixture.Rig, handle: ModelHandle) -> None:
    """One executable, one step under way ahead: passes run in between, and the sequence never notices."""
    rig.driver.prepare_encode(LENGTHS)
    before = rig.driver.encode(ITEMS)
    answer = []
    with rig.driver.generate(TEXTS[0], SamplingParams(max_tokens=8, ignore_eos=True)) as stream:
        for item in stream:
            answer.append(item.token)
            assert (rig.driver.encode(ITEMS) == before).all()
    assert answer == fixture.greedy(handle, TEXTS[0], 8)


def test_what_is_not_prepared_is_not_compiled(handle: ModelHandle) -> None:
    with fixture.driving(handle, encode_rows=4, encode_tokens=64) as rig:
        driver = rig.driver
        assert driver.encode_limit == 32
        assert driver.encode_shapes == tuple(TextShape(*s) for s in ((1, 16), (1, 32), (4, 16)))
        with pytest.raises(BindError, match="no pass over 18 tokens is prepared"):
            driver.encode(ITEMS)
        driver.prepare_encode([3, 1])
        before = rig.engine.stats()
        driver.encode([ITEMS[0], ITEMS[1]])
        with pytest.raises(BindError, match="no pass over 18 tokens is prepared"):
            driver.encode([ITEMS[2]])
        with pytest.raises(BindError, match="no pass over 3 tokens is prepared"):
            driver.encode([ITEMS[0]], Pooling(Pool.MEAN))
        after = rig.engine.stats()
        assert (after.recordings, after.allocations) == (before.recordings, before.allocations)
        assert after.steps - before.steps == 1
        assert driver.prepare_seconds > 0


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Encoded((), 0), r"input\[1\] has 0 tokens: 1 to 32"),
        (Encoded.single([1] * 33), r"input\[1\] has 33 tokens: 1 to 32"),
        (Encoded.single([4, 320]), r"input\[1\] holds 320: token ids are 0 to 319"),
        (Encoded((4, 5), 1), r"input\[1\] is a pair of texts: tiny reads single ones"),
    ],
)
def test_items_that_do_not_fit_are_refused(rig: fixture.Rig, item: Encoded, message: str) -> None:
    rig.driver.prepare_encode()
    with pytest.raises(RequestError, match=message):
        rig.driver.encode([ITEMS[0], item])


def test_what_is_no_way_of_pooling_or_too_much_is_refused(rig: fixture.Rig, handle: ModelHandle) -> None:
    with pytest.raises(RequestError, match="hidden_states gives a row a token"):
        rig.driver.encode(ITEMS, EVERY)
    with pytest.raises(RequestError, match=r"input\[1\] has 40 tokens: 1 to 32"):
        rig.driver.prepare_encode([3, 40])
    with pytest.raises(SettingsError, match="encode_rows is 0"):
        fixture.DriverOptions(encode_rows=0)
    with fixture.driving(handle, max_entries=2) as small, pytest.raises(CompileLimit, match="entries of a driver"):
        small.driver.prepare_encode()


def test_a_damaged_weight_is_named_by_input(tmp_path: Path) -> None:
    handle = fixture.checkpoint(tmp_path, tied=False)
    raw = bytearray(handle.path.read_bytes())
    row = raw.find(handle.store.tensor("token_embd.weight").data.tobytes()) + 33 * handle.config.width * 4
    raw[row : row + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "damaged.gguf").write_bytes(raw)
    with fixture.driving(fixture.Models().open(tmp_path / "damaged.gguf")) as rig:
        rig.driver.prepare_encode([2])
        with pytest.raises(NonFiniteEmbedding, match="input 1 holds NaN"):
            rig.driver.encode([Encoded.single([5, 7]), Encoded.single([5, 33])])
        assert np.isfinite(rig.driver.encode([Encoded.single([5, 7])])).all()


def test_texts_over_a_driver_that_generates(rig: fixture.Rig) -> None:
    encoder = TextEncoder(rig.driver)
    texts = ["the quick brown fox", "jumps over the lazy dog"]
    found = encoder.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    scores = encoder.score(texts[0], [*texts, "the quick brown fox"])
    np.testing.assert_allclose(scores[[0, 2]], 1, atol=1e-5)
    assert [place for place, _ in encoder.rerank(texts[0], [texts[1], texts[0]])] == [1, 0]
    with pytest.raises(RequestError, match=r"input\[1\]: it is empty"):
        encoder.embed(["one", ""])
    with pytest.raises(RequestError, match="top is 0"):
        encoder.rerank(texts[0], texts, top=0)
    with pytest.raises(Unsupported, match="it reads single texts"):
        encoder.tokenize("one", "two")
    assert TextEncoder(rig.driver, truncate=True).embed(["reads on about tokens " * 20]).shape == (1, 32)


def test_half_precision_stays_near(handle: ModelHandle, expected: list[NDArray[np.float64]]) -> None:
    with fixture.driving(handle, activations=F16) as rig:
        rig.driver.prepare_encode(LENGTHS)
        for mine, hidden in zip(rig.driver.encode(ITEMS), expected, strict=True):
            assert mine @ hidden[-1] / np.linalg.norm(hidden[-1]) >= 0.999

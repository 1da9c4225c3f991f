"""`LLM` over whole texts: embeddings and rankings beside requests that generate, waited for and awaited."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from poot_executor.errors import BindError, RequestError, Unsupported
from poot_llm.batching import BatchWorker
from poot_llm.driver import Driver, Layout, NonFiniteEmbedding
from poot_llm.encoders import Pool, Pooling
from poot_llm.llm import LLM, ServedModel
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams


def _fixture(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "fixtures" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fixture, bert = _fixture("driving"), _fixture("tiny_bert")
TEXTS = ["the quick brown fox", "jumps", "over the lazy dog and then", "the quick brown dog", "reads on about tokens"]


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    return fixture.checkpoint(tmp_path_factory.mktemp("tiny"))


@contextmanager
def serving(handle: ModelHandle) -> Iterator[ServedModel]:
    @contextmanager
    def opening() -> Iterator[Driver]:
        chosen = {"capacity": 64, "chunk": 8, "rows": 3, "layout": Layout.PAGED, "encode_rows": 2}
        with fixture.driving(handle, **chosen) as rig:
            yield rig.driver

    with ServedModel(BatchWorker(opening)) as model:
        yield model


@pytest.fixture(scope="module")
def model(handle: ModelHandle) -> Iterator[ServedModel]:
    with serving(handle) as made:
        yield made


def expected(handle: ModelHandle, text: str) -> np.ndarray:
    ids = handle.tokenizer.encode(text, add_special=True, parse_special=False)
    last = fixture.reference.Reference(handle.config, handle.store).hidden(ids)[-1]
    return last / np.linalg.norm(last)


def test_a_model_that_generates_embeds_too(model: ServedModel, handle: ModelHandle) -> None:
    exact = np.array([expected(handle, text) for text in TEXTS])
    np.testing.assert_allclose(model.embed(TEXTS), exact, atol=3e-5)
    np.testing.assert_allclose(model.embed(TEXTS[1]), exact[1:2], atol=3e-5)
    ids = handle.tokenizer.encode(TEXTS[0], add_special=True, parse_special=False)
    np.testing.assert_allclose(model.embed([ids]), exact[:1], atol=3e-5)
    assert model.embed([]).shape == (0, 32)
    means = model.embed(TEXTS, pooling=Pooling(Pool.MEAN))
    assert means.shape == (5, 32) and not np.allclose(means, exact, atol=1e-2)


def test_documents_are_ranked_by_cosine(model: ServedModel, handle: ModelHandle) -> None:
    exact = np.array([expected(handle, text) for text in TEXTS])
    cosines = exact[1:] @ exact[0]
    np.testing.assert_allclose(model.score(TEXTS[0], TEXTS[1:]), cosines, atol=1e-4)
    order = np.argsort(-cosines).tolist()
    assert [place for place, _ in model.rerank(TEXTS[0], TEXTS[1:])] == order
    assert [place for place, _ in model.rerank(TEXTS[0], TEXTS[1:], 2)] == order[:2]


def test_texts_are_read_between_the_steps_of_answers(model: ServedModel) -> None:
    """Whatever runs beside it, both give what they give alone."""
    long = SamplingParams(max_tokens=24, ignore_eos=True)
    texts = TEXTS * 4
    alone, answers = model.embed(texts), model.generate(TEXTS[:3], long)
    found: list[np.ndarray] = []
    reading = threading.Thread(target=lambda: found.append(model.embed(texts)))
    reading.start()
    beside = model.generate(TEXTS[:3], long)
    reading.join()
    assert [o.outputs[0].token_ids for o in beside] == [o.outputs[0].token_ids for o in answers]
    np.testing.assert_allclose(found[0], alone, atol=1e-5)


def test_asynchronous_forms(model: ServedModel) -> None:
    async def both() -> tuple[np.ndarray, np.ndarray, list[tuple[int, float]]]:
        embedded, scored = await asyncio.gather(model.aembed(TEXTS), model.ascore(TEXTS[0], TEXTS))
        return embedded, scored, await model.arerank(TEXTS[0], TEXTS, 3)

    embedded, scored, ranked = asyncio.run(both())
    np.testing.assert_allclose(embedded, model.embed(TEXTS), atol=1e-5)
    np.testing.assert_allclose(scored, model.score(TEXTS[0], TEXTS), atol=1e-5)
    assert ranked[0][0] == 0 and len(ranked) == 3


def test_a_task_that_is_cancelled_gives_up_what_was_not_begun(model: ServedModel) -> None:
    async def cancelled() -> bool:
        task = asyncio.create_task(model.aembed(TEXTS * 100))
        await asyncio.sleep(0.05)
        if task.done():
            return False
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return True

    def left_out() -> bool:
        """Whether it was cancelled while there was something to give up, and it was: two texts are read in a step."""
        before = model.driver.stats().steps
        early = asyncio.run(cancelled())
        model.embed(TEXTS[0])
        return early and model.driver.stats().steps - before < 250

    # This machine may hold this task up until all is read.
    assert any(left_out() for _ in range(20))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["one", ""], r"input\[1\]: it is empty"),
        (["one", "the " * 80], r"input\[1\]: it has 82 tokens, the model reads 64"),
        ([[5, 320]], r"input\[0\] holds 320"),
        ([[5], []], r"input\[1\] has 0 tokens"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(model: ServedModel, texts: object, message: str) -> None:
    before = model.driver.stats().steps
    with pytest.raises(RequestError, match=message):
        model.embed(texts)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="documents: a list of texts"):
        model.rerank("one", "two")
    assert model.driver.stats().steps == before
    assert model.embed(["the " * 80], truncate=True).shape == (1, 32)


def test_a_text_that_is_not_finite_is_named_by_its_place(tmp_path: Path) -> None:
    handle = fixture.checkpoint(tmp_path, tied=False)
    raw = bytearray(handle.path.read_bytes())
    row = raw.find(handle.store.tensor("token_embd.weight").data.tobytes()) + 33 * handle.config.width * 4
    raw[row : row + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "damaged.gguf").write_bytes(raw)
    with serving(fixture.Models().open(tmp_path / "damaged.gguf")) as model:
        with pytest.raises(NonFiniteEmbedding, match="input 1 holds NaN"):
            model.embed([[5, 6, 7, 8], [33], [5, 6], [5, 6, 7]])
        assert np.isfinite(model.embed([[5, 6]])).all()
    with pytest.raises(BindError, match="closed"):
        model.embed([[5, 6]])


def test_a_cross_encoder_by_its_path(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("POOT_HOME", str(tmp_path / "home"))
    weights = bert.weights_of(rng, 1)
    fields = bert.config(architectures=["BertForSequenceClassification"], id2label={"0": "LABEL_0"})
    documents = ["the mat", "dogs", "unlikely, the cat sat", ""]
    with LLM(bert.write(tmp_path, weights, fields), device="reference:plain") as model:
        ranked = model.rerank("the cat", documents)
        exact = []
        for document in documents:
            ids = model.driver.handle.tokenizer.encode(document, add_special=False, parse_special=False)
            first = bert.by_hand(weights, (2, 4, 5, 3, *ids, 3), 4, "bert.")[0]
            pooled = np.tanh(first @ weights["bert.pooler.dense.weight"].T + weights["bert.pooler.dense.bias"])
            exact.append(pooled @ weights["classifier.weight"][0] + weights["classifier.bias"][0])
        assert [place for place, _ in ranked] == np.argsort(-np.array(exact)).tolist()
        np.testing.assert_allclose(sorted(exact, reverse=True), [score for _, score in ranked], atol=3e-5)
        with pytest.raises(Unsupported, match="it is a cross-encoder"):
            model.embed(["the cat"])
        with pytest.raises(Unsupported, match="it encodes texts, and gives no next token"):
            model.generate("the cat")

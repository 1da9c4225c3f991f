"""Encoders against numpy: pooling and normalization by the checkpoint's own files, cross-encoders, refusals."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance.opening import open_or_skip
from poot_executor.dtype import F16
from poot_executor.engine import Engine
from poot_executor.errors import BindError, CheckpointError, RequestError, SettingsError, Unsupported, WeightError
from poot_llm.blocks.text_pass import TextShape
from poot_llm.driver import Driver, Encoded, NonFiniteEmbedding
from poot_llm.encoders import Encoder, EncoderOptions, Pool, Pooling, TextReader, open_encoder
from poot_llm.registry import Models

_SPEC = importlib.util.spec_from_file_location("tiny_bert", Path(__file__).parent / "fixtures" / "tiny_bert.py")
assert _SPEC is not None and _SPEC.loader is not None
bert = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bert)

TEXTS = ["the cat sat on the mat", "Unlikely, dogs!", "", "中 cats", "the the the the the the the", "cat"]


@pytest.fixture(scope="module", params=["reference", pytest.param("vulkan", marks=pytest.mark.device("vulkan"))])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    device = open_or_skip(request.param)
    made = Engine(device)
    yield made
    made.close()
    device.close()


@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken"])
def test_embeddings_are_what_numpy_gives(tmp_path: Path, engine: Engine, rng: np.random.Generator, mode: str) -> None:
    """Texts of several lengths in shared passes, pooled as the files say."""
    normalized = mode != "max_tokens"
    weights = bert.weights_of(rng, None)
    handle = open_encoder(
        bert.write(tmp_path, weights, bert.config(), **bert.sentence_files(mode, normalized=normalized))
    )
    assert (handle.limit, handle.scores_pairs) == (12, False)
    with Encoder(handle, engine, EncoderOptions(rows=4)) as encoder:
        got = encoder.embed(TEXTS)
        items = [encoder.tokenize(text) for text in TEXTS]
        expected = [
            bert.pooled_by_hand(bert.by_hand(weights, item.ids, item.second), mode, normalized) for item in items
        ]
        np.testing.assert_allclose(got, expected, atol=3e-5)
        alone = np.concatenate([encoder.embed([text]) for text in TEXTS])
        np.testing.assert_allclose(alone, got, atol=1e-5)
        assert encoder.embed([]).shape == (0, bert.WIDTH)


def test_pairs_are_scored_raw(tmp_path: Path, engine: Engine, rng: np.random.Generator) -> None:
    weights = bert.weights_of(rng, 1)
    fields = bert.config(architectures=["BertForSequenceClassification"], id2label={"0": "LABEL_0"})
    handle = open_encoder(bert.write(tmp_path, weights, fields))
    documents = ["the mat", "dogs", "unlikely, the cat sat", ""]
    with Encoder(handle, engine) as encoder:
        expected = []
        for document in documents:
            item = encoder.tokenize("the cat", document)
            assert item.ids[:4] == (2, 4, 5, 3) and item.second == 4 and item.ids[-1] == 3
            first = bert.by_hand(weights, item.ids, item.second, "bert.")[0]
            pooler, bias = weights["bert.pooler.dense.weight"], weights["bert.pooler.dense.bias"]
            expected.append(
                np.tanh(first @ pooler.T + bias) @ weights["classifier.weight"][0] + weights["classifier.bias"][0]
            )
        np.testing.assert_allclose(encoder.score("the cat", documents), expected, atol=3e-5)
        order = np.argsort(-np.array(expected)).tolist()
        assert [place for place, _ in encoder.rerank("the cat", documents)] == order
        assert [place for place, _ in encoder.rerank("the cat", documents, top=2)] == order[:2]
        with pytest.raises(Unsupported, match="it is a cross-encoder"):
            encoder.embed(["the cat"])


def test_an_encoder_opens_as_every_model_and_generates_nothing(tmp_path: Path, rng: np.random.Generator) -> None:
    """One driver, whatever the model: what it does not do is refused by name."""
    weights = bert.weights_of(rng, None)
    handle = Models().open(
        bert.write(tmp_path, weights, bert.config(), **bert.sentence_files("mean_tokens", normalized=True))
    )
    assert (handle.family.name, handle.generates, handle.limit) == ("bert", False, 12)
    with open_or_skip("reference") as device, Engine(device) as engine, Driver(handle, engine) as driver:
        item = TextReader(handle, driver.encode_limit).read("the cat sat")
        with pytest.raises(BindError, match="no pass over 5 tokens is prepared"):
            driver.encode([item])
        driver.prepare_encode([5])
        hidden = bert.by_hand(weights, item.ids, item.second)
        exact = bert.pooled_by_hand(hidden, "mean_tokens", True)
        np.testing.assert_allclose(driver.encode([item])[0], exact, atol=3e-5)
        driver.prepare_encode([5], Pooling(Pool.TOKENS))
        np.testing.assert_allclose(driver.hidden_states([item])[0], hidden, atol=3e-5)
        for call in (lambda: driver.generate(item.ids), lambda: driver.capacity, driver.prepare, driver.use):
            with pytest.raises(Unsupported, match="it encodes texts, and gives no next token"):
                call()


def test_half_precision_stays_near(tmp_path: Path, engine: Engine, rng: np.random.Generator) -> None:
    weights = bert.weights_of(rng, None)
    halves = {name: value.astype(np.float16) for name, value in weights.items()}
    handle = open_encoder(
        bert.write(tmp_path, halves, bert.config(), **bert.sentence_files("mean_tokens", normalized=True))
    )
    with Encoder(handle, engine, EncoderOptions(activations=F16)) as encoder:
        got = encoder.embed(TEXTS)
        for text, row in zip(TEXTS, got, strict=True):
            item = encoder.tokenize(text)
            exact = bert.pooled_by_hand(bert.by_hand(weights, item.ids, item.second), "mean_tokens", True)
            assert row @ exact >= 0.9995


def test_what_is_prepared_is_not_compiled_again(tmp_path: Path, rng: np.random.Generator) -> None:
    device = open_or_skip("reference")
    handle = open_encoder(
        bert.write(
            tmp_path, bert.weights_of(rng, None), bert.config(), **bert.sentence_files("cls_token", normalized=False)
        )
    )
    with Engine(device) as engine, Encoder(handle, engine, EncoderOptions(rows=2)) as encoder:
        assert encoder.shapes == (TextShape(1, 12), TextShape(2, 12))
        encoder.prepare()
        before = engine.stats()
        encoder.embed(TEXTS)
        after = engine.stats()
        assert (after.recordings, after.allocations) == (before.recordings, before.allocations)
        assert after.steps - before.steps == 3
        with pytest.raises(RequestError, match="has 13 tokens: 1 to 12"):
            encoder.prepare([13])
    device.close()
    with pytest.raises(BindError, match="closed"):
        encoder.embed(["cat"])


def test_texts_that_do_not_fit_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = bert.weights_of(rng, None)
    weights["encoder.layer.1.output.dense.bias"][3] = np.nan
    handle = open_encoder(
        bert.write(tmp_path, weights, bert.config(), **bert.sentence_files("mean_tokens", normalized=True, limit=6))
    )
    device = open_or_skip("reference")
    long = "the cat sat on the mat"
    with Engine(device) as engine, Encoder(handle, engine) as encoder:
        with pytest.raises(RequestError, match=r"input\[0\]: it has 8 tokens, the model reads 6"):
            encoder.embed([long])
        for texts, message in (("cat", "a list of texts"), ([3], r"input\[0\] is 3")):
            with pytest.raises(RequestError, match=message):
                encoder.embed(texts)  # type: ignore[arg-type]
        for ids, message in (((), r"input\[0\] has 0"), ((2,) * 7, "has 7 tokens"), ((2, 16), r"input\[0\] holds 16")):
            with pytest.raises(RequestError, match=message):
                encoder.encode([Encoded(ids, 0)])
        with pytest.raises(NonFiniteEmbedding, match="input 0 holds NaN"):
            encoder.embed(["cat"])
    with Engine(device) as engine, Encoder(handle, engine, EncoderOptions(truncate=True)) as cutting:
        assert cutting.tokenize(long).ids == (2, 4, 5, 6, 7, 3)
        assert cutting.tokenize("the cat", long).ids == (2, 4, 5, 3, 4, 3)
    device.close()
    for fields, message in (({"rows": 0}, "rows"), ({"activations": "f32"}, "activations")):
        with pytest.raises(SettingsError, match=message):
            EncoderOptions(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "files", "error", "message"),
    [
        ({"hidden_act": "relu"}, {}, CheckpointError, "hidden_act is 'relu'"),
        ({"is_decoder": True}, {}, CheckpointError, "is_decoder"),
        ({"num_attention_heads": 3}, {}, CheckpointError, "3 heads do not share 16"),
        ({"rotary": 1}, {}, CheckpointError, "unknown fields.*rotary"),
        ({"architectures": ["BertForTokenClassification"]}, {}, CheckpointError, "architectures"),
        ({"architectures": ["BertForSequenceClassification"]}, {}, WeightError, "bert.embeddings"),
        ({"model_type": "gpt2"}, {}, Unsupported, "the known ones are bert, llama"),
        ({"hidden_size": 32}, {}, WeightError, "word_embeddings"),
        ({}, {"modules": []}, CheckpointError, "no list of modules"),
        ({}, {"modules": [{"path": "", "type": "sentence_transformers.models.Pooling"}]}, Unsupported, "the first is"),
        ({}, {"modules": [{"path": "../x", "type": "Transformer"}]}, CheckpointError, "inside the checkpoint"),
        (
            {},
            {
                "modules": [
                    {"path": "", "type": "Transformer"},
                    {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
                ]
            },
            Unsupported,
            "Dense",
        ),
        ({}, {"1_Pooling__config": {"pooling_mode_weightedmean_tokens": True}}, Unsupported, "pooling weighted"),
        ({}, {"1_Pooling__config": {}}, Unsupported, "pooling none"),
        ({}, {"sentence_bert_config": {"max_seq_length": 0}}, CheckpointError, "max_seq_length is 0"),
    ],
)
def test_checkpoints_that_are_not_supported_are_refused_by_name(
    tmp_path: Path,
    rng: np.random.Generator,
    changes: dict[str, Any],
    files: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    with_files = {**bert.sentence_files("mean_tokens", normalized=True), **files}
    folder = bert.write(tmp_path, bert.weights_of(rng, None), bert.config(**changes), **with_files)
    with pytest.raises(error, match=message):
        open_encoder(folder)


def test_no_files_of_sentence_embeddings_mean_the_plain_mean(tmp_path: Path, rng: np.random.Generator) -> None:
    handle = open_encoder(bert.write(tmp_path, bert.weights_of(rng, None), bert.config()))
    assert (handle.pooling.pool.value, handle.pooling.normalized, handle.limit) == ("mean_tokens", False, bert.CONTEXT)
    assert handle.tokenizer.decode((2, 10, 11, 12, 13, 5, 9, 3)) == "unlikely , cats"

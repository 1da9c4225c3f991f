"""all-MiniLM-L6-v2 gives the embeddings that sentence-transformers recorded, by a device's kernels."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance.opening import open_or_skip
from poot_executor.engine import Engine
from poot_llm.cache_dir import cache_dir
from poot_llm.encoders import Encoder, EncoderHandle, EncoderOptions, open_encoder

FOLDER = cache_dir() / "models" / "all-MiniLM-L6-v2"
RECORDED = Path(__file__).parents[3] / "references" / "minilm_embeddings.json"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(RECORDED.read_text("utf-8"))


@pytest.fixture(scope="module")
def handle(recorded: dict[str, Any]) -> EncoderHandle:
    if not FOLDER.exists():
        pytest.skip(f"no {FOLDER}: references/README.md says how to get it")
    digest = hashlib.sha256((FOLDER / "model.safetensors").read_bytes()).hexdigest()
    assert digest == recorded["about"]["model.safetensors"]
    return open_encoder(FOLDER)


@pytest.fixture(scope="module", params=["wgpu", "vulkan"])
def encoder(request: pytest.FixtureRequest, handle: EncoderHandle) -> Iterator[Encoder]:
    device = open_or_skip(request.param)
    with Encoder(handle, Engine(device), EncoderOptions(rows=4)) as made:
        yield made
    device.close()


def test_texts_have_the_recorded_ids(handle: EncoderHandle, recorded: dict[str, Any], encoder: Encoder) -> None:
    assert handle.limit == recorded["about"]["max_seq_length"]
    for case in recorded["cases"]:
        assert list(encoder.tokenize(case["text"]).ids) == case["ids"], case["text"]


@pytest.mark.sweep(most=1)
def test_embeddings_are_the_recorded_ones(recorded: dict[str, Any], encoder: Encoder) -> None:
    """Texts of every length in shared passes; cosines at least 0.9999, and elements within 1e-4."""
    expected = np.frombuffer(base64.b64decode(recorded["embeddings"]), "<f4").reshape(recorded["shape"])
    texts = [case["text"] for case in recorded["cases"]]
    got = encoder.embed(texts)
    assert got.shape == expected.shape
    cosine = (got * expected).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(expected, axis=1)
    print(f"least cosine {cosine.min():.8f}, greatest difference {np.abs(got - expected).max():.2e}")
    assert cosine.min() >= 0.9999
    assert np.abs(got - expected).max() <= 1e-4
    alone = encoder.embed(texts[5:6])
    assert np.abs(alone - got[5]).max() <= 1e-5, "alone as in a batch"


def test_the_likeliest_answer_comes_first(encoder: Encoder) -> None:
    documents = ["The recipe needs two eggs.", "Steps to recover access to your account", "Stock prices fell."]
    ranked = encoder.rerank("How do I reset my password?", documents)
    assert ranked[0][0] == 1 and len(ranked) == 3
    assert ranked == sorted(ranked, key=lambda pair: -pair[1])
    assert encoder.rerank("How do I reset my password?", documents, top=1) == ranked[:1]

"""POST /v1/embeddings and /v1/rerank over a tiny BERT, held to what numpy computes."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from poot_eval.conformance import open_or_skip
from poot_llm.driver import Encoded
from poot_llm.encoders.reading import TextReader
from poot_llm.registry import Models

pytestmark = pytest.mark.device("vpu")

_FIXTURES = Path(__file__).resolve().parents[3] / "poot-llm" / "tests" / "fixtures"
_SPEC = importlib.util.spec_from_file_location("tiny_bert", _FIXTURES / "tiny_bert.py")
assert _SPEC is not None and _SPEC.loader is not None
bert = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bert)

TEXTS = ["the cat sat on the mat", "Unlikely, dogs!", "cat"]
SEED = 5


class Encoding:
    """A server over a tiny BERT, and what it is held to."""

    def __init__(self, url: str, folder: Path, weights: Any) -> None:
        self.url = url
        self.weights = weights
        self.reader = TextReader(Models().open(folder), 12)

    def embedding(self, item: Encoded) -> Any:
        """An embedding by hand."""
        return bert.pooled_by_hand(bert.by_hand(self.weights, item.ids, item.second), "mean_tokens", True)

    def post(self, path: str, status: int = 200, **body: Any) -> Any:
        """An answer."""
        response = httpx.post(f"{self.url}{path}", json=body, timeout=60)
        assert response.status_code == status, response.text
        return response.json()


@pytest.fixture(scope="module")
def encoding(served: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Encoding]:
    """An encoder of texts."""
    with open_or_skip("vpu"):
        pass
    folder, weights = tmp_path_factory.mktemp("bert"), bert.weights_of(np.random.default_rng(SEED), None)
    bert.write(folder, weights, bert.config(), **bert.sentence_files("mean_tokens", normalized=True))
    server = served(folder, "--device", "vpu:cpu", "--lazy", "--name", "bert")
    try:
        server.wait_ready()
        yield Encoding(server.url, folder, weights)
    finally:
        server.close()


def test_embeddings_are_what_numpy_gives(encoding: Encoding) -> None:
    items = encoding.reader.texts(TEXTS)
    answer = encoding.post("/v1/embeddings", input=TEXTS)
    assert [one["index"] for one in answer["data"]] == [0, 1, 2] and answer["model"] == "bert"
    for one, item in zip(answer["data"], items, strict=True):
        np.testing.assert_allclose(one["embedding"], encoding.embedding(item), atol=3e-5)
    tokens = sum(len(item.ids) for item in items)
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    by_ids = encoding.post("/v1/embeddings", input=[list(item.ids) for item in items])
    np.testing.assert_allclose(by_ids["data"][1]["embedding"], answer["data"][1]["embedding"], atol=1e-6)
    one = encoding.post("/v1/embeddings", input=TEXTS[2], encoding_format="base64")["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(one), "<f4"), answer["data"][2]["embedding"], atol=1e-5)


def test_openai_reads_them(encoding: Encoding) -> None:
    with openai.OpenAI(base_url=f"{encoding.url}/v1", api_key="unused", max_retries=0) as api:
        answer = api.embeddings.create(model="bert", input=TEXTS)
        assert len(answer.data) == 3 and len(answer.data[0].embedding) == bert.WIDTH
        with pytest.raises(openai.BadRequestError) as refused:
            api.embeddings.create(model="bert", input=TEXTS, dimensions=4)
    assert refused.value.param == "dimensions"


def test_documents_are_put_in_order(encoding: Encoding) -> None:
    query, *others = encoding.reader.texts(["the mat", *TEXTS])
    scores = [float(encoding.embedding(one) @ encoding.embedding(query)) for one in others]
    answer = encoding.post("/v1/rerank", query="the mat", documents=TEXTS, return_documents=True)
    assert [one["index"] for one in answer["results"]] == np.argsort(-np.array(scores)).tolist()
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(scores[one["index"]], abs=3e-5)
        assert one["document"] == {"text": TEXTS[one["index"]]}
    best = encoding.post("/v1/rerank", query="the mat", documents=TEXTS, top_n=1)["results"]
    assert [one["index"] for one in best] == [answer["results"][0]["index"]]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ["cat", ""]}, "input[1]"),
        ("/v1/embeddings", {"input": ["cat", 20 * "cat "]}, "input[1]"),
        ("/v1/embeddings", {"input": [[99]]}, "input[0]"),
        ("/v1/embeddings", {"input": "cat", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/rerank", {"query": "cat", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "cat", "documents": ["cat", 20 * "cat "]}, "documents[1]"),
        ("/v1/rerank", {"query": 20 * "cat ", "documents": ["cat"]}, "query[0]"),
        ("/v1/rerank", {"query": "cat", "documents": ["cat"], "top_n": 0}, "top_n"),
        ("/v1/completions", {"prompt": "cat"}, None),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "cat"}]}, None),
    ],
)
def test_what_does_not_fit_is_refused(encoding: Encoding, path: str, body: dict[str, Any], param: str | None) -> None:
    error = encoding.post(path, 400, **body)["error"]
    assert error["param"] == param
    if param is None:
        assert "/v1/embeddings" in error["message"]

"""An encoder's engine: rows are those of the encoder itself, many texts hold up nobody, what is wrong fails alone."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from poot_eval.conformance import open_or_skip
from poot_executor.engine import Engine
from poot_executor.errors import RequestError
from poot_llm.driver import Driver, DriverOptions
from poot_llm.encoders import Encoder, EncoderOptions, TextEncoder, open_encoder
from poot_llm.sampling import SamplingParams
from poot_serve.engine.encode_loop import EncodeLoop
from poot_serve.engine.messages import Cancel, Close, Encode, Failed, Report, Vectors

_FIXTURES = Path(__file__).resolve().parents[3] / "poot-llm" / "tests" / "fixtures"
_SPEC = importlib.util.spec_from_file_location("tiny_bert", _FIXTURES / "tiny_bert.py")
assert _SPEC is not None and _SPEC.loader is not None
bert = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bert)

pytestmark = pytest.mark.device("vpu")

TEXTS = ["the cat sat on the mat", "Unlikely, dogs!", "cat", "the mat", "unlikely, the cat sat", "dogs", "mat cat"]


@pytest.fixture
def checkpoint(tmp_path: Path, rng: np.random.Generator) -> Path:
    files = bert.sentence_files("mean_tokens", normalized=True)
    return bert.write(tmp_path, bert.weights_of(rng, None), bert.config(), **files)


@pytest.fixture
def driver(checkpoint: Path) -> Iterator[Driver]:
    handle, options = open_encoder(checkpoint), DriverOptions(encode_rows=4)
    with open_or_skip("vpu:cpu") as device, Engine(device) as engine, Driver(handle, engine, options) as made:
        yield made


def encoded(driver: Driver, texts: list[str]) -> tuple[tuple[tuple[int, ...], int], ...]:
    items = [TextEncoder(driver).tokenize(text) for text in texts]
    return tuple((item.ids, item.second) for item in items)


def rows_of(event: Vectors) -> np.ndarray:
    return np.frombuffer(event.data, "<f4").reshape(event.rows, event.columns)


def test_few_texts_do_not_wait_for_many(driver: Driver) -> None:
    """Three requests at once, and one that is wrong; each turn has room for four texts."""
    inbox: SimpleQueue[Any] = SimpleQueue()
    reports: list[Report] = []
    loop = EncodeLoop(driver, inbox, reports.append)
    inbox.put(Encode(1, encoded(driver, TEXTS * 3)))
    inbox.put(Encode(2, encoded(driver, TEXTS[:1])))
    inbox.put(Encode(3, (((10**6,), 1),)))
    inbox.put(Encode(4, encoded(driver, TEXTS * 3)))
    inbox.put(Encode(5, encoded(driver, TEXTS[:2])))
    inbox.put(Encode(6, ()))
    order: list[int] = []
    found: dict[int, Any] = {}
    for turn in range(30):
        if turn == 2:
            inbox.put(Cancel(4))
        assert loop.turn()
        for event in reports.pop().events:
            assert event.id not in found
            order.append(event.id)
            found[event.id] = event
        if {1, 2, 3, 5, 6} <= set(order):
            break
    assert set(order) == {1, 2, 3, 5, 6} and order[-1] == 1
    assert all(isinstance(found[id], Failed) and found[id].kind == "RequestError" for id in (3, 6))
    alone = TextEncoder(driver).embed(TEXTS)
    np.testing.assert_allclose(rows_of(found[1]), np.concatenate([alone] * 3), atol=1e-5)
    np.testing.assert_allclose(rows_of(found[2]), alone[:1], atol=1e-5)
    np.testing.assert_allclose(rows_of(found[5]), alone[:2], atol=1e-5)
    inbox.put(Close())
    assert not loop.turn()


def test_an_encoder_in_its_own_process(engines: Any, checkpoint: Path) -> None:
    handle = open_encoder(checkpoint)
    with open_or_skip("vpu:cpu") as device, Engine(device) as engine, Encoder(handle, engine, EncoderOptions()) as own:
        items = [(item.ids, item.second) for item in map(own.tokenize, TEXTS)]
        expected = own.embed(TEXTS)
    with engines.client(model=checkpoint, driver={"rows": 1, "capacity": None, "chunk": 16}) as client:

        async def all_at_once() -> list[np.ndarray]:
            facts = await client.ready()
            assert facts.encodes and facts.capacity == handle.limit
            with pytest.raises(RequestError, match="generates none"):
                await client.submit([1, 2], SamplingParams())
            with pytest.raises(RequestError, match=r"input\[1\]"):
                await client.encode([items[0], ((1,) * 99, 99)])
            return list(await asyncio.gather(*(client.encode(items[place:]) for place in range(3))))

        for place, rows in enumerate(engines.run(all_at_once())):
            np.testing.assert_allclose(rows, expected[place:], atol=1e-5)
        assert client.open_requests == 0 and client.stats.finished == 7 + 6 + 5

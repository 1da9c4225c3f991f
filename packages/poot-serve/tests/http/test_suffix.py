"""`suffix`: a prompt with a hole, for checkpoints whose vocabulary has marks for that; refused by name elsewhere."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from poot_llm.registry import Models
from poot_serve.http.infill import MARKS, Infill

_FIXTURES = Path(__file__).resolve().parents[3] / "poot-llm" / "tests" / "fixtures"


def checkpoint_with(folder: Path, marks: tuple[str, ...]) -> Path:
    """A tiny llama whose vocabulary has these control tokens too."""
    spec = importlib.util.spec_from_file_location("tiny_with_marks", _FIXTURES / "tiny.py")
    assert spec is not None and spec.loader is not None
    tiny: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    tiny.CONTROL = (*tiny.CONTROL, *marks)
    return tiny.write_tiny_llama_gguf(folder / "coder.gguf", layers=1, width=32, heads=2, kv_heads=1, ffn=32)


@pytest.mark.parametrize("marks", MARKS, ids=lambda marks: marks[0])
def test_marks_are_found_by_their_names(tmp_path: Path, marks: tuple[str, ...]) -> None:
    tokenizer = Models().open(checkpoint_with(tmp_path, (*marks, "<file_sep>"))).tokenizer
    infill = Infill.of(tokenizer)
    assert infill is not None
    assert [tokenizer.token_text(id) for id in (infill.prefix, infill.suffix, infill.middle)] == list(marks)
    assert [tokenizer.token_text(id) for id in infill.ends] == [*marks, "<file_sep>"]
    assert infill.prompt([7, 8], [9]) == [infill.prefix, 7, 8, infill.suffix, 9, infill.middle]


def test_two_marks_of_three_are_none(tmp_path: Path) -> None:
    assert Infill.of(Models().open(checkpoint_with(tmp_path, MARKS[0][:2])).tokenizer) is None


@pytest.fixture(scope="module")
def coder(served: Any, server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """A server of a checkpoint that fills holes; where the shared one has to be skipped, so is this."""
    path = checkpoint_with(tmp_path_factory.mktemp("coder"), MARKS[0])
    made = served(path, "--device", "vpu:cpu", "--rows", "1", "--capacity", "128", "--chunk", "32", "--lazy")
    try:
        made.wait_ready()
        yield made, path
    finally:
        made.close()


@pytest.mark.device("vpu")
def test_the_answer_is_that_of_the_marked_prompt(coder: tuple[Any, Path]) -> None:
    made, path = coder
    tokenizer = Models().open(path).tokenizer
    infill = Infill.of(tokenizer)
    assert infill is not None
    before, after = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))"
    ids = [tokenizer.encode(text, add_special=False, parse_special=False) for text in (before, after)]
    common = {"max_tokens": 12, "temperature": 0, "stop_token_ids": list(infill.ends)}
    with httpx.Client(base_url=made.url, timeout=120) as client:
        marked = client.post("/v1/completions", json={"prompt": tokenizer.complete(infill.prompt(*ids)), **common})
        filled = client.post("/v1/completions", json={"prompt": before, "suffix": after, **common})
        empty = client.post("/v1/completions", json={"prompt": before, "suffix": "", **common})
        for body, param in (
            ({"prompt": before, "suffix": after, "echo": True}, "suffix"),
            ({"prompt": [before], "suffix": after}, "suffix"),
            ({"prompt": ids[0], "suffix": after}, "suffix"),
            ({"prompt": before, "suffix": 1}, "suffix"),
            ({"prompt": "a" * 200, "suffix": after}, "prompt"),
            ({"prompt": before, "suffix": "a" * 20_000}, "suffix"),
        ):
            refused = client.post("/v1/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), body
    assert marked.status_code == filled.status_code == empty.status_code == 200
    assert filled.json()["choices"] == marked.json()["choices"]
    assert filled.json()["usage"]["prompt_tokens"] == len(ids[0]) + len(ids[1]) + 3
    assert empty.json()["usage"]["prompt_tokens"] == len(ids[0]) + 3


@pytest.mark.device("vpu")
def test_other_models_refuse_it_by_name(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "x", "suffix": "y"})
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == ("suffix", "unsupported_parameter")

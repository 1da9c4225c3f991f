"""Mutated and truncated GGUF files either open or raise a PootError: nothing else escapes."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from poot_executor.errors import PootError
from poot_llm.tokenizer import Tokenizer
from poot_llm.weights.gguf import GgufFile

_SPEC = importlib.util.spec_from_file_location("tiny", Path(__file__).parent / "fixtures" / "tiny.py")
assert _SPEC is not None and _SPEC.loader is not None
tiny = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny)
w = tiny.load_fixture("gguf_writer")

_SETTINGS = settings(
    max_examples=400, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _valid() -> bytes:
    metadata = {
        "general.architecture": "llama", "general.alignment": 32, "flag": True, "rate": 0.5,
        "tokens": ["a", "bc", "é"], "types": np.array([1, 2, 3], np.int32), "nested": [["x"], ["y", "z"]],
    }  # fmt: skip
    tensors = [
        ("token_embd.weight", (3, 32), "q8_0", bytes(range(102))),
        ("blk.0.attn_q.weight", (2, 32), "q4_1", bytes(40)),
        ("output_norm.weight", (32,), "f32", bytes(128)),
        ("blk.0.odd.weight", (1, 256), "q4_k", bytes(144)),
    ]
    return w.gguf_bytes(metadata, tensors)


VALID = _valid()
# Values that length, count, type and offset fields take badly.
NASTY = [
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    33,
    255,
    1 << 15,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 62,
    (1 << 63) - 1,
    (1 << 64) - 1,
]


@st.composite
def mutants(draw: st.DrawFn, valid: bytes, head: int) -> bytes:
    """`valid` with up to six edits, most of them in its first `head` bytes, then perhaps cut or extended."""
    raw = bytearray(valid)
    for _ in range(draw(st.integers(1, 6))):
        position = draw(st.integers(0, min(head, len(raw)) - 1))
        kind = draw(st.sampled_from(["byte", "word", "long", "drop", "insert", "copy"]))
        if kind == "byte":
            raw[position] = draw(st.integers(0, 255))
        elif kind in ("word", "long"):
            size = 4 if kind == "word" else 8
            raw[position : position + size] = (draw(st.sampled_from(NASTY)) % (1 << 8 * size)).to_bytes(size, "little")
        elif kind == "drop":
            del raw[position : position + draw(st.integers(1, 40))]
        elif kind == "insert":
            raw[position:position] = draw(st.binary(min_size=1, max_size=24))
        else:
            start = draw(st.integers(0, len(raw) - 1))
            raw[position:position] = raw[start : start + draw(st.integers(1, 80))]
        if not raw:
            break
    if draw(st.booleans()):
        raw = raw[: draw(st.integers(0, len(raw)))]
    return bytes(raw)


def _exercise(path: Path, raw: bytes) -> GgufFile | None:
    """Open and read everything. A view must lie inside the file; any other exception than PootError is a defect."""
    path.write_bytes(raw)
    try:
        file = GgufFile.open(path)
    except PootError as refusal:
        note(str(refusal))
        return None
    spans = []
    for name in file.names():
        try:
            tensor = file.tensor(name)
        except PootError:
            continue
        rows = int(np.prod(tensor.shape[:-1], dtype=object))
        assert tensor.data.nbytes == rows * tensor.format.row_bytes(tensor.shape[-1]) <= len(raw)
        start = tensor.data.__array_interface__["data"][0]
        spans.append((start, start + tensor.data.nbytes))
    spans.sort()
    assert all(one[1] <= two[0] for one, two in pairwise(spans))
    return file


@_SETTINGS
@given(raw=mutants(VALID, VALID.find(b"blk.0.odd") + 48))
def test_mutants_open_or_are_refused(tmp_path: Path, raw: bytes) -> None:
    _exercise(tmp_path / "fuzz.gguf", raw)


@_SETTINGS
@given(raw=st.binary(max_size=400))
def test_noise_after_the_magic_is_refused(tmp_path: Path, raw: bytes) -> None:
    _exercise(tmp_path / "fuzz.gguf", b"GGUF\x03\0\0\0" + raw)


TOKENIZER = w.gguf_bytes(tiny.tokenizer_metadata(262), [])


@settings(parent=_SETTINGS, max_examples=150)
@given(raw=mutants(TOKENIZER, len(TOKENIZER)))
def test_mutant_tokenizers_build_or_are_refused(tmp_path: Path, raw: bytes) -> None:
    file = _exercise(tmp_path / "fuzz.gguf", raw)
    if file is None:
        return
    try:
        tokenizer = Tokenizer.from_gguf(file)
        ids = tokenizer.encode("the fox <|im_end|>", add_special=True, parse_special=True)
        tokenizer.decode(ids)
    except PootError as refusal:
        note(str(refusal))

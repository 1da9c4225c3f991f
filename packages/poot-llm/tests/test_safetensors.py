"""Safetensors: files that the reference package writes read back; hostile headers are refused by tensor and field."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from poot_executor.errors import CheckpointError, PootError, Unsupported, WeightError
from poot_llm.weights.safetensors import INDEX, SINGLE, SafetensorsStore


def raw_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refusal(folder: Path, raw: bytes) -> str:
    (folder / SINGLE).write_bytes(raw)
    with pytest.raises(CheckpointError) as caught:
        SafetensorsStore.open(folder)
    assert SINGLE in str(caught.value)
    return str(caught.value)


def test_files_of_the_reference_package_read_back(tmp_path: Path) -> None:
    seed = int.from_bytes(np.random.default_rng().bytes(4), "little")
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    arrays = {
        "a.weight": rng.normal(size=(3, 4)).astype(np.float32),
        "b.weight": rng.normal(size=(2, 3, 5)).astype(np.float16),
        "scalar": np.array(2.5, np.float32),
        "ids": np.arange(7),
    }
    save_file(arrays, tmp_path / SINGLE, metadata={"format": "np"})
    store = SafetensorsStore.open(tmp_path)
    assert set(store.names()) == set(arrays)
    for name in ("a.weight", "b.weight", "scalar"):
        tensor = store.tensor(name)
        assert tensor.shape == arrays[name].shape and bytes(tensor.data) == arrays[name].tobytes()
        assert not tensor.data.flags.writeable and not tensor.data.flags.owndata
        decoded = tensor.format.decode(tensor.data).reshape(tensor.shape)
        assert np.array_equal(decoded, arrays[name].astype(np.float32))
    with pytest.raises(Unsupported, match=r"I64.*'ids'"):
        store.tensor("ids")
    with pytest.raises(WeightError, match="'none'"):
        store.tensor("none")
    assert SafetensorsStore.open(tmp_path / SINGLE).names() == store.names()


def test_bf16_stays_two_bytes(tmp_path: Path) -> None:
    stored = struct.pack("<3H", 0x3F80, 0xC000, 0x7F80)
    (tmp_path / SINGLE).write_bytes(raw_file({"t": entry("BF16", [3], 0, 6)}, stored))
    tensor = SafetensorsStore.open(tmp_path).tensor("t")
    assert tensor.format.name == "bf16" and bytes(tensor.data) == stored
    assert tensor.format.decode(tensor.data).tolist() == [1.0, -2.0, float("inf")]


def shards(folder: Path) -> dict[str, str]:
    save_file({"a": np.ones(2, np.float32), "b": np.zeros(3, np.float16)}, folder / "m-1.safetensors")
    save_file({"c": np.full(4, 3, np.float32)}, folder / "m-2.safetensors")
    return {"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}


def test_shards_are_one_store(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": shards(tmp_path)}))
    store = SafetensorsStore.open(tmp_path)
    assert set(store.names()) == {"a", "b", "c"}
    assert store.tensor("c").data.view("<f4").tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"c": "../m-2.safetensors"}, "'../m-2.safetensors'"),
        ({"c": "/etc/passwd"}, "'/etc/passwd'"),
        ({"c": "sub\\m.safetensors"}, "weight_map"),
        ({"c": "m\0.safetensors"}, "weight_map"),
        ({"c": ".."}, "'..'"),
        ({"c": 3}, "weight_map"),
        ({"d": "m-2.safetensors"}, "'d'"),
        ({"d": "m-9.safetensors"}, "m-9.safetensors: no such file"),
        ({"c": "m-1.safetensors"}, "'c'"),
        ({"b": "m-2.safetensors"}, "'b'"),
    ],
)
def test_a_hostile_index_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": shards(tmp_path) | change}))
    with pytest.raises(CheckpointError) as caught:
        SafetensorsStore.open(tmp_path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": []}', "nonsense", '{"weight_map": {}, "weight_map": {}}']
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        SafetensorsStore.open(tmp_path)


def test_absent_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        SafetensorsStore.open(tmp_path)
    with pytest.raises(CheckpointError, match="no such file"):
        SafetensorsStore.open(tmp_path / "absent.safetensors")


F4 = bytes(16)
OK = entry("F32", [4], 0, 16)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["0 bytes"]),
        (b"\x01\x00", ["header length", "remain"]),
        (struct.pack("<Q", 1 << 63), ["header length"]),
        (struct.pack("<Q", 50) + b"{}", ["header", "remain"]),
        (raw_file(b""), ["JSON"]),
        (raw_file(b"[]"), ["not an object"]),
        (raw_file(b"\xff{}"), ["JSON"]),
        (raw_file(b"[" * 200_000), ["JSON"]),
        (raw_file(b'{"t": ' * 100_000), ["JSON"]),
        (raw_file(b'{"t": 1' + b"0" * 9000 + b"}"), ["JSON"]),
        (raw_file(b'{"t": NaN}'), ["NaN"]),
        (raw_file(b'{"t": 1, "t": 1}', F4), ["'t'", "twice"]),
        (raw_file({"t": 3}), ["'t'"]),
        (raw_file({"t": OK | {"more": 1}}, F4), ["'t'", "exactly"]),
        (raw_file({"t": OK | {"dtype": "F33"}}, F4), ["'t'", "'F33'"]),
        (raw_file({"t": OK | {"dtype": []}}, F4), ["'t'", "dtype"]),
        (raw_file({"t": OK | {"shape": [4.0]}}, F4), ["'t'", "shape"]),
        (raw_file({"t": OK | {"shape": [-4]}}, F4), ["'t'", "shape"]),
        (raw_file({"t": OK | {"shape": [True, 4]}}, F4), ["'t'", "shape"]),
        (raw_file({"t": OK | {"shape": [0]}}, F4), ["'t'", "shape"]),
        (raw_file({"t": OK | {"shape": [1 << 40, 1 << 40]}}, F4), ["'t'", "2^63"]),
        (raw_file({"t": OK | {"shape": [1] * 65}}, F4), ["'t'", "shape"]),
        (raw_file({"t": OK | {"shape": [5]}}, F4), ["'t'", "span 16 bytes"]),
        (raw_file({"t": OK | {"data_offsets": [0, 17]}}, F4), ["'t'", "leave"]),
        (raw_file({"t": OK | {"data_offsets": [16, 0]}}, F4), ["'t'", "data_offsets"]),
        (raw_file({"t": OK | {"data_offsets": [0]}}, F4), ["'t'", "pair"]),
        (raw_file({"t": OK, "u": OK}, F4), ["overlaps"]),
        (raw_file({"t": entry("F32", [4], 4, 20)}, bytes(20)), ["'t'", "gap"]),
        (raw_file({"t": OK}, bytes(20)), ["end at byte"]),
        (raw_file({"__metadata__": {"a": 1}, "t": OK}, F4), ["__metadata__"]),
        (raw_file({"__metadata__": [], "t": OK}, F4), ["__metadata__"]),
    ],
)  # fmt: skip
def test_hostile_headers_are_refused(tmp_path: Path, raw: bytes, words: list[str]) -> None:
    message = refusal(tmp_path, raw)
    assert all(word in message for word in words), message


VALID = raw_file(
    {
        "__metadata__": {"k": "v"},
        "a": entry("F32", [2, 2], 0, 16),
        "b": entry("BF16", [3], 16, 22),
        "c": entry("I64", [1], 22, 30),
    },
    bytes(range(30)),
)
PIECES = [
    b'"a"',
    b"[",
    b"]",
    b"{",
    b"}",
    b"-1",
    b"1e9",
    b"9" * 25,
    b"null",
    b"true",
    b'"F16"',
    b",",
    b":",
    b"\\ud800",
    b"\xff",
]


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    raw = bytearray(VALID)
    for _ in range(draw(st.integers(1, 5))):
        position = draw(st.integers(0, len(raw)))
        kind = draw(st.sampled_from(["byte", "piece", "drop", "copy"]))
        if kind == "byte" and position < len(raw):
            raw[position] = draw(st.integers(0, 255))
        elif kind == "piece":
            piece = draw(st.sampled_from(PIECES))
            raw[position : position + draw(st.integers(0, 4))] = piece
        elif kind == "drop":
            del raw[position : position + draw(st.integers(1, 20))]
        else:
            start = draw(st.integers(0, len(raw)))
            raw[position:position] = raw[start : start + 30]
    if draw(st.booleans()):
        # A header length that fits lets the damage inside the header be seen.
        end = raw.rfind(b"}") + 1
        raw[:8] = struct.pack("<Q", max(end - 8, 0))
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.booleans()) else raw)


@settings(max_examples=500, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=mutants())
def test_mutants_open_or_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / SINGLE).write_bytes(raw)
    try:
        store = SafetensorsStore.open(tmp_path)
    except PootError as refused:
        note(str(refused))
        return
    for name in store.names():
        try:
            tensor = store.tensor(name)
        except Unsupported:
            continue
        assert tensor.data.nbytes == np.prod(tensor.shape, dtype=object) * tensor.format.nbytes


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    for length in range(len(VALID)):
        refusal(tmp_path, VALID[:length])

"""GGUF: valid files read back, hostile ones refused by field and offset."""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

import numpy as np
import pytest

from poot_executor.errors import CheckpointError, Unsupported, WeightError
from poot_executor.formats import FORMATS
from poot_llm.weights.gguf import GgufFile

_SPEC = importlib.util.spec_from_file_location("tiny", Path(__file__).parent / "fixtures" / "tiny.py")
assert _SPEC is not None and _SPEC.loader is not None
tiny = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny)
w = tiny.load_fixture("gguf_writer")

F32_4 = np.arange(4, dtype="<f4").tobytes()


def open_bytes(folder: Path, raw: bytes) -> GgufFile:
    path = folder / "x.gguf"
    path.write_bytes(raw)
    return GgufFile.open(path)


def refusal(folder: Path, raw: bytes) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_bytes(folder, raw)
    assert "x.gguf" in str(caught.value)
    return str(caught.value)


def one_tensor(info: bytes, data: bytes = F32_4, pairs: bytes = b"", count: int = 0) -> bytes:
    return w.pad(w.header(1, count) + pairs + info) + data


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_keeps_its_types(tmp_path: Path, version: int) -> None:
    metadata = {
        "a.bool": True, "a.int": 7, "a.big": -(1 << 40), "a.float": 0.5, "a.text": "Grüße 🌍", "a.none": "",
        "a.texts": ["x", "", "日本"], "a.nested": [["p"], ["q", "r"]], "a.empty": [],
        "a.numbers": np.array([1, -2, 3], np.int32), "a.scores": np.array([0.25, -1e9], np.float32),
        "a.flags": np.array([True, False]), "a.bytes": np.arange(3, dtype=np.uint8),
        "a.wide": np.array([1 << 63], np.uint64), "a.double": np.array([0.1]),
    }  # fmt: skip
    file = open_bytes(tmp_path, w.gguf_bytes(metadata, [], version=version))
    assert file.version == version and file.names() == ()
    assert list(file.metadata) == list(metadata)
    for key, value in metadata.items():
        read = file.metadata[key]
        assert type(read) is type(value), key
        if isinstance(value, np.ndarray):
            assert read.dtype == value.dtype and np.array_equal(read, value) and not read.flags.writeable
        else:
            assert read == value


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_format_reads_back(tmp_path: Path, name: str) -> None:
    seed = int.from_bytes(np.random.default_rng().bytes(4), "little")
    print(f"seed {seed}")
    values = np.random.default_rng(seed).normal(size=(3, 5, 64)).astype(np.float32)
    raw = w.quantize(values, name)
    file = open_bytes(tmp_path, w.gguf_bytes({}, [("pad", (1,), "f32", F32_4[:4]), ("t", values.shape, name, raw)]))
    tensor = file.tensor("t")
    assert tensor.shape == (3, 5, 64) and tensor.format is FORMATS[name] and bytes(tensor.data) == raw
    assert not tensor.data.flags.writeable and not tensor.data.flags.owndata
    decoded = tensor.format.decode(tensor.data.reshape(15, -1)).reshape(values.shape)
    # A block's step is at most its range (under 10 for these draws) over the number of steps; f16 fields add 2^-10.
    step = {"f32": 0.0, "f16": 2**-9, "bf16": 2**-6, "q8_0": 0.05, "q5_0": 0.4, "q5_1": 0.3, "q4_0": 0.8, "q4_1": 0.6}[
        name
    ]
    assert np.abs(decoded - values).max() <= step
    assert file.type_name("t") == name


def test_stored_bytes_stay_mapped(tmp_path: Path) -> None:
    path = tiny.write_tiny_llama_gguf(tmp_path / "tiny.gguf")
    file = GgufFile.open(path)
    raw = path.read_bytes()
    total = 0
    for name in file.names():
        tensor = file.tensor(name)
        assert raw.find(bytes(tensor.data)) >= 0
        total += tensor.data.nbytes
        rows = int(np.prod(tensor.shape[:-1]))
        assert tensor.data.nbytes == rows * tensor.format.row_bytes(tensor.shape[-1])
    assert file.tensor("blk.1.ffn_down.weight").shape == (64, 96)
    assert 0 < total < len(raw)


def test_tiny_checkpoint_depends_on_its_seed_alone(tmp_path: Path) -> None:
    one, two, other = (tiny.write_tiny_llama_gguf(tmp_path / f"{i}.gguf", seed=s) for i, s in enumerate((3, 3, 4)))
    assert one.read_bytes() == two.read_bytes() != other.read_bytes()
    untied = GgufFile.open(tiny.write_tiny_llama_gguf(tmp_path / "u.gguf", format="f16", tied=False))
    assert untied.type_name("output.weight") == "f16"


def test_unknown_tensor_and_undecoded_type_are_refused_by_name(tmp_path: Path) -> None:
    file = open_bytes(tmp_path, w.gguf_bytes({}, [("k", (2, 256), "q4_k", bytes(288)), ("t", (4,), "f32", F32_4)]))
    assert file.names() == ("k", "t") and file.type_name("k") == "q4_k"
    assert bytes(file.tensor("t").data) == F32_4
    with pytest.raises(Unsupported, match=r"q4_k.*'k'.*x\.gguf.*poot decodes"):
        file.tensor("k")
    with pytest.raises(WeightError, match="'nothing'"):
        file.tensor("nothing")


def test_absent_directory_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        GgufFile.open(tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match="not a plain file"):
        GgufFile.open(tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot be read|no such file"):
        GgufFile.open("nul\0name.gguf")
    assert "0 bytes" in refusal(tmp_path, b"")


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"GG", "magic"),
        (b"PK\x03\x04 and so on, a zip file", "magic"),
        (b"GGUF\x03", "version"),
        (w.header(0, 0, 1), "version is 1|versions 2 and 3"),
        (w.header(0, 0, 4), "is 4"),
        (w.header(0, 0, 3 << 24), "big-endian"),
        (w.header(0, 1 << 62), "metadata count"),
        (w.header(1 << 62, 0), "tensor count"),
        (w.header(2, 0) + w.tensor_info("t", (1,), 0, 0), "tensor count"),
    ],
)
def test_foreign_headers_are_refused(tmp_path: Path, raw: bytes, words: str) -> None:
    message = refusal(tmp_path, raw)
    assert any(word in message for word in words.split("|")), message


def pairs_only(*pairs: bytes) -> bytes:
    return w.pad(w.header(0, len(pairs)) + b"".join(pairs)) + bytes(64)


def array(type_id: int, count: int, raw: bytes = b"") -> bytes:
    return struct.pack("<IQ", type_id, count) + raw


def nested(depth: int) -> bytes:
    return array(4, 0) if depth == 0 else array(9, 1, nested(depth - 1))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (pairs_only(w.pair("k", 1), w.pair("k", 2)), ["'k'", "twice"]),
        (pairs_only(w.pair("", 1)), ["empty"]),
        (pairs_only(w.pair(b"\xff\xfe", 1)), ["metadata key 0", "UTF-8"]),
        (pairs_only(w.raw_pair("k", 8, struct.pack("<Q", 1 << 40))), ["'k'", "at byte", "remain"]),
        (pairs_only(w.raw_pair("k", 8, struct.pack("<Q", (1 << 64) - 1))), ["'k'", "remain"]),
        (pairs_only(w.raw_pair("k", 8, w.text(b"\x80"))), ["'k'", "UTF-8"]),
        (pairs_only(w.raw_pair("k", 13, b"")), ["'k'", "value type 13"]),
        (pairs_only(w.raw_pair("k", 7, b"\x02")), ["'k'", "bool"]),
        (pairs_only(w.raw_pair("k", 9, array(13, 1))), ["'k'", "value type 13"]),
        (pairs_only(w.raw_pair("k", 9, array(4, 1 << 61))), ["'k'", "remain"]),
        (pairs_only(w.raw_pair("k", 9, array(8, 1 << 61))), ["'k'", "remain"]),
        (pairs_only(w.raw_pair("k", 9, array(9, 1 << 61))), ["'k'", "remain"]),
        (pairs_only(w.raw_pair("k", 9, array(8, 2, w.text("a") + struct.pack("<Q", 999)))), ["'k'[1]", "999"]),
        (pairs_only(w.raw_pair("k", 9, nested(5))), ["'k'", "deep"]),
        (pairs_only(w.pair("general.alignment", 0)), ["general.alignment", "power of two"]),
        (pairs_only(w.pair("general.alignment", 48)), ["general.alignment", "power of two"]),
        (pairs_only(w.pair("general.alignment", "32")), ["general.alignment", "power of two"]),
        (pairs_only(w.pair("general.alignment", True)), ["general.alignment", "power of two"]),
    ],
)
def test_hostile_metadata_is_refused_by_key(tmp_path: Path, raw: bytes, words: list[str]) -> None:
    message = refusal(tmp_path, raw)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (one_tensor(w.tensor_info("t", (4,), 99, 0)), ["'t'", "type id 99"]),
        (one_tensor(w.tensor_info("t", (4,), 4, 0)), ["'t'", "type id 4"]),
        (one_tensor(w.tensor_info("t", (4,), 0, 8)), ["'t'", "offset 8", "alignment 32"]),
        (one_tensor(w.tensor_info("t", (4,), 0, 32)), ["'t'", "leaves the file"]),
        (one_tensor(w.tensor_info("t", (5,), 0, 0)), ["'t'", "leaves the file"]),
        (one_tensor(w.tensor_info("t", (4,), 0, (1 << 64) - 32)), ["'t'", "leaves the file"]),
        (one_tensor(w.tensor_info("t", (4, 0), 0, 0)), ["'t'", "zero"]),
        (one_tensor(w.tensor_info("t", (1 << 32, 1 << 32), 0, 0)), ["'t'", "2^63"]),
        (one_tensor(w.tensor_info("t", (1 << 63, 2), 0, 0)), ["'t'", "2^63"]),
        (one_tensor(w.tensor_info("t", (), 0, 0)), ["'t'", "0 dimensions"]),
        (one_tensor(w.tensor_info("t", (1,) * 5, 0, 0)), ["'t'", "5 dimensions"]),
        (one_tensor(w.text("t") + struct.pack("<I", 1 << 31) + bytes(99)), ["'t'", "dimensions"]),
        (one_tensor(w.tensor_info("", (4,), 0, 0)), ["no name"]),
        (one_tensor(w.tensor_info(b"\xc3", (4,), 0, 0)), ["tensor 0", "UTF-8"]),
        (one_tensor(w.tensor_info("t", (2, 16), 2, 0)), ["'t'", "q4_0", "32 wide"]),
        (one_tensor(struct.pack("<Q", 1 << 50) + bytes(40)), ["tensor 0", "remain"]),
    ],
)
def test_hostile_tensors_are_refused_by_name(tmp_path: Path, raw: bytes, words: list[str]) -> None:
    message = refusal(tmp_path, raw)
    assert all(word in message for word in words), message


def test_overlap_and_duplicates_are_refused(tmp_path: Path) -> None:
    def two(first: bytes, second: bytes) -> bytes:
        return w.pad(w.header(2, 0) + first + second) + bytes(96)

    message = refusal(tmp_path, two(w.tensor_info("a", (9,), 0, 0), w.tensor_info("b", (4,), 0, 32)))
    assert "'b'" in message and "overlaps tensor 'a'" in message
    message = refusal(tmp_path, two(w.tensor_info("a", (4,), 0, 0), w.tensor_info("b", (1,), 0, 0)))
    assert "overlaps" in message
    message = refusal(tmp_path, two(w.tensor_info("a", (4,), 0, 0), w.tensor_info("a", (4,), 0, 32)))
    assert "'a'" in message and "twice" in message
    # Types that poot does not decode take part too.
    message = refusal(tmp_path, two(w.tensor_info("k", (256,), 12, 0), w.tensor_info("b", (4,), 0, 32)))
    assert "'k'" in message


def test_alignment_is_honoured(tmp_path: Path) -> None:
    tensors = [("a", (1,), "f32", F32_4[:4]), ("b", (4,), "f32", F32_4)]
    file = open_bytes(tmp_path, w.gguf_bytes({"general.alignment": 128}, tensors, alignment=128))
    assert bytes(file.tensor("b").data) == F32_4
    assert "alignment 64" in refusal(tmp_path, w.gguf_bytes({"general.alignment": 64}, tensors, alignment=32))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "t.tokens": ["a", "b"], "t.scores": np.zeros(2, np.float32)}
    raw = w.gguf_bytes(metadata, [("a", (4,), "f32", F32_4), ("b", (1, 32), "q8_0", bytes(34))])
    assert len(open_bytes(tmp_path, raw).names()) == 2
    for length in range(len(raw)):
        refusal(tmp_path, raw[:length])


def test_claims_do_not_allocate(tmp_path: Path) -> None:
    import tracemalloc

    claims = [
        pairs_only(w.raw_pair("k", 8, struct.pack("<Q", 1 << 33))),
        pairs_only(w.raw_pair("k", 9, array(6, 1 << 33))),
        pairs_only(w.raw_pair("k", 9, array(8, 1 << 33))),
        one_tensor(w.tensor_info("t", (1 << 20, 1 << 20), 0, 0)),
    ]
    for raw in claims:
        tracemalloc.start()
        refusal(tmp_path, raw)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1 << 20

"""Tokenizers: ids equal the reference's, text survives the way back, and typed text is never control."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poot_executor.errors import CheckpointError, PootError, RequestError, Unsupported
from poot_llm.detokenizer import Detokenizer
from poot_llm.pull import resolve
from poot_llm.tokenizer import Tokenizer
from poot_llm.weights.gguf import GgufFile

_SPEC = importlib.util.spec_from_file_location("tiny", Path(__file__).parent / "fixtures" / "tiny.py")
assert _SPEC is not None and _SPEC.loader is not None
tiny = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny)
w = tiny.load_fixture("gguf_writer")
REFERENCE = Path(__file__).parents[3] / "references" / "smollm2_tokenizer.json"

NASTY = [
    "", " ", "\n", "\t\t  \n\n", "a", " a", "a  b   c", "12345 67", "x=1.5e-3", "don't I'LL we've", "naïve café",
    "日本語 テキスト", "한국어", "👩‍👩‍👧‍👦🏽 🇫🇷", "e\u0301 vs \u00e9", "\u202eright\u202c", "\ufeffbom", "\U0010fffe",
    "<|im_end|>", "<|im_start|>system\nx<|im_end|>", "<|im_end", "|>", "<<|im_end|>|>", "a\r\nb", "\u00a0\u3000x",
    "the quick brown fox", "ǅ ß ﬁ", "٣٤٥ ½ Ⅷ", "\x7f\x80\x9f", "\U0001d54f" * 5,
]  # fmt: skip


def gguf(folder: Path, metadata: dict[str, Any]) -> GgufFile:
    path = folder / "t.gguf"
    path.write_bytes(w.gguf_bytes(metadata, []))
    return GgufFile.open(path)


def tiny_tokenizer(folder: Path, **changes: Any) -> Tokenizer:
    metadata = tiny.tokenizer_metadata(320)
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer.from_gguf(gguf(folder, {k: v for k, v in metadata.items() if v is not None}))


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    try:
        path = resolve("smollm2")
    except RequestError as missing:
        pytest.skip(str(missing))
    return Tokenizer.from_gguf(GgufFile.open(path))


def test_ids_equal_the_recorded_reference(smollm2: Tokenizer) -> None:
    cases = json.loads(REFERENCE.read_text("utf-8"))["cases"]
    assert len(cases) > 200
    for case in cases:
        text = case["text"]
        assert smollm2.encode(text, add_special=False, parse_special=True) == case["ids"], text
        assert smollm2.encode(text, add_special=False, parse_special=False) == case["ids_plain"], text
        # The reference decodes back to the text, or to what it says instead (bytes that the vocabulary lacks).
        expected = case.get("decoded", text)
        assert smollm2.decode(case["ids"], skip_special=False) == expected
        assert smollm2.decode(case["ids_plain"]) == expected


def test_streams_of_the_reference_corpus(smollm2: Tokenizer) -> None:
    for case in json.loads(REFERENCE.read_text("utf-8"))["cases"]:
        stream = Detokenizer(smollm2, skip_special=False)
        parts = [stream.push(token) for token in case["ids"]] + [stream.finish()]
        assert "".join(parts) == case.get("decoded", case["text"])
        if "\ufffd" not in case.get("decoded", case["text"]):
            assert not any("\ufffd" in part for part in parts)


def test_smollm2_ends_and_size(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_id, smollm2.eos_ids, smollm2.adds_bos) == (1, frozenset({2}), False)
    assert smollm2.vocabulary_size == 49152
    assert smollm2.encode("Hi", add_special=True, parse_special=False) == [26843]
    assert len(smollm2.control_ids) == 17 and "<|im_end|>" in smollm2.control_texts
    assert smollm2.token_text(2) == "<|im_end|>"


@pytest.mark.parametrize(
    "pre", ["smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o", "default", "deepseek-r1-qwen"]
)
def test_round_trips_and_control(tmp_path: Path, pre: str) -> None:
    tokenizer = tiny_tokenizer(tmp_path, pre=pre)
    import unicodedata

    for text in NASTY:
        expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        plain = tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(plain) == expected
        assert not tokenizer.control_ids & set(plain)
        parsed = tokenizer.encode(text, add_special=False, parse_special=True)
        assert tokenizer.decode(parsed, skip_special=False) == expected
        assert (parsed == plain) == ("<|im_end|>" not in text and "<|im_start|>" not in text)
    marked = tokenizer.encode("<|im_start|>a<|im_end|>", add_special=False, parse_special=True)
    assert (marked[0], marked[-1]) == (1, 2) and tokenizer.decode(marked) == "a"


def oracle_bpe(word: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-level BPE straight from its definition: merge the best-ranked pair, leftmost first, until none is left."""
    while len(word) > 1:
        best = min(range(len(word) - 1), key=lambda i: ranks.get((word[i], word[i + 1]), 1 << 30))
        pair = (word[best], word[best + 1])
        if pair not in ranks:
            return word
        out: list[str] = []
        i = 0
        while i < len(word):
            if tuple(word[i : i + 2]) == pair:
                out.append("".join(pair))
                i += 2
            else:
                out.append(word[i])
                i += 1
        word = out
    return word


def test_merges_equal_the_definition(tmp_path: Path) -> None:
    """Words of letters only, each with one space before it: every pre-tokenizer cuts those alike."""
    tokens, merges = tiny.tiny_vocabulary(320)
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
    alphabet = tiny.byte_alphabet()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    tokenizer = tiny_tokenizer(tmp_path)
    for _ in range(200):
        words = ["".join(rng.choices("abdefhnorstu éß", k=rng.randint(1, 12))).replace(" ", "") for _ in range(5)]
        text = "".join(f" {word}" for word in words if word)
        spelled = ["".join(alphabet[byte] for byte in f" {word}".encode()) for word in words if word]
        expected = [ids[piece] for word in spelled for piece in oracle_bpe(list(word), ranks)]
        assert tokenizer.encode(text, add_special=False, parse_special=False) == expected, text


def test_how_each_name_cuts(tmp_path: Path) -> None:
    """Pieces are told apart by a vocabulary whose only merges join pairs of the text's own characters."""

    def pieces(pre: str, text: str) -> list[str]:
        from poot_llm.pre_tokenizers import cut_named

        return [text[a:b] for _, (a, b) in cut_named(pre).pre_tokenizer().pre_tokenize_str(text)]

    text = "It's 1234  a\n\nÉtéABCdef!!\n"
    assert pieces("smollm", text) == [
        "It",
        "'s",
        " ",
        "1",
        "2",
        "3",
        "4",
        " ",
        " a",
        "\n",
        "\n",
        "ÉtéABCdef",
        "!!",
        "\n",
    ]
    assert pieces("gpt-2", text) == ["It", "'s", " 1234", " ", " a", "\n", "\n", "ÉtéABCdef", "!!", "\n"]
    assert pieces("llama-bpe", text) == ["It", "'s", " ", "123", "4", " ", " a", "\n\n", "ÉtéABCdef", "!!\n"]
    assert pieces("qwen2", text) == ["It", "'s", " ", "1", "2", "3", "4", " ", " a", "\n\n", "ÉtéABCdef", "!!\n"]
    assert pieces("gpt-4o", text) == ["It's", " ", "123", "4", " ", " a", "\n\n", "Été", "ABCdef", "!!\n"]
    assert pieces("tekken", text) == ["It", "'s", " ", "1", "2", "3", "4", " ", " a", "\n\n", "Été", "ABCdef", "!!\n"]
    assert pieces("default", "ab, 12345") == ["ab", ",", " ", "123", "45"]


def test_bos_comes_exactly_once(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path, add_bos_token=True)
    assert tokenizer.adds_bos
    once = tokenizer.encode("the fox", add_special=True, parse_special=True)
    assert once[0] == 1 and 1 not in once[1:]
    assert tokenizer.encode("<|im_start|>the fox", add_special=True, parse_special=True) == once
    typed = tokenizer.encode("<|im_start|>the fox", add_special=True, parse_special=False)
    assert typed[0] == 1 and 1 not in typed[1:] and tokenizer.decode(typed) == "<|im_start|>the fox"
    assert tokenizer.encode("", add_special=True, parse_special=True) == [1]
    assert tiny_tokenizer(tmp_path, pre="llama-bpe", add_bos_token=None).adds_bos
    assert not tiny_tokenizer(tmp_path, pre="llama-bpe").adds_bos
    assert not tiny_tokenizer(tmp_path, add_bos_token=None).adds_bos


def test_eos_ids_are_a_union(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path, eot_token_id=0, eom_token_id=10)
    assert tokenizer.eos_ids == {0, 2, 10}
    # An end id is control whatever type the file gives it.
    assert 10 in tokenizer.control_ids
    assert tiny_tokenizer(tmp_path, eos_token_id=None).eos_ids == frozenset()


def test_user_defined_tokens_stay_whole(tmp_path: Path) -> None:
    metadata = tiny.tokenizer_metadata(320)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<think>", "never", ""]
    types = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = np.concatenate([types, np.array([4, 5, 1], np.int32)])
    tokenizer = Tokenizer.from_gguf(gguf(tmp_path, metadata))
    for parse in (True, False):
        ids = tokenizer.encode("a<think>never", add_special=False, parse_special=parse)
        assert 320 in ids and 321 not in ids and tokenizer.decode(ids) == "a<think>never"
    assert tokenizer.decode([321, 322]) == "never"


def test_a_whole_piece_in_the_vocabulary_is_no_way_to_control(tmp_path: Path) -> None:
    """llama-bpe takes a piece that is in the vocabulary without merging: a control token must not be found so."""
    metadata = tiny.tokenizer_metadata(320, "llama-bpe")
    metadata["tokenizer.ggml.tokens"] = ["stop", *metadata["tokenizer.ggml.tokens"][1:]]
    tokenizer = Tokenizer.from_gguf(gguf(tmp_path, metadata))
    assert 0 not in tokenizer.encode("stop", add_special=False, parse_special=False)
    assert tokenizer.encode("stop", add_special=False, parse_special=True) == [0]


SPM = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
WORDS = [
    "▁",
    "t",
    "h",
    "e",
    "▁t",
    "he",
    "▁the",
    "s",
    ">",
    "<",
    "<s",
    "s>",
    "▁▁",
    "▁▁▁▁",
    "lo",
    "l",
    "o",
    "hel",
    "hello",
]


def spm_metadata(**changes: Any) -> dict[str, Any]:
    tokens = [*SPM, *WORDS]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": np.array([0.0] * len(SPM) + [-float(i) for i in range(len(WORDS))], np.float32),
        "token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(WORDS), np.int32),
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    } | changes  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def oracle_spm(text: str, scores: dict[str, float]) -> list[str]:
    """Sentencepiece's BPE from its definition: join the neighbours whose joined token scores best, leftmost first."""
    word = list(text.replace(" ", "▁"))
    while True:
        joins = [(-scores[word[i] + word[i + 1]], i) for i in range(len(word) - 1) if word[i] + word[i + 1] in scores]
        if not joins:
            return word
        i = min(joins)[1]
        word[i : i + 2] = [word[i] + word[i + 1]]


def test_sentencepiece_ids_equal_the_definition(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(gguf(tmp_path, spm_metadata()))
    ids = {token: index for index, token in enumerate([*SPM, *WORDS])}
    scores = {token: -float(i) for i, token in enumerate(WORDS)}
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for text in [
        "the",
        " the",
        "the  the",
        "hello",
        *("".join(rng.choices("the lo", k=rng.randint(1, 9))) for _ in range(200)),
    ]:
        if "   " in f" {text}":
            continue  # runs of spaces have two equal joins, and sentencepiece and the reference's merges may differ
        expected = []
        for piece in oracle_spm(f" {text}", scores):
            expected += [ids[piece]] if piece in ids else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
        assert tokenizer.encode(text, add_special=False, parse_special=False) == expected, text


def test_sentencepiece_control_bytes_and_spaces(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(gguf(tmp_path, spm_metadata()))
    assert tokenizer.adds_bos and tokenizer.bos_id == 1
    for text in NASTY:
        ids = tokenizer.encode(text, add_special=True, parse_special=False)
        assert ids[0] == 1 and not {0, 1, 2} & set(ids[1:])
        assert tokenizer.decode(ids) == text.replace("▁", " ")
    assert 1 not in tokenizer.encode("<s>", add_special=False, parse_special=False)
    assert tokenizer.encode("<s>the", add_special=True, parse_special=True)[0:1] == [1]
    the = tokenizer.encode("the", add_special=False, parse_special=False)
    assert tokenizer.decode(the) == "the" and tokenizer.decode(the, continues=True) == " the"
    bare = Tokenizer.from_gguf(gguf(tmp_path, spm_metadata(add_space_prefix=False)))
    assert bare.decode(bare.encode(" the", add_special=False, parse_special=False)) == " the"
    # Text that spells a byte token is text.
    assert tokenizer.decode(tokenizer.encode("<0x41>", add_special=False, parse_special=False)) == "<0x41>"


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"model": "t5"}, Unsupported, "'t5'"),
        ({"pre": "nobody"}, Unsupported, "'nobody'"),
        ({"model": None}, CheckpointError, "model"),
        ({"model": 3}, CheckpointError, "model"),
        ({"tokens": None}, CheckpointError, "tokens"),
        ({"tokens": []}, CheckpointError, "not a token of 0"),
        ({"tokens": np.zeros(3)}, CheckpointError, "tokens"),
        ({"tokens": ["a", "a"], "token_type": None, "merges": ["a a"]}, CheckpointError, "token_id|tokens[1]"),
        ({"merges": None}, CheckpointError, "merges"),
        ({"merges": ["ab"]}, CheckpointError, "merges[0]"),
        ({"merges": ["a b c"]}, CheckpointError, "merges[0]"),
        ({"merges": ["a 日"]}, CheckpointError, "merges[0]"),
        ({"merges": [["a"]]}, CheckpointError, "merges[0]"),
        ({"token_type": np.zeros(320, np.int32)}, CheckpointError, "token_type[0]"),
        ({"token_type": np.ones(3, np.int32)}, CheckpointError, "token_type"),
        ({"token_type": np.ones(320, np.float32)}, CheckpointError, "token_type"),
        ({"eos_token_id": 320}, CheckpointError, "eos_token_id"),
        ({"eos_token_id": -1}, CheckpointError, "eos_token_id"),
        ({"bos_token_id": "1"}, CheckpointError, "bos_token_id"),
        ({"bos_token_id": None, "add_bos_token": True}, CheckpointError, "add_bos_token"),
        ({"add_bos_token": 1}, CheckpointError, "add_bos_token"),
    ],
)
def test_bad_metadata_is_refused_by_key(
    tmp_path: Path, changes: dict[str, Any], kind: type[PootError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        tiny_tokenizer(tmp_path, **changes)
    assert any(word in str(caught.value) for word in words.split("|")), caught.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scores": None}, "scores"),
        ({"scores": np.zeros(3, np.float32)}, "scores"),
        ({"scores": np.full(len(SPM) + len(WORDS), np.nan, np.float32)}, "scores"),
        ({"tokens": [*SPM, *WORDS[:-1], "x" * 10_000]}, "characters"),
    ],
)
def test_bad_sentencepiece_metadata_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        Tokenizer.from_gguf(gguf(tmp_path, spm_metadata(**changes)))


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode("a\ud800b", add_special=False, parse_special=False)
    for token in (-1, 1 << 31, 1 << 70):
        with pytest.raises(RequestError, match="token id"):
            tokenizer.decode([token])
    assert tokenizer.decode([5000]) == ""


def test_half_a_character_is_held_back(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(tmp_path)
    ids = tokenizer.encode("é👩‍👧!", add_special=False, parse_special=False)
    stream = Detokenizer(tokenizer)
    seen = [stream.push(token) for token in ids]
    assert len(ids) > 10 and "".join(seen) == "é👩‍👧!" and stream.finish() == ""
    assert [part for part in seen if part] == ["é", "👩", "\u200d", "👧", "!"]
    cut = Detokenizer(tokenizer)
    assert [cut.push(token) for token in ids[:3]] == ["", "é", ""] and cut.finish() == "\ufffd"
    byte = {value: index + 3 for index, value in enumerate(range(256))}
    # A byte that nothing can complete is given up at once, and what follows it is not lost.
    broken = Detokenizer(tokenizer)
    assert broken.push(byte[0xE9]) + broken.push(byte[0x41]) == "\ufffdA"


def test_streams_equal_decode_on_random_ids(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for tokenizer in (tiny_tokenizer(tmp_path), Tokenizer.from_gguf(gguf(tmp_path, spm_metadata()))):
        for _ in range(300):
            ids = rng.choices(range(tokenizer.vocabulary_size), k=rng.randint(0, 40))
            skip = rng.random() < 0.5
            stream = Detokenizer(tokenizer, skip_special=skip)
            joined = "".join(map(stream.push, ids)) + stream.finish()
            assert joined == tokenizer.decode(ids, skip)
            raw = b"".join(tokenizer.piece(token, skip_special=skip) for token in ids)
            strips = tokenizer.spelling.strips_first_space
            assert joined == (raw.removeprefix(b" ") if strips else raw).decode("utf-8", "replace")

"""Tokenizers from tokenizer.json: ids equal the package's own, with control tokens only where text is parsed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from poot_executor.errors import CheckpointError, PootError, Unsupported
from poot_llm.tokenizer import Tokenizer

_SPEC = importlib.util.spec_from_file_location("tiny", Path(__file__).parent / "fixtures" / "tiny.py")
assert _SPEC is not None and _SPEC.loader is not None
tiny = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tiny)

TEXTS = [
    "", " ", "the fox", "  the  fox ", "a<|im_end|>b", "x <think> y", "<|late|> z", "é👩‍👧", "12 34", "a\n\nb",
    "<|im_start|>user\nhi<|im_end|>\n", "xMASKx MASK.", "<|r|>  padded  <|r|>  ",
]  # fmt: skip


def byte_level() -> Backend:
    """Byte-level BPE: controls inside the vocabulary and after it, one that swallows spaces, one that wants a word."""
    tokens, merges = tiny.tiny_vocabulary(320)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tiny.CONTROL])
    backend.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    backend.add_special_tokens(
        [
            AddedToken("<|late|>", normalized=False, special=True),
            AddedToken("<|r|>", rstrip=True, lstrip=True, normalized=False, special=True),
            AddedToken("MASK", single_word=True, normalized=False, special=True),
        ]
    )
    start = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    backend.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), start])
    return backend


def sentencepiece(*, prepend: bool) -> Backend:
    words = ["▁", "t", "h", "e", "▁t", "he", "▁the", "s", ">", "<", "<s", "f", "o", "x"]
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words])}
    merges = [("h", "e"), ("▁", "t"), ("▁t", "he"), ("<", "s"), ("<s", ">")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepend:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(steps)
    controls = ("<unk>", "<s>", "</s>")
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return backend


def write(folder: Path, backend: Backend, own: dict[str, Any] | None = None, **files: Any) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    if own is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(own))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize(
    "make", [byte_level, lambda: sentencepiece(prepend=True), lambda: sentencepiece(prepend=False)]
)
def test_ids_and_text_equal_the_package(tmp_path: Path, make: Any) -> None:
    backend = make()
    tokenizer = Tokenizer.from_directory(write(tmp_path, backend))
    for text in TEXTS:
        ids = backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False, parse_special=True) == ids, text
        # The package puts the prefix before a text that already begins with it, too; poot has it exactly once.
        whole = backend.encode(text).ids
        if whole[:2] == [1, 1]:
            whole = whole[1:]
        assert tokenizer.encode(text, add_special=True, parse_special=True) == whole, text
        assert tokenizer.decode(ids) == backend.decode(ids), text
        assert tokenizer.decode(ids, skip_special=False) == backend.decode(ids, skip_special_tokens=False), text
        plain = tokenizer.encode(text, add_special=False, parse_special=False)
        assert not tokenizer.control_ids & set(plain), text
        backend.encode_special_tokens = True
        if "<s" not in text and "MASK" not in text:
            assert plain == backend.encode(text, add_special_tokens=False).ids, text
        backend.encode_special_tokens = False


def test_merges_do_not_lead_to_control(tmp_path: Path) -> None:
    """The file's merges spell <s> from the letters of <, s and >."""
    backend = sentencepiece(prepend=True)
    tokenizer = Tokenizer.from_directory(write(tmp_path, backend))
    assert 1 not in tokenizer.encode("<s>", add_special=False, parse_special=False)
    assert tokenizer.decode(tokenizer.encode("a<s>b", add_special=False, parse_special=False)) == "a<s>b"
    assert tokenizer.encode("<s>", add_special=False, parse_special=True) == [1]


def test_ends_come_from_every_file(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}
    folder = write(
        tmp_path, byte_level(), config,
        config={"eos_token_id": 0, "text_config": {"eos_token_id": [7]}}, generation_config={"eos_token_id": [2, 0]},
    )  # fmt: skip
    tokenizer = Tokenizer.from_directory(folder)
    assert tokenizer.bos_id == 1 and tokenizer.adds_bos and tokenizer.eos_ids == {0, 2, 7}
    assert tokenizer.vocabulary_size == 324
    for value, adds in ((True, True), (False, False)):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": value}))
        assert Tokenizer.from_directory(folder).adds_bos is adds
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"add_eos_token": True}))
    assert Tokenizer.from_directory(folder).encode("", add_special=True, parse_special=False) == [1, 2]


def test_the_configuration_can_make_a_token_control(tmp_path: Path) -> None:
    backend = byte_level()
    think = backend.token_to_id("<think>")
    folder = write(tmp_path, backend, {"added_tokens_decoder": {str(think): {"content": "<think>", "special": True}}})
    tokenizer = Tokenizer.from_directory(folder)
    assert think not in tokenizer.encode("<think>", add_special=False, parse_special=False)
    assert tokenizer.encode("<think>", add_special=False, parse_special=True) == [think]


def broken(path: list[Any], value: Any) -> str:
    tree = json.loads(byte_level().to_str())
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(tree)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("", CheckpointError, "JSON"),
        ("[]", CheckpointError, "object"),
        ("{}", PootError, "tokenizer.json"),
        (broken(["model"], None), CheckpointError, "model"),
        (broken(["model", "type"], "Magic"), CheckpointError, "not usable"),
        (broken(["model", "merges"], [["zz", "yy"]]), CheckpointError, "not usable"),
        (broken(["added_tokens"], 3), CheckpointError, "added_tokens"),
        (broken(["added_tokens", 0], {"id": "0"}), CheckpointError, "added_tokens[0]"),
        (broken(["added_tokens", 4, "id"], 4000), CheckpointError, "4000"),
        (broken(["decoder"], None), Unsupported, "decoder"),
        (broken(["decoder"], {"type": "CTC"}), Unsupported, "CTC"),
        (broken(["post_processor"], {"type": "Other"}), Unsupported, "Other"),
        (broken(["post_processor", "processors", 1, "single"], [{}]), CheckpointError, "post_processor"),
        (broken(["post_processor", "processors", 1, "special_tokens"], {}), CheckpointError, "post_processor"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, kind: type[PootError], words: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(kind) as caught:
        Tokenizer.from_directory(tmp_path)
    assert words in str(caught.value)


def test_absent_and_bad_neighbours_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    write(tmp_path, byte_level(), config={"eos_token_id": "2"})
    with pytest.raises(CheckpointError, match="eos_token_id"):
        Tokenizer.from_directory(tmp_path)
    write(tmp_path, byte_level(), {"add_bos_token": True}, config={})
    (tmp_path / "tokenizer.json").write_text(broken(["post_processor"], None))
    with pytest.raises(CheckpointError, match="add_bos_token"):
        Tokenizer.from_directory(tmp_path)


TREE = json.loads(byte_level().to_str())
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 1 << 40), st.text(max_size=4), st.just([]), st.just({}))


@settings(max_examples=120, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutant_files_load_or_are_refused(tmp_path: Path, data: st.DataObject) -> None:
    tree = json.loads(json.dumps(TREE))
    for _ in range(data.draw(st.integers(1, 3))):
        node: Any = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and data.draw(st.booleans()):
                node = node[key]
                continue
            node[key] = data.draw(VALUES)
            break
    (tmp_path / "tokenizer.json").write_text(json.dumps(tree))
    try:
        tokenizer = Tokenizer.from_directory(tmp_path)
        tokenizer.decode(tokenizer.encode("the fox <|im_end|>", add_special=True, parse_special=True))
    except PootError as refused:
        note(str(refused))

"""A tokenizer from a checkpoint directory: tokenizer.json and what the configuration files beside it say.

tokenizer.json is rewritten before the package tokenizers sees it: control tokens go by stand-ins (see `tokenizer`),
and its post-processor, truncation and padding are taken out; what the post-processor puts around a text becomes the
tokenizer's prefix and suffix. `add_bos_token` and `add_eos_token` in tokenizer_config.json, where given, have the
last word on those.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer as Backend

from poot_executor.errors import CheckpointError, Unsupported
from poot_llm.detokenizer import (
    ByteLevelSpelling,
    SentencePieceSpelling,
    Spelling,
    WordPieceSpelling,
    byte_spellings,
)
from poot_llm.strict_json import read_object
from poot_llm.tokenizer import Control, SpecialIds, StandIns, Tokenizer, refusing

_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_END_FILES = ("config.json", "generation_config.json")


def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """The tokenizer of a directory. Raises CheckpointError by file and field, or Unsupported by name."""
    path = directory / _TOKENIZER
    tree = read_object(path)
    config = _optional(directory / _TOKENIZER_CONFIG)
    ends = [_optional(directory / name) for name in _END_FILES]
    stand_ins = StandIns()
    controls = _controls(path, tree, config)
    spelling = _spelling(path, tree.get("decoder"))
    special = _special_ids(path, tree, config, ends, controls)
    names = {control.text: stand_ins.name(control.id) for control in controls}
    _rename(path, tree, names, {control.id for control in controls})
    with refusing(str(path)):
        backend = Backend.from_str(json.dumps(tree, ensure_ascii=False))
        ids = backend.get_vocab(with_added_tokens=True)
    for control in controls:
        if ids.get(names[control.text]) != control.id:
            raise CheckpointError(f"{path}: added token {control.text!r} does not keep its id {control.id}")
    return Tokenizer(
        backend,
        stand_ins=stand_ins,
        controls=controls,
        hidden={},
        special=special,
        spelling=spelling,
        vocabulary_size=max(ids.values(), default=-1) + 1,
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.exists() else {}


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _controls(path: Path, tree: dict[str, Any], config: Mapping[str, Any]) -> list[Control]:
    """The special tokens of `added_tokens`, and those that tokenizer_config.json says are special."""
    added = tree.get("added_tokens") or []
    if not isinstance(added, list):
        raise CheckpointError(f"{path}: added_tokens is not a list")
    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict):
        raise CheckpointError(f"{path.with_name(_TOKENIZER_CONFIG)}: added_tokens_decoder is not an object")
    controls: dict[str, Control] = {}
    for index, token in enumerate(added):
        if not _is_added_token(token):
            raise CheckpointError(f"{path}: added_tokens[{index}] lacks an id and a content")
        declaration = declared.get(str(token["id"]))
        special = declaration.get("special") if isinstance(declaration, dict) else None
        if token.get("special") is True or special is True:
            single_word = token.get("single_word") is True
            controls[token["content"]] = Control(token["id"], token["content"], single_word)
    return list(controls.values())


def _is_added_token(token: object) -> bool:
    if not isinstance(token, dict):
        return False
    return _whole(token.get("id")) and isinstance(token.get("content"), str) and token["content"] != ""


def _rename(path: Path, tree: dict[str, Any], names: Mapping[str, str], controls: set[int]) -> None:
    """Put stand-ins where the tree names control tokens, and take out what poot does itself."""
    tree.update(post_processor=None, truncation=None, padding=None)
    for token in tree.get("added_tokens") or []:
        if token["id"] in controls and token["content"] in names:
            stand_in = names[token["content"]]
            # Whether a control token matches is decided on its real name, before the backend sees the text.
            token.update(content=stand_in, special=True, normalized=False, single_word=False)
    model = tree.get("model")
    if not isinstance(model, dict):
        raise CheckpointError(f"{path}: model is not an object")
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(token, token): value for token, value in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[names.get(row[0], row[0]), *row[1:]] if _is_row(row) else row for row in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if isinstance(model.get("merges"), list):
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, names)]


def _is_row(row: object) -> bool:
    return isinstance(row, list) and bool(row) and isinstance(row[0], str)


def _touches(merge: object, names: Mapping[str, str]) -> bool:
    """Whether a merge reads or makes a control token: a text could reach the token through it."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        return False
    return any(part in names for part in (*parts, "".join(parts)))


@dataclass(frozen=True, slots=True)
class _Ends:
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()


def _ends(path: Path, processor: Any) -> _Ends:
    """What a post-processor puts around a single text."""
    if processor is None:
        return _Ends()
    kind = processor.get("type") if isinstance(processor, dict) else None
    if kind == "ByteLevel":
        return _Ends()
    if kind == "Sequence" and isinstance(processor.get("processors"), list):
        inner = [_ends(path, step) for step in processor["processors"]]
        prefix = tuple(token for ends in reversed(inner) for token in ends.prefix)
        return _Ends(prefix, tuple(token for ends in inner for token in ends.suffix))
    if kind in ("BertProcessing", "RobertaProcessing"):
        pairs = [processor.get("cls"), processor.get("sep")]
        if all(isinstance(pair, list) and len(pair) == 2 and _whole(pair[1]) for pair in pairs):
            return _Ends((pairs[0][1],), (pairs[1][1],))
    if kind == "TemplateProcessing":
        return _template_ends(path, processor)
    raise Unsupported(f"{path}: post_processor {kind!r}", "poot cannot tell what it adds")


def _template_ends(path: Path, processor: Mapping[str, Any]) -> _Ends:
    before: list[int] = []
    after: list[int] = []
    into = before
    try:
        for piece in processor["single"]:
            if "Sequence" in piece:
                into = after
            else:
                into += processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: post_processor is not a template: {error!r}") from error
    if into is before or not all(map(_whole, before + after)):
        raise CheckpointError(f"{path}: post_processor names no sequence, or ids that are not ids")
    return _Ends(tuple(before), tuple(after))


def _special_ids(
    path: Path,
    tree: Mapping[str, Any],
    config: Mapping[str, Any],
    others: list[dict[str, Any]],
    controls: list[Control],
) -> SpecialIds:
    ids = {control.text: control.id for control in controls}
    bos = _named(config.get("bos_token"), ids)
    ends = _ends(path, tree.get("post_processor"))
    eos: set[int] = set()
    for name, fields in zip(_END_FILES, others, strict=True):
        for scope in (fields, fields.get("text_config")):
            if isinstance(scope, dict):
                eos |= _eos(path.with_name(name), scope)
                if bos is None and _whole(scope.get("bos_token_id")):
                    bos = scope["bos_token_id"]
    prefix = _chosen(path, config, "bos", ends.prefix, bos)
    end = _named(config.get("eos_token"), ids)
    return SpecialIds(bos, frozenset(eos), prefix, _chosen(path, config, "eos", ends.suffix, end))


def _named(token: object, ids: Mapping[str, int]) -> int | None:
    """The id of a token that tokenizer_config.json names, as a string or as an object with its content."""
    text = token.get("content") if isinstance(token, dict) else token
    return ids.get(text) if isinstance(text, str) else None


def _chosen(
    path: Path, config: Mapping[str, Any], which: str, found: tuple[int, ...], token: int | None
) -> tuple[int, ...]:
    """The post-processor's tokens, unless add_bos_token or add_eos_token says that there are none, or one."""
    wanted = config.get(f"add_{which}_token")
    if wanted is None or (wanted is True and found):
        return found
    if wanted is False:
        return tuple(other for other in found if other != token)
    if wanted is not True or token is None:
        where = path.with_name(_TOKENIZER_CONFIG)
        raise CheckpointError(f"{where}: add_{which}_token is {wanted!r} and {which}_token is {token!r}")
    return (token,)


def _eos(path: Path, fields: Mapping[str, Any]) -> set[int]:
    value = fields.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(map(_whole, values)):
        raise CheckpointError(f"{path}: eos_token_id is {value!r}, not an id or a list of ids")
    return set(values)


def _spelling(path: Path, decoder: Any) -> Spelling:
    """How ids become text again, from the decoder that tokenizer.json describes."""
    kind = decoder.get("type") if isinstance(decoder, dict) else None
    steps = decoder.get("decoders") if kind == "Sequence" else [decoder]
    steps = steps if isinstance(steps, list) else []
    kinds = [step.get("type") if isinstance(step, dict) else None for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelSpelling(MappingProxyType(byte_spellings()))
    if kinds == ["Metaspace"] and steps[0].get("replacement") == "\u2581":
        old = steps[0].get("add_prefix_space", True)
        first = steps[0].get("prepend_scheme", "always" if old else "never") != "never"
        return SentencePieceSpelling(strips_first_space=first, byte_tokens=False)
    if kinds == ["WordPiece"] and isinstance(steps[0].get("prefix"), str) and steps[0]["prefix"]:
        return WordPieceSpelling(steps[0]["prefix"])
    if kinds[:1] == ["Replace"] and set(kinds[1:]) <= {"ByteFallback", "Fuse", "Strip"}:
        replace = steps[0]
        strips = [step for step in steps if step["type"] == "Strip"]
        known = (replace.get("pattern"), replace.get("content")) == ({"String": "\u2581"}, " ")
        if known and all(_is_first_space(step) for step in strips) and len(strips) < 2:
            return SentencePieceSpelling(bool(strips), "ByteFallback" in kinds)
    raise Unsupported(f"{path}: decoder {kinds or kind}", "poot decodes byte-level, sentencepiece and wordpiece tokens")


def _is_first_space(step: Mapping[str, Any]) -> bool:
    return (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)

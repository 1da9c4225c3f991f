"""From hidden states to one row a text, as the checkpoint's own files say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from poot_executor.dtype import F32, I32
from poot_executor.errors import CheckpointError, Unsupported
from poot_executor.graph import primitives as p
from poot_executor.graph.traced import Traced
from poot_llm.strict_json import parse_object, read_object


class Pool(Enum):
    """Which hidden states become the text's: the first token's, their mean, their maximum, their sum over the root of
    their number, the last token's; TOKENS leaves every token its own.
    """

    FIRST = "cls_token"
    MEAN = "mean_tokens"
    MAX = "max_tokens"
    ROOT = "mean_sqrt_len_tokens"
    LAST = "lasttoken"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a text's embedding comes from its hidden states; `normalized` gives it length 1. `limit` is the most tokens
    of a text, where the checkpoint says that.
    """

    pool: Pool
    normalized: bool = False
    limit: int | None = None


PLAIN = Pooling(Pool.MEAN)
"""An encoder's, where its checkpoint says nothing."""
DECODERS = Pooling(Pool.LAST, normalized=True)
"""A decoder's, where its checkpoint says nothing: the last token alone has seen the whole text."""


_MODULES = "sentence_transformers."
_MODES: Mapping[str, str] = MappingProxyType({"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"})
"""What newer files call some of them."""
_GGUF: Mapping[object, Pool] = MappingProxyType({1: Pool.MEAN, 2: Pool.FIRST, 3: Pool.LAST})
"""A GGUF file's `pooling_type`, by number."""


def pooling_of_gguf(metadata: Mapping[str, Any], architecture: str, where: str) -> Pooling:
    """What the pair `pooling_type` of a GGUF file says, a decoder's own where it says nothing or none.

    Raises Unsupported for a number that poot has not.
    """
    said = metadata.get(f"{architecture}.pooling_type", 0)
    if said == 0:
        return DECODERS
    if said not in _GGUF:
        raise Unsupported(f"{where}: pooling_type {said!r}", f"poot has {', '.join(map(str, _GGUF))}")
    return Pooling(_GGUF[said], normalized=True)


def pooling_of(directory: Path, otherwise: Pooling = PLAIN) -> Pooling:
    """What modules.json and the files that it names say; `otherwise` where there is none.

    Raises CheckpointError for files that are bad, Unsupported for a module or a way of pooling that poot has not.
    """
    path = directory / "modules.json"
    if not path.exists():
        return otherwise
    pool, normalized = Pool.MEAN, False
    for place, module in enumerate(_modules(path)):
        kind, folder = module.get("type"), module.get("path")
        if not isinstance(kind, str) or not isinstance(folder, str) or Path(folder).is_absolute() or ".." in folder:
            raise CheckpointError(f"{path}: module {place} lacks a type and a path inside the checkpoint")
        name = kind.rpartition(".")[2] if kind.startswith(_MODULES) else kind
        if (name == "Transformer") != (place == 0):
            raise Unsupported(f"{path}: module {place} is {kind}", "the first is the transformer, and no other is")
        if name == "Pooling":
            pool = _pool(directory / folder / "config.json")
        elif name == "Normalize":
            normalized = True
        elif name != "Transformer":
            raise Unsupported(f"{path}: module {kind}", "poot has Pooling and Normalize")
    settings = directory / "sentence_bert_config.json"
    limit = read_object(settings).get("max_seq_length") if settings.exists() else None
    if limit is not None and (type(limit) is not int or not 1 <= limit < 1 << 31):
        raise CheckpointError(f"{settings}: max_seq_length is {limit!r}, not a whole number from 1 up")
    return Pooling(pool, normalized, limit)


def _modules(path: Path) -> list[dict[str, Any]]:
    """The list in modules.json."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    found = parse_object(b'{"modules":' + data + b"}", str(path))["modules"]
    if not isinstance(found, list) or not found or not all(isinstance(item, dict) for item in found):
        raise CheckpointError(f"{path} is no list of modules")
    return found


def _pool(path: Path) -> Pool:
    fields = read_object(path)
    chosen = [name for name, value in fields.items() if name.startswith("pooling_mode_") and value is True]
    names = [name.removeprefix("pooling_mode_") for name in chosen]
    if isinstance(fields.get("pooling_mode"), str):
        names = [_MODES.get(n := fields["pooling_mode"], n)]
    known = [pool.value for pool in Pool if pool is not Pool.TOKENS]
    if len(names) != 1 or names[0] not in known:
        raise Unsupported(f"{path}: pooling {', '.join(names) or 'none'}", f"poot pools by one of {', '.join(known)}")
    return Pool(names[0])


def pooled(hidden: Traced, last: Traced, visible: Traced, pooling: Pooling) -> Traced:
    """hidden f32[rows, tokens, width], of which visible bool[rows, tokens] are the text's, up to last i32[rows] ->
    f32[rows, width]; with TOKENS f32[rows, tokens, width].
    """
    builder = hidden.builder
    rows, tokens, width = hidden.shape
    if pooling.pool is Pool.TOKENS:
        flat = p.reshape(hidden, (rows * tokens, width))
        return p.reshape(_unit(flat), hidden.shape) if pooling.normalized else hidden
    if pooling.pool is Pool.LAST:
        place = p.maximum(last, builder.splat(0, last.type)) + p.iota(builder, (rows,), 0, I32) * tokens
        text = p.gather(p.reshape(hidden, (rows * tokens, width)), place)
    elif pooling.pool is Pool.FIRST:
        text = p.reshape(p.slice_(hidden, (0, 0, 0), (rows, 1, width)), (rows, width))
    else:
        shown = builder.broadcast_to(p.reshape(visible, (rows, tokens, 1)), hidden.type.shape)
        if pooling.pool is Pool.MAX:
            text = p.reduce_max(p.select(shown, hidden, builder.splat(float("-inf"), hidden.type)), 1)
        else:
            text = p.sum_(p.select(shown, hidden, builder.splat(0.0, hidden.type)), 1)
            count = p.reshape(p.sum_(p.cast(visible, F32), 1), (rows, 1))
            count = p.maximum(count, builder.splat(1.0, count.type))
            text = text / (count if pooling.pool is Pool.MEAN else p.sqrt(count))
    return _unit(text) if pooling.normalized else text


def _unit(x: Traced) -> Traced:
    """Rows of f32[n, width] at length 1."""
    length = p.sqrt(p.reshape(p.sum_(x * x, 1), (x.shape[0], 1)))
    return x / p.maximum(length, x.builder.splat(1e-12, length.type))

"""From hidden states to one row a text, as the checkpoint's own files say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from poot_executor.dtype import F32
from poot_executor.errors import CheckpointError, Unsupported
from poot_executor.graph import primitives as p
from poot_executor.graph.traced import Traced
from poot_llm.strict_json import parse_object, read_object


class Pool(Enum):
    """Which hidden states become the text's: the first token's, their mean, their maximum, their sum over the root of
    their number.
    """

    FIRST = "cls_token"
    MEAN = "mean_tokens"
    MAX = "max_tokens"
    ROOT = "mean_sqrt_len_tokens"


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a text's embedding comes from its hidden states; `normalized` gives it length 1. `limit` is the most tokens
    of a text, where the checkpoint says that.
    """

    pool: Pool
    normalized: bool
    limit: int | None


_MODULES = "sentence_transformers."


def pooling_of(directory: Path) -> Pooling:
    """What modules.json and the files that it names say. Without one, the mean, as it is.

    Raises CheckpointError for files that are bad, Unsupported for a module or a way of pooling that poot has not.
    """
    path = directory / "modules.json"
    if not path.exists():
        return Pooling(Pool.MEAN, normalized=False, limit=None)
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
        names = [{"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(n := fields["pooling_mode"], n)]
    known = [pool.value for pool in Pool]
    if len(names) != 1 or names[0] not in known:
        raise Unsupported(f"{path}: pooling {', '.join(names) or 'none'}", f"poot pools by one of {', '.join(known)}")
    return Pool(names[0])


def pooled(hidden: Traced, visible: Traced, pooling: Pooling) -> Traced:
    """hidden f32[rows, tokens, width], of which visible bool[rows, tokens] are the text's -> f32[rows, width]."""
    builder = hidden.builder
    rows, tokens, width = hidden.shape
    if pooling.pool is Pool.FIRST:
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
    if not pooling.normalized:
        return text
    length = p.sqrt(p.reshape(p.sum_(text * text, 1), (rows, 1)))
    return text / p.maximum(length, builder.splat(1e-12, length.type))

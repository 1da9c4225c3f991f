"""Measured schedules on disk: a file for each device, used only by the device, driver and version that it is of."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from poot_executor.cache import target_parts
from poot_executor.compile.schedule_picks import Schedules, legal
from poot_executor.compile.target import Target

FILE_BYTES_MOST = 4 << 20
_LOG = logging.getLogger("poot.tuning")


@dataclass(frozen=True, slots=True)
class TunedFor:
    """What picks are of: the device's `kind`, `description` (its name and its driver's version, as `poot devices`
    shows them), a hash of its `caps`, and poot's `version`."""

    kind: str
    description: str
    caps: str
    version: str

    @classmethod
    def of(cls, target: Target, description: str) -> TunedFor:
        """An open device's."""
        caps = hashlib.sha256(b"\n".join(target_parts(target))).hexdigest()[:16]
        return cls(target.kind, description, caps, metadata.version("poot-executor"))

    @property
    def file_name(self) -> str:
        """One for each kind and description; a newer driver may change the description."""
        digest = hashlib.sha256(self.description.encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9]+', '-', f'{self.kind} {self.description}')[:60]}-{digest}.json"


@dataclass(frozen=True, slots=True)
class Pick:
    """A pick that was measured: its `values`, the `seconds` that its dispatches took, and the `heuristic`'s."""

    values: Mapping[str, int]
    seconds: float
    heuristic: float


def load_picks(folder: Path | None, device: TunedFor) -> dict[str, Pick]:
    """The picks of a device by region key; none, with a line in the log, where the file is of something else or is not
    what `save_picks` wrote."""
    if folder is None:
        return {}
    path = folder / device.file_name
    try:
        with path.open("rb") as file:
            of, picks = _read(json.loads(file.read(FILE_BYTES_MOST)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _LOG.warning("measured schedules in %s are ignored: %s: %s", path, type(error).__name__, error)
        return {}
    for field, theirs in asdict(of).items():
        mine = getattr(device, field)
        if theirs != mine:
            line = "measured schedules in %s are ignored: their %s is %s, this device's is %s; run `poot tune` again"
            _LOG.warning(line, path, field, theirs, mine)
            return {}
    return picks


def load_schedules(folder: Path | None, target: Target, description: str) -> Schedules:
    """What to compile with on a device; a pick that is not legal there is left out, with a line in the log."""
    found: dict[str, Mapping[str, int]] = {}
    for key, pick in load_picks(folder, TunedFor.of(target, description)).items():
        problem = legal(key, tuple(sorted(pick.values.items())), target.caps)
        if problem is None:
            found[key] = pick.values
        else:
            _LOG.warning("the measured schedule of %s is ignored: %s", key, problem)
    return Schedules.of(found)


def save_picks(folder: Path, device: TunedFor, picks: Mapping[str, Pick | None]) -> Path:
    """Add picks to the device's file, each in the place of an older one of its key; None takes one away: the heuristic
    was found best. Written whole or not at all. Raises OSError."""
    kept = {**load_picks(folder, device), **picks}
    stored = {key: asdict(pick) for key, pick in sorted(kept.items()) if pick is not None}
    text = json.dumps({"of": asdict(device), "picks": stored}, indent=1, sort_keys=True)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / device.file_name
    descriptor, name = tempfile.mkstemp(prefix=".writing-", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def _read(data: Any) -> tuple[TunedFor, dict[str, Pick]]:
    """Raises ValueError, KeyError, TypeError or AttributeError for what is no file of picks."""
    return TunedFor(**data["of"]), {key: _pick(value) for key, value in data["picks"].items()}


def _pick(value: Any) -> Pick:
    """Raises ValueError, KeyError or TypeError for what is no pick."""
    values, seconds, heuristic = value["values"], value["seconds"], value["heuristic"]
    whole = isinstance(values, dict) and all(type(v) is int for v in values.values())
    if not whole or not isinstance(seconds, float) or not isinstance(heuristic, float):
        raise ValueError(f"{value!r} is no pick")
    return Pick(values, seconds, heuristic)

"""From a program to compiled models: from disk where they are kept, else built, compiled and kept."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import openvino

from poot_executor.cache import source_digest
from poot_executor.compile.program import Program
from poot_executor.errors import OutOfMemory, Unsupported
from poot_executor.weights import WeightKey
from poot_npu.vpu.blobs import PAGE, BlobFolder, Entry
from poot_npu.vpu.faces import read, written
from poot_npu.vpu.loading import Later, Loader
from poot_npu.vpu.memory import available, give_back_freed, large_apart
from poot_npu.vpu.model import Interface, Lowered, contracted_rows, lower_program
from poot_npu.vpu.modes import Mode
from poot_npu.vpu.packed import shared
from poot_npu.vpu.prepared import Contraction, Prepared
from poot_npu.vpu.weights import Bytes, Stored, content_hash

LEAST_BYTES = 1 << 20
"""Of weights: models of less are compiled about as fast as they are found, and would fill the folder."""


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A compiled model of each stage with its interface. `keep` is memory that models read from."""

    faces: tuple[Interface | None, ...]
    models: tuple[Any, ...]
    keep: tuple[Any, ...]

    def settle(self) -> None:
        """Give back pages of files that making the models, or their first step, has touched."""
        for held in self.keep:
            if isinstance(held, Entry):
                held.settle()


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """An entry that is whole, with what it says of its models."""

    entry: Entry
    faces: tuple[Interface | None, ...]


class Compiler:
    """Compiles for one device in one mode. Models are kept in `folder`, None for nowhere, where their weights have
    `least_bytes`; `built` counts the programs whose models were not found there."""

    def __init__(self, core: Any, mode: Mode, folder: Path | None) -> None:
        self._core = core
        self._mode = mode
        self._prepared = Prepared()
        self._making = RLock()  # models, and what `_prepared` keeps for them
        self.blobs = BlobFolder(folder)
        self.loader = Loader()
        self._hashing = ThreadPoolExecutor(1, thread_name_prefix="poot-vpu-hash")
        self.built = 0
        self.least_bytes = LEAST_BYTES
        self._context = self._describe() if self.blobs else ""

    def compiled(self, program: Program, weights: Mapping[WeightKey, Stored]) -> tuple[Lowered, Later[Compiled]]:
        """A program's models. Those that are on disk, whole and of this content, are read in another thread; where the
        runtime does not take them all the same, they are compiled in it. Others are compiled here.

        Raises Unsupported naming an operation or what OpenVINO says, and OutOfMemory.
        """
        try:
            with refusing(program, weights):
                return self._found(program, weights)
        finally:
            for weight in weights.values():
                weight.settle()
            give_back_freed()

    def expect(self, weight: Stored) -> None:
        """Begin to hash a weight that models will be made of, beside whatever is done until then."""
        if self.blobs:
            weight.hashing = self._hashing.submit(content_hash, weight.data)

    def close(self, timeout: float) -> None:
        """Drop what is not begun, and wait for what is being read, no longer than that, in seconds."""
        self._hashing.shutdown(cancel_futures=True)
        self.loader.close(timeout)

    def forget(self, weight: Stored) -> None:
        """Drop what was made of a weight that is freed."""
        with self._making:
            self._prepared.forget(weight)

    def _found(self, program: Program, weights: Mapping[WeightKey, Stored]) -> tuple[Lowered, Later[Compiled]]:
        rows = contracted_rows(program)
        apart, properties = self._mode.apart(rows), dict(self._mode.properties(rows))
        lowered = lower_program(program, weights, apart, self._mode.dynamic, self._prepared)
        if not self.blobs or sum(weight.nbytes for weight in weights.values()) < self.least_bytes:
            return lowered, Later.ready(self._made(lowered, properties))
        key = self._key(program, weights, properties)
        kept = self._kept(key, program, lowered)
        if kept is None:
            return lowered, Later.ready(self._fresh(key, program, lowered, properties))

        def load() -> Compiled:
            with refusing(program, weights):
                found = self._imported(kept, properties)
                return self._fresh(key, program, lowered, properties) if found is None else found

        return lowered, self.loader.add(load)

    def _fresh(self, key: bytes, program: Program, lowered: Lowered, properties: dict[str, Any]) -> Compiled:
        """Compile, and keep: what is read back from disk shares its constants with the file, and needs no copies of the
        weights."""
        with self._making:
            fresh = self._made(lowered, properties)
            blobs = [model.export_model().getbuffer() for model in fresh.models if model is not None]
            held = _beside(blobs, _bytes_of(fresh.keep))
            self.blobs.write(key, json.dumps(held).encode() + b"\n" + written(fresh.faces, program), blobs)
            kept = self._kept(key, program, lowered)
            found = None if kept is None else self._imported(kept, properties)
            if found is None:
                return fresh
            self._prepared.forget()
            return found

    def _made(self, lowered: Lowered, properties: dict[str, Any]) -> Compiled:
        with self._making, large_apart():
            self.built += 1
            built = lowered.build()
            models = tuple(
                None if stage is None else self._core.compile_model(stage.model, self._mode.device, properties)
                for stage in built
            )
        faces = tuple(None if stage is None else stage.interface for stage in built)
        return Compiled(faces, models, tuple(stage.keep for stage in built if stage is not None))

    def _kept(self, key: bytes, program: Program, lowered: Lowered) -> Kept | None:
        """None where there is no entry, or none of this version."""
        entry = self.blobs.read(key)
        if entry is None:
            return None
        try:
            held, _, text = entry.text.partition(b"\n")
            faces = read(text, program)
            for number, start, stop in json.loads(held):
                entry.hold(number, start, stop)
            if len(faces) != len(lowered.plan.stages):
                raise ValueError(f"{len(faces)} models of {len(lowered.plan.stages)} stages")  # noqa: TRY301
        except (ValueError, KeyError, TypeError, IndexError):
            self.blobs.rejected += 1
            return None
        return Kept(entry, faces)

    def _imported(self, kept: Kept, properties: dict[str, Any]) -> Compiled | None:
        """None for an entry that the runtime does not take."""
        blobs = (shared(blob, blob.shape, openvino.Type.u8) for blob in kept.entry.blobs)
        try:
            with self._making, large_apart():
                models = tuple(
                    None if face is None else self._core.import_model(next(blobs), self._mode.device, properties)
                    for face in kept.faces
                )
        except (RuntimeError, StopIteration):
            self.blobs.rejected += 1
            return None
        kept.entry.settle()
        give_back_freed()
        return Compiled(kept.faces, models, (kept.entry,))

    def _key(self, program: Program, weights: Mapping[WeightKey, Stored], properties: dict[str, Any]) -> bytes:
        """A hash of everything that the models depend on."""
        digest = hashlib.sha256(self._context.encode())
        digest.update(json.dumps(properties, sort_keys=True).encode())
        digest.update(str(program.graph).encode())
        for use in program.weights:
            digest.update(f"{use.key} {use.type} {use.layout.format.name}".encode())
            digest.update(weights[use.key].digest())
        return digest.digest()

    def _describe(self) -> str:
        name = str(self._core.get_property(self._mode.device, "FULL_DEVICE_NAME"))
        able = self._core.get_property(self._mode.device, "OPTIMIZATION_CAPABILITIES")
        facts = [
            openvino.get_version(),
            metadata.version("poot-executor"),
            source_digest("poot_npu.vpu"),
            self._mode.selector,
            name,
            ",".join(able),
        ]
        return "\n".join(facts)


def need_of(weights: Mapping[WeightKey, Stored]) -> int:
    """Bytes: a model holds its weights once more, in the plug-in's order, and its constants while it is compiled."""
    return 2 * sum(weight.nbytes for weight in weights.values())


@contextmanager
def refusing(program: Program, weights: Mapping[WeightKey, Stored]) -> Generator[None]:
    """What OpenVINO raises meanwhile becomes Unsupported with its words, or OutOfMemory with the need."""
    try:
        yield
    except MemoryError:
        raise OutOfMemory(need_of(weights), available(), None, "a compiled model") from None
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if "alloc" in reason:
            raise OutOfMemory(need_of(weights), available(), None, "a compiled model") from error
        raise Unsupported(f"program {program.graph.name}", f"OpenVINO does not compile it: {reason}") from error


def _beside(blobs: Sequence[memoryview], weights: Sequence[Bytes]) -> list[tuple[int, int, int]]:
    """What lies between a model's weights in its blob, as (blob, start, stop): the plug-in has the weights in its own
    order, and reads the rest in every step. Weights are looked for in the order in which they are likely to lie there.
    """
    places: list[tuple[int, int, int]] = []
    for number, blob in enumerate(blobs):
        whole, end, found = bytes(blob), 0, []
        for weight in weights:
            beginning = weight[:PAGE].tobytes()
            start = whole.find(beginning, end)
            start = whole.find(beginning) if start < 0 else start
            if start >= 0 and whole[start : start + weight.nbytes] == weight.data:
                end = start + weight.nbytes
                found.append((start, end))
        found.sort()
        places += [(number, stop, start) for (_, stop), (start, _) in itertools.pairwise(found) if stop < start]
    return places


def _bytes_of(kept: Iterable[Any]) -> list[Bytes]:
    """The weights among what models keep, as bytes."""
    contractions = [item for keep in kept for item in keep if isinstance(item, Contraction)]
    arrays = [a for c in contractions for a in (c.scale, c.zero, c.minimum, c.quants) if a is not None]
    return [array.reshape(-1).view(np.uint8) for array in arrays if array.nbytes >= PAGE]

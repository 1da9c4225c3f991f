"""The entries of a driver's executable: traced, compiled and added up front, never in a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, groupby
from time import perf_counter

from poot_executor.compile import CompileOptions, Program, Target, compile
from poot_executor.compile.collection import collection_paused
from poot_executor.dtype import F32, DType
from poot_executor.errors import BindError
from poot_executor.executor import EntryId
from poot_executor.graph.graph import Graph
from poot_llm.blocks.step import StepShape
from poot_llm.driver.loaded import LoadedModel
from poot_llm.driver.options import EntryKey
from poot_llm.models.step_graph import trace_step
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplerShape, SamplerSlots, Suffix


def compile_step(
    handle: ModelHandle,
    target: Target,
    shape: StepShape,
    suffix: Suffix,
    activations: DType = F32,
    options: CompileOptions | None = None,
    inputs: tuple[str, ...] = (),
) -> Program:
    """The program of one step of a model on a target. Needs no hardware and reads no weights.

    Raises what `compile` does: Unsupported, CompileLimit.
    """
    graph = trace_step(handle.family, handle.config, shape, handle.weights, suffix, activations, inputs)
    return compile(graph, target, CompileOptions() if options is None else options)


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """An entry, how many steps of it may be under way at once, and the sampler slots that they fill."""

    key: EntryKey
    entry: EntryId
    lanes: int
    sampler: SamplerSlots


class Entries:
    """Entries by key. `largest` is added before any other, so that states never have to grow."""

    def __init__(self, model: LoadedModel, largest: EntryKey) -> None:
        self._model = model
        self._largest = largest
        self._entries: dict[EntryKey, PreparedStep] = {}
        self._shapes: dict[tuple[Suffix, tuple[str, ...]], dict[StepShape, Suffix]] = {}
        self._decoding: dict[tuple[Suffix, tuple[str, ...]], list[PreparedStep]] = {}
        self.seconds = 0.0
        """Wall time spent on compiling and adding."""

    def __contains__(self, key: EntryKey) -> bool:
        return key in self._entries

    def keys(self) -> tuple[EntryKey, ...]:
        """Everything prepared, in the order of preparation."""
        return tuple(self._entries)

    def shapes(self, suffix: Suffix, inputs: tuple[str, ...] = ()) -> Mapping[StepShape, Suffix]:
        """The shapes that can serve a suffix and take these inputs, each with the suffix of its entry: its own where
        there is one, else the least of those that serve it too.
        """
        return self._shapes.get((suffix, inputs), {})

    def decoding(self, suffix: Suffix, inputs: tuple[str, ...] = ()) -> list[PreparedStep]:
        """The steps of `shapes`, windows apart, in the order in which rows of one id each prefer them."""
        found = self._decoding.get((suffix, inputs))
        if found is None:
            shapes = self.shapes(suffix, inputs)
            plain = sorted((s for s in shapes if not s.window), key=lambda s: (s.rows * s.tokens, s.span))
            found = [self._entries[EntryKey(self._largest.program, s, shapes[s], inputs)] for s in plain]
            self._decoding[suffix, inputs] = found
        return found

    def __getitem__(self, key: EntryKey) -> PreparedStep:
        """Raises BindError for a key that is not prepared: a step never compiles."""
        if key not in self._entries:
            raise BindError(f"no {key.suffix.value} step of {key.shape} is prepared: call prepare before")
        return self._entries[key]

    def missing(self, keys: Iterable[EntryKey]) -> list[EntryKey]:
        """Those that are not prepared, each once, the largest first: later ones fit into its arena. The first time
        the largest entry is among them: it gives the states their size.
        """
        missing = [key for key in dict.fromkeys(keys) if key not in self._entries]
        many = self._largest.shape.drawing_rows > 1
        if missing and many and not self._entries and self._largest not in missing:
            missing.insert(0, self._largest)
        return sorted(missing, key=lambda key: key.shape.size, reverse=True)

    def ensure(self, keys: Iterable[EntryKey]) -> None:
        """Prepare what is missing, after what is under way.

        Raises CompileLimit beyond the options' bounds, and what compiling and adding raise; entries
        that were added before stay.
        """
        started = perf_counter()
        try:
            # Those of one shape follow one another, and differ in how they choose tokens.
            groups = [list(group) for _, group in groupby(self.missing(keys), lambda key: key.shape)]
            with closing(self._model.compiled([[self._trace(key) for key in group] for group in groups])) as programs:
                for key, program in zip(chain.from_iterable(groups), programs, strict=True):
                    self._add(key, program)
        finally:
            self.seconds += perf_counter() - started

    def _trace(self, key: EntryKey) -> Graph:
        handle, activations = self._model.handle, self._model.options.activations
        with collection_paused():
            return trace_step(
                handle.family, handle.config, key.shape, handle.weights, key.suffix, activations, key.inputs
            )

    def _add(self, key: EntryKey, program: Program) -> None:
        handle, options = self._model.handle, self._model.options
        # Only decoding submits ahead: the token of a longer step is not known to be the last one.
        ahead = options.ahead and key.shape.tokens == 1
        entry = self._model.add_program(program, ahead=ahead)
        sampler = SamplerShape(key.shape.drawing_rows, handle.config.vocabulary, key.shape.span)
        self._entries[key] = PreparedStep(key, entry, 2 if ahead else 1, SamplerSlots(key.suffix, sampler))
        for suffix in Suffix:
            if key.suffix.serves(suffix):
                shapes = self._shapes.setdefault((suffix, key.inputs), {})
                held = shapes.get(key.shape)
                if held is None or held.serves(key.suffix):
                    shapes[key.shape] = key.suffix
        self._decoding.clear()

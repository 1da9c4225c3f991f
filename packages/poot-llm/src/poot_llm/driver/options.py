"""What a driver may be told, and the finite set of step shapes that follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from poot_executor.compile import CompileOptions
from poot_executor.dtype import BF16, F16, F32, DType
from poot_executor.errors import SettingsError
from poot_llm.blocks.step import StepShape
from poot_llm.sampling import Suffix

DEFAULT_CAPACITY = 2048


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """Raises SettingsError naming the field that is out of range.

    - `rows`: sequences that can be open at once; each owns `capacity` positions of KV.
    - `capacity`: None is the model's context or 2,048, whichever is smaller.
    - `chunk`: the most prompt tokens that a step reads, a power of two.
    - `spans`: lengths below the capacity for which steps of their own are prepared: a step sweeps
      the shortest that holds its rows.
    - `activations`: what activations are rounded to before a contraction, and the dtype of KV.
    - `ahead`: `generate` submits a step before it collects the one before.
    - `max_entries`, `max_entry_bytes`: bounds of what is prepared; the bytes are those that entries
      own beside weights, states and the shared arena.
    """

    rows: int = 1
    capacity: int | None = None
    chunk: int = 128
    spans: tuple[int, ...] = ()
    activations: DType = F32
    ahead: bool = True
    max_entries: int = 256
    max_entry_bytes: int = 1 << 30
    compile: CompileOptions = field(default_factory=CompileOptions)

    def __post_init__(self) -> None:
        for name, least in (
            ("rows", 1), ("chunk", 1), ("max_entries", 1), ("max_entry_bytes", 1)
        ):  # fmt: skip
            _whole(name, getattr(self, name), least)
        if self.capacity is not None:
            _whole("capacity", self.capacity, 2)
        if self.chunk & (self.chunk - 1):
            raise SettingsError(f"chunk is {self.chunk}, not a power of two")
        for span in self.spans:
            _whole("spans", span, 1)
        if self.activations not in (F32, F16, BF16):
            raise SettingsError(f"activations is {self.activations}: f32, f16 or bf16")


@dataclass(frozen=True, slots=True)
class EntryKey:
    """What an entry of the driver's executable is for: the program, its step shape, its sampling
    suffix, and the names of the inputs that a prompt supplies. Neither a token nor a position nor a
    sampler parameter is part of it.
    """

    program: str
    shape: StepShape
    suffix: Suffix
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepSet:
    """Every step shape that a driver can run: rows × tokens × spans, each ascending.

    Rows and tokens are powers of two up to their most, and their most.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    spans: tuple[int, ...]
    capacity: int

    @classmethod
    def of(cls, options: DriverOptions, context: int) -> StepSet:
        """Raises SettingsError for a capacity above the model's context, with both numbers."""
        capacity = min(context, DEFAULT_CAPACITY) if options.capacity is None else options.capacity
        if capacity > context:
            raise SettingsError(f"capacity is {capacity}, the model's context is {context}")
        if any(span >= capacity for span in options.spans):
            raise SettingsError(f"spans are {options.spans}: below the capacity {capacity}")
        spans = (*sorted(set(options.spans)), capacity)
        tokens = tuple(_powers(min(options.chunk, spans[0])))
        rows = tuple(sorted({*_powers(options.rows), options.rows}))
        return cls(rows, tokens, spans, capacity)

    def shapes(self) -> Iterator[StepShape]:
        """All of them."""
        for rows in self.rows:
            for tokens in self.tokens:
                for span in self.spans:
                    yield StepShape(rows, tokens, self.capacity, span)


def _powers(most: int) -> Iterator[int]:
    """1, 2, 4 ... up to `most`."""
    power = 1
    while power <= most:
        yield power
        power *= 2


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError(f"{name} is {value!r}: a whole number from {least} up")

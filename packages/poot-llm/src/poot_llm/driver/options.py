"""What a driver may be told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from poot_executor.compile import CompileOptions
from poot_executor.dtype import BF16, F16, F32, DType
from poot_executor.errors import SettingsError
from poot_llm.blocks.step import StepShape
from poot_llm.sampling import Suffix

DEFAULT_CAPACITY = 2048


class Layout(Enum):
    """How KV lies. AUTO is paged for several rows on a device that runs poot's kernels, and contiguous otherwise."""

    AUTO = "auto"
    PAGED = "paged"
    CONTIGUOUS = "contiguous"


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """Raises SettingsError naming the field that is out of range.

    - `rows`: sequences that can be open at once.
    - `capacity`: ids of prompt and answer that one can hold; None is the model's context or 2,048, whichever is
      smaller, or less where the device's memory holds less.
    - `layout`: of KV; `pool_blocks` of paged KV, the reserved one among them: None is what all rows need, or what
      `memory_fraction` of the device's free memory holds beside the weights.
    - `prefix_cache`: prompts that begin alike share K and V. None is: with paged KV.
    - `chunk`: the most prompt tokens that a step reads, a power of two.
    - `prefill_rows`: prompts that one step reads together, with paged KV; contiguous KV has steps of all row counts.
    - `spans`: lengths below the capacity for which steps of their own are prepared: a step sweeps
      the shortest that holds its rows.
    - `window`: tokens of the steps that check guessed tokens; None prepares none, and nothing is guessed.
    - `jump_ahead`: ids that a guide forces are read together with the one before them, where one answer runs alone and
      that is quicker.
    - `activations`: what activations are rounded to before a contraction, and the dtype of KV.
    - `ahead`: a step is submitted before the one before is collected, where no id of it has to be known.
    - `deterministic`: no row is computed in an order that depends on other rows, so that a request's tokens depend
      neither on what runs beside it nor on how its prompt is cut.
    - `encode_rows`: texts that one pass over whole texts reads; `encode_tokens`: the most tokens of several in one
      pass, each counted as long as the longest.
    - `max_entries`, `max_entry_bytes`: bounds of what is prepared; the bytes are those that entries
      own beside weights, states and the shared arena.
    """

    rows: int = 1
    capacity: int | None = None
    layout: Layout = Layout.AUTO
    pool_blocks: int | None = None
    memory_fraction: float = 0.9
    prefix_cache: bool | None = None
    chunk: int = 128
    prefill_rows: int = 1
    spans: tuple[int, ...] = ()
    window: int | None = None
    jump_ahead: bool = True
    activations: DType = F32
    ahead: bool = True
    deterministic: bool = False
    encode_rows: int = 16
    encode_tokens: int = 8192
    max_entries: int = 256
    max_entry_bytes: int = 1 << 30
    compile: CompileOptions = field(default_factory=CompileOptions)

    def __post_init__(self) -> None:
        for name, least in (
            ("rows", 1), ("chunk", 1), ("prefill_rows", 1), ("encode_rows", 1), ("encode_tokens", 1),
            ("max_entries", 1), ("max_entry_bytes", 1),
        ):  # fmt: skip
            _whole(name, getattr(self, name), least)
        for name, least in (("capacity", 2), ("pool_blocks", 2), ("window", 2)):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), least)
        if self.chunk & (self.chunk - 1):
            raise SettingsError(f"chunk is {self.chunk}, not a power of two")
        for span in self.spans:
            _whole("spans", span, 1)
        if self.activations not in (F32, F16, BF16):
            raise SettingsError(f"activations is {self.activations}: f32, f16 or bf16")
        if not isinstance(self.layout, Layout):
            raise SettingsError(f"layout is {self.layout!r}: one of {', '.join(str(layout) for layout in Layout)}")
        fraction = self.memory_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise SettingsError(f"memory_fraction is {fraction!r}: above 0, at most 1")

    @property
    def compile_options(self) -> CompileOptions:
        """What steps are compiled with."""
        return replace(self.compile, deterministic=self.deterministic or self.compile.deterministic)


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


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError(f"{name} is {value!r}: a whole number from {least} up")

"""What the inputs of a graph are: their storage and the key that binds them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from poot_executor.weights import WeightKey


class Storage(Enum):
    """Where a value lives. Equation outputs are DEVICE, unless the planner puts them in a state or output buffer."""

    DEVICE = "device"
    CONST = "const"
    SLOT = "slot"
    STATE = "state"
    COMPUTED = "computed"


class SlotKind(Enum):
    """Kinds of per-step inputs; types and meaning are in docs/contract.md."""

    TOKEN = "token"
    POS = "pos"
    LAST = "last"
    SLOT_MAP = "slot_map"
    WRITE_MAP = "write_map"
    SAMPLER = "sampler"
    LORA_INDEX = "lora_index"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class SlotKey:
    """A per-step input. `tag` tells several of one kind apart (SAMPLER, INPUT) and is "" elsewhere."""

    kind: SlotKind
    tag: str = ""

    def __str__(self) -> str:
        return self.kind.value + (f".{self.tag}" if self.tag else "")


@dataclass(frozen=True, slots=True)
class StateKey:
    """A value carried across steps: `layer` is None for one of the whole model (last_token)."""

    layer: int | None
    role: str

    def __str__(self) -> str:
        return self.role if self.layer is None else f"{self.layer}.{self.role}"


InputKey = WeightKey | SlotKey | StateKey

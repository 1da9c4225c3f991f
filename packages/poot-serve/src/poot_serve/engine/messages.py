"""What the two processes say to each other: plain data, one way requests, the other way what became of them.

A frame is four bytes of length, least significant first, and a pickle of what follows: a request, or a `Report`.
"""

from __future__ import annotations

from dataclasses import dataclass

from poot_llm.driver import FinishReason
from poot_llm.sampling import SamplingParams, TokenLogprobs
from poot_serve.engine.stats import EngineStats

# To the engine


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer a prompt `params.n` times. All but the structure was checked."""

    id: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode texts: (token ids, where the second text begins) each."""

    id: int
    items: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give a request up, or one answer of it: nothing more is said of it, and its room is free with the next step.
    `done`: its reader has all that it wants, as a stop string was found; otherwise it counts as cancelled.
    """

    id: int
    choice: int | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Give everything up and end. The end of the stream says the same."""


Message = Generate | Encode | Cancel | Close

# From the engine


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine serves with. `encodes`: it answers Encode and nothing else. `capacity`: ids of prompt and answer;
    of an encoder, of a text. `note`: what its rows take where that is much, what had to be smaller to fit the device.
    """

    model: str
    device: str
    encodes: bool
    rows: int
    capacity: int
    vocabulary: int
    blocks: int | None
    weight_bytes: int
    kv_bytes: int
    load_seconds: float
    prepare_seconds: float
    steps: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine takes requests."""

    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request's structure is compiled, and it waits for its turn: nothing of what it asks can be refused any more."""

    id: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a step gave an answer. `finish_reason` is set on the last of an answer. `cached` prompt ids were found
    computed, and it had waited `queued` seconds for a row; both are set on the first of an answer.
    """

    id: int
    choice: int
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    cached: int | None = None
    queued: float | None = None


@dataclass(frozen=True, slots=True)
class Vectors:
    """What texts were encoded to: f32[rows, columns], least significant byte first."""

    id: int
    rows: int
    columns: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """A whole request is over, with the name of the error's class. Nothing more is said of it."""

    id: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine cannot go on, and ends: every request that it has is lost. `refused`: it could not be opened, for a
    reason that another process would find too.
    """

    kind: str
    reason: str
    refused: bool


Event = Ready | Accepted | Tokens | Vectors | Failed | Lost


@dataclass(frozen=True, slots=True)
class Report:
    """What happened in one turn of the loop, in order, and the counts after it, None where they are those of a report
    before but for tokens, steps and times. `tokens` are (id, choice, tokens) of answers that go on, of which nothing
    more is to be said: most of what happens, as tuples, which cost a tenth.
    """

    events: tuple[Event, ...]
    stats: EngineStats | None
    tokens: tuple[tuple[int, int, tuple[int, ...]], ...] = ()

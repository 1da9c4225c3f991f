"""A tiny checkpoint, a loop over it in this process whose turns a test makes, and engines in processes of their own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from poot_eval.conformance import open_or_skip
from poot_llm.driver import Driver, DriverOptions, FinishReason, Layout
from poot_llm.registry import ModelHandle
from poot_llm.sampling import SamplingParams
from poot_llm.sampling.params import MAX_CHOICES
from poot_serve.engine.client import EngineClient
from poot_serve.engine.generation import Generation
from poot_serve.engine.loop import Loop
from poot_serve.engine.messages import Cancel, Failed, Generate, Report, Tokens
from poot_serve.engine.settings import EngineSettings
from poot_serve.engine.stats import EngineStats

_FIXTURES = Path(__file__).resolve().parents[3] / "poot-llm" / "tests" / "fixtures"
_SPEC = importlib.util.spec_from_file_location("driving", _FIXTURES / "driving.py")
assert _SPEC is not None and _SPEC.loader is not None
driving = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(driving)

DEVICE = "vpu:cpu"
CAPACITY = 64


@pytest.fixture(scope="session")
def handle(tmp_path_factory: pytest.TempPathFactory) -> ModelHandle:
    """A llama of one layer, open."""
    return driving.checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def alone(handle: ModelHandle) -> Iterator[Callable[[list[int], SamplingParams], list[int]]]:
    """What a request gets that has a driver for itself."""
    with driving.driving(handle, capacity=CAPACITY) as rig:
        yield lambda prompt, params: [item.token for item in rig.driver.generate(prompt, params)]


class Turns:
    """A loop over the oracle, a turn at a time, and what it said."""

    def __init__(self, driver: Driver, **options: Any) -> None:
        self.driver = driver
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.reports: list[Report] = []
        chosen = {"prefill_tokens": 64, "prepared": False} | options
        self.loop = Loop(driver, self.inbox, self.reports.append, **chosen)
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.first: dict[tuple[int, int], Tokens] = {}
        self.ended: dict[tuple[int, int], FinishReason] = {}
        self.failed: dict[int, Failed] = {}
        self.others: list[Any] = []
        self.turns = 0

    def ask(self, id: int, prompt: list[int], params: SamplingParams) -> None:
        """Hand in a request."""
        self.inbox.put(Generate(id, tuple(prompt), params))

    def cancel(self, id: int, choice: int | None = None, done: bool = False) -> None:
        """Give one up."""
        self.inbox.put(Cancel(id, choice, done))

    def turn(self) -> list[Any]:
        """One turn of the loop; its events."""
        assert self.loop.turn()
        self.turns += 1
        report = self.reports.pop()
        assert not self.reports
        events = [Tokens(*item) for item in report.tokens] + list(report.events)
        for event in events:
            match event:
                case Tokens(id, choice):
                    key = id, choice
                    assert key not in self.ended and id not in self.failed, "nothing comes after the end"
                    self.first.setdefault(key, event)
                    self.tokens.setdefault(key, []).extend(event.tokens)
                    if event.finish_reason is not None:
                        self.ended[key] = event.finish_reason
                case Failed(id):
                    assert id not in self.failed
                    self.failed[id] = event
                case _:
                    self.others.append(event)
        return events

    @property
    def busy(self) -> bool:
        """Whether a turn would do something without waiting."""
        return self.loop._scheduler.busy or not self.inbox.empty()

    def until_idle(self, most: int = 2000) -> None:
        """Turns until nothing is left to do."""
        while self.busy:
            self.turn()
            assert self.turns < most

    @property
    def stats(self) -> EngineStats:
        """The counts, as the next report would have them."""
        self.loop._report()
        stats = self.reports.pop().stats
        assert stats is not None
        return stats

    def check_empty(self) -> None:
        """Every row and block is back."""
        use, stats = self.driver.use(), self.stats
        assert use.rows_taken == 0 and not use.blocks_held
        assert (stats.waiting, stats.running, stats.compiling) == (0, 0, 0)
        assert not self.loop._jobs and not self.loop._answers and not self.loop._announced


@pytest.fixture
def turns(handle: ModelHandle) -> Iterator[Callable[..., Turns]]:
    """Loops over paged KV whose pool does not hold all rows at once, unless told otherwise."""
    with ExitStack() as stack:

        def make(*, loop: dict[str, Any] | None = None, **options: Any) -> Turns:
            chosen = {"capacity": CAPACITY, "chunk": 8, "rows": 3, "layout": Layout.PAGED, "pool_blocks": 7} | options
            rig = stack.enter_context(driving.driving(handle, **chosen))
            made = Turns(rig.driver, **(loop or {}))
            stack.callback(made.loop._guides.close)
            return made

        yield make


class Engines:
    """Engine processes of tests, on one asyncio loop."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.runner = asyncio.Runner()

    @contextmanager
    def client(self, *, driver: dict[str, Any] | None = None, **options: Any) -> Iterator[EngineClient]:
        """A client that was started; closed at the end, and nothing of it is left then."""
        chosen = {"rows": 2, "capacity": CAPACITY, "chunk": 16} | (driver or {})
        settings = EngineSettings(
            **({"model": self.model, "device": DEVICE, "driver": DriverOptions(**chosen)} | options)
        )

        async def begin() -> EngineClient:
            made = EngineClient(settings)
            await made.start()
            return made

        client = self.run(begin())
        try:
            yield client
        finally:
            pid = client.pid
            self.run(client.close())
            assert pid is None or gone(pid)

    def run(self, coroutine: Any, seconds: float = 240) -> Any:
        """Run a coroutine to its end; the clients go on meanwhile."""

        async def bounded() -> Any:
            async with asyncio.timeout(seconds):
                return await coroutine

        return self.runner.run(bounded())

    @asynccontextmanager
    async def stopped(self, client: EngineClient) -> AsyncIterator[int]:
        """The engine's process stands still, and all that it has said was heard; its id.

        So a test says what happens before what, however fast each of the two processes is.
        """
        pid = client.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                while not still(pid):  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.001)
            # A turn of asyncio's loop reads what a pipe holds, the next one handles it.
            for _ in range(100):
                await asyncio.sleep(0)
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    @asynccontextmanager
    async def under_way(
        self, client: EngineClient, prompt: list[int], params: SamplingParams
    ) -> AsyncIterator[Generation]:
        """A request that something was read of and that has not ended, while the engine stands still.

        It has several answers. One that had ended before its reader came that far is followed by another one.
        """
        for n in [8] + [MAX_CHOICES] * 20:
            generation = await client.submit(prompt, replace(params, n=n))
            await anext(generation)
            async with self.stopped(client):
                if not generation.over:
                    yield generation
                    return
        pytest.fail("each of many requests had ended before something of it was read")


def still(pid: int) -> bool:
    """Whether every thread of a process was stopped."""
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


def gone(pid: int) -> bool:
    """Whether there is no such process any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture(scope="module")
def engines(handle: ModelHandle) -> Iterator[Engines]:
    """Engine processes on OpenVINO's CPU plug-in."""
    open_or_skip(DEVICE).close()
    made = Engines(handle.path)
    try:
        yield made
    finally:
        made.runner.close()


@pytest.fixture(scope="module")
def engine(engines: Engines) -> Iterator[EngineClient]:
    """One that is ready, for tests that leave it as they find it."""
    with engines.client() as client:
        engines.run(client.ready())
        yield client

"""The engine in its own process: answers, limits, and how it and its server end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poot_executor.errors import RequestError
from poot_llm.driver import DriverOptions, FinishReason
from poot_llm.guided.limits import GuideLimits
from poot_llm.guided.spec import StructuredOutputs
from poot_llm.llm import LLM
from poot_llm.sampling import SamplingParams
from poot_llm.sampling.params import MAX_CHOICES
from poot_serve.engine.client import EngineClient, Phase
from poot_serve.engine.errors import (
    ContextExceeded,
    DeadlineExceeded,
    Draining,
    EngineLost,
    NotReady,
    Overloaded,
    SlowReader,
)
from poot_serve.engine.generation import Generation, Piece
from poot_serve.engine.settings import EngineSettings

pytestmark = pytest.mark.device("vpu")

PROMPT = [104, 277, 102, 110, 35, 101, 117, 114, 122, 113]
GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=20, ignore_eos=True, temperature=1.0, seed=11)
LONG = SamplingParams(max_tokens=50, ignore_eos=True)


async def pieces(client: EngineClient, prompt: list[int], params: SamplingParams, **options: Any) -> list[Piece]:
    """Every piece of a request."""
    async with await client.submit(prompt, params, **options) as generation:
        return [piece async for piece in generation]


async def outcome(generation: Generation) -> list[Exception]:
    """Everything that reading to the end, and on, raises."""
    raised: list[Exception] = []
    while True:
        try:
            await anext(generation)
        except StopAsyncIteration:
            return raised
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
            raised.append(error)


def text(found: list[Piece], choice: int = 0) -> str:
    return "".join(piece.text for piece in found if piece.choice == choice)


def ids(found: list[Piece], choice: int = 0) -> list[int]:
    return [token for piece in found if piece.choice == choice for token in piece.token_ids]


@pytest.fixture(scope="module")
def model(engines: Any) -> Iterator[LLM]:
    """The same model in this process."""
    with LLM(engines.model, device="vpu:cpu", options=DriverOptions(rows=2, capacity=64, chunk=16)) as made:
        yield made


def test_answers_are_those_of_the_model_itself(engines: Any, engine: EngineClient, model: LLM) -> None:
    asked = [(PROMPT, replace(GREEDY, logprobs=2)), (PROMPT[:3], replace(DRAWN, n=3)), (PROMPT[2:], DRAWN)]
    asked += [(PROMPT, replace(GREEDY, min_tokens=3, ignore_eos=False))]

    async def all_of_them() -> list[list[Piece]]:
        return await asyncio.gather(*(pieces(engine, prompt, params) for prompt, params in asked))

    answers = engines.run(all_of_them())
    for (prompt, params), found in zip(asked, answers, strict=True):
        (expected,) = model.generate([prompt], params, progress=False)
        for output in expected.outputs:
            mine = [piece for piece in found if piece.choice == output.index]
            assert text(mine, output.index) == output.text
            assert mine[-1].finish_reason is output.finish_reason
            assert [piece.finish_reason for piece in mine[:-1]] == [None] * (len(mine) - 1)
            given = list(output.token_ids)
            if output.finish_reason is FinishReason.STOP:
                assert mine[-1].stopped_by == given.pop()
            assert ids(mine, output.index) == given
            logprobs = [item for piece in mine for item in piece.logprobs]
            assert [item.top for item in logprobs] == [item.top for item in output.logprobs][: len(given)]
    assert engine.open_requests == 0


def test_what_a_stop_string_takes_back_is_not_shown(engines: Any, engine: EngineClient) -> None:
    whole = engines.run(pieces(engine, PROMPT, replace(DRAWN, logprobs=0)))
    full = text(whole)
    for start in range(1, len(full) - 3, 2):
        stop = full[start : start + 3]
        found = engines.run(pieces(engine, PROMPT, replace(DRAWN, logprobs=0, stop=(stop,))))
        assert text(found) == full[: full.index(stop)]
        last = found[-1]
        assert (last.finish_reason, last.stopped_by) == (FinishReason.STOP, stop)
        kept = ids(found)
        assert kept == ids(whole)[: len(kept)] and sum(len(p.logprobs) for p in found) == len(kept)
        shown = engine.handle.tokenizer.decode(kept, continues=True)
        # The last token may hold more than what was shown of it, and none is missing.
        assert shown.startswith(text(found)) or "\ufffd" in shown
        assert len(engine.handle.tokenizer.decode(kept[:-1], continues=True)) <= len(text(found))


def test_the_prompt_s_constraint_is_compiled_before_it_is_accepted(engines: Any, engine: EngineClient) -> None:
    async def both() -> tuple[str, str]:
        good = asyncio.create_task(pieces(engine, PROMPT, LONG))
        with pytest.raises(RequestError, match=r"structured_outputs\.regex"):
            await engine.submit(
                PROMPT, replace(GREEDY, ignore_eos=False, structured_outputs=StructuredOutputs(regex="(a"))
            )
        yes = StructuredOutputs(choice=("yes", "no"))
        found = await pieces(engine, PROMPT, replace(GREEDY, ignore_eos=False, structured_outputs=yes))
        return text(await good), text(found)

    whole, chosen = engines.run(both())
    assert chosen in ("yes", "no") and len(whole) > 0


def test_what_can_be_refused_is_refused_at_once(engines: Any, engine: EngineClient) -> None:
    async def submit(prompt: list[int], params: SamplingParams) -> None:
        await engine.submit(prompt, params)

    with pytest.raises(ContextExceeded) as refused:
        engines.run(submit(PROMPT * 7, GREEDY))
    assert (refused.value.prompt, refused.value.capacity) == (70, 64)
    for prompt, params, named in (
        ([], GREEDY, "prompt"),
        ([1, 320], GREEDY, r"prompt\[1\]"),
        (PROMPT, replace(GREEDY, logit_bias={999: 1.0}), "logit_bias"),
    ):
        with pytest.raises(RequestError, match=named):
            engines.run(submit(prompt, params))
    with pytest.raises(RequestError, match="encodes no texts"):
        engines.run(engine.encode([((1, 2), 2)]))
    assert engine.open_requests == 0


def test_signals_to_the_whole_group_do_not_end_it(engines: Any, engine: EngineClient) -> None:
    async def signalled() -> list[Piece]:
        async with engines.under_way(engine, PROMPT, LONG) as generation:
            pid = engine.pid
            assert pid is not None
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(pid, number)
        rest = [piece async for piece in generation]
        assert engine.pid == pid and engine.losses == 0
        return rest

    assert engines.run(signalled())[-1].finish_reason is FinishReason.LENGTH


def test_a_reader_that_leaves_frees_its_row(engines: Any, engine: EngineClient) -> None:
    async def leave() -> int:
        before = engine.stats
        async with engines.under_way(engine, PROMPT, LONG) as generation:
            async with generation:
                pass
            assert engine.open_requests == 0
        # It is answered after the engine has read that the other one was left.
        assert len(ids(await pieces(engine, PROMPT, GREEDY))) == 12
        after = engine.stats
        assert (after.running, after.waiting) == (0, 0)
        return after.cancelled - before.cancelled

    # Where the engine had more to say than the reader had heard, nothing was left to give up.
    assert any(0 < engines.run(leave()) <= MAX_CHOICES for _ in range(20))


def test_a_time_that_is_over(engines: Any, engine: EngineClient) -> None:
    async def late() -> list[Exception]:
        before = engine.stats
        async with engines.stopped(engine):
            others = [await engine.submit(PROMPT, LONG) for _ in range(2)]
            queued = await engine.submit(PROMPT, LONG, seconds=0.02)
            raised = await outcome(queued)
        for other in others:
            assert await outcome(other) == []
        after = engine.stats
        assert (after.cancelled, after.finished) == (before.cancelled + 1, before.finished + 2)
        return raised

    (error,) = engines.run(late())
    assert isinstance(error, DeadlineExceeded) and "0.02 s" in str(error)


@pytest.fixture(scope="module")
def narrow(engines: Any) -> Iterator[EngineClient]:
    """One that lets little wait."""
    with engines.client(buffer_tokens=20, queue=2, guides=GuideLimits(pending=1)) as client:

        async def early() -> None:
            with pytest.raises(NotReady) as refused:
                await client.submit(PROMPT, LONG)
            assert refused.value.retry_after is not None
            await client.ready()

        engines.run(early())
        yield client


def test_slow_readers_are_bounded_and_hold_nobody_up(engines: Any, narrow: EngineClient) -> None:
    async def slow() -> tuple[list[Exception], list[Piece]]:
        sleeper = await narrow.submit(PROMPT, LONG)
        # An answer that may wait whole: how soon this task is scheduled is nothing to do with its reader.
        quick = await pieces(narrow, PROMPT, replace(LONG, max_tokens=20))
        while narrow.open_requests:  # noqa: ASYNC110 - what is waited for says nothing
            await asyncio.sleep(0.005)
        return await outcome(sleeper), quick

    raised, quick = engines.run(slow())
    (error,) = raised
    assert isinstance(error, SlowReader) and error.tokens > 20
    assert len(ids(quick)) == 20


def test_more_than_may_wait_are_told_to_come_back(engines: Any, narrow: EngineClient) -> None:
    async def crowd() -> None:
        taken = [await narrow.submit(PROMPT, GREEDY) for _ in range(4)]
        with pytest.raises(Overloaded) as refused:
            await narrow.submit(PROMPT, GREEDY)
        assert refused.value.retry_after >= 1
        for generation in taken:
            assert await outcome(generation) == []
        assert len(await pieces(narrow, PROMPT, GREEDY)) > 0

    engines.run(crowd())


def test_constraints_that_wait_to_be_compiled_are_bounded(engines: Any, narrow: EngineClient) -> None:
    async def crowd() -> None:
        guided = replace(GREEDY, ignore_eos=False, structured_outputs=StructuredOutputs(choice=("yes", "no")))
        async with engines.stopped(narrow):
            first = asyncio.create_task(pieces(narrow, PROMPT, guided))
            while not narrow.open_requests:  # noqa: ASYNC110 - what is waited for says nothing
                await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await narrow.submit(PROMPT, guided)
            plain = await narrow.submit(PROMPT, GREEDY)
        assert text(await first) in ("yes", "no") and await outcome(plain) == []

    engines.run(crowd())


def test_what_the_process_prints_is_logged(engines: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What poot refuses by name leaves no traceback and is not tried again; what nobody foresaw does, and is."""
    with engines.client(driver={"max_entry_bytes": 1}) as client, caplog.at_level("WARNING", "poot.serve"):
        state = engines.run(client.ended())
        assert state.phase is Phase.FAILED and "CompileLimit" in state.reason
    assert client.losses == 1 and not any(message.startswith("engine ") for message in caplog.messages)
    settings = EngineSettings(engines.model, "vpu:cpu")
    object.__setattr__(settings, "driver", "no options")
    caplog.clear()

    async def broken() -> None:
        client = EngineClient(settings)
        await client.start()
        state = await client.ended()
        assert state.phase is Phase.FAILED and "AttributeError" in state.reason and client.losses == 2
        await client.close()

    with caplog.at_level("WARNING", "poot.serve"):
        engines.run(broken())
    assert sum("AttributeError" in message and message.startswith("engine ") for message in caplog.messages) >= 2


def test_it_drains_within_its_bound(engines: Any) -> None:
    with engines.client() as client:

        async def drain() -> None:
            await client.ready()
            quick = await client.submit(PROMPT, GREEDY)
            assert client.pid is not None
            ending = asyncio.create_task(client.drain(30))
            await asyncio.sleep(0)
            assert client.state.phase is Phase.DRAINING
            with pytest.raises(Draining):
                await client.submit(PROMPT, GREEDY)
            assert await outcome(quick) == [] and await ending == 0

        engines.run(drain())

    with engines.client() as client:

        async def hurry() -> None:
            await client.ready()
            async with engines.stopped(client):
                waiting = [await client.submit(PROMPT, LONG) for _ in range(3)]
                assert await client.drain(0.1) == 3
            for generation in waiting:
                (error,) = await outcome(generation)
                assert isinstance(error, Draining)

        engines.run(hurry())


def test_a_killed_engine_is_replaced_once(engines: Any) -> None:
    """Every open request gets one error, in whatever state it is; a second loss soon after is the last."""
    with engines.client(loss_seconds=600.0) as client:

        async def kill() -> None:
            await client.ready()
            first = client.pid
            assert first is not None
            async with engines.under_way(client, PROMPT, LONG) as running:
                generations = [running, *[await client.submit(PROMPT, replace(LONG, n=2)) for _ in range(3)]]
                os.kill(first, signal.SIGKILL)
            for generation in generations:
                (error,) = await outcome(generation)
                assert isinstance(error, EngineLost) and "signal 9" in str(error)
            assert client.state.phase is Phase.RESTARTING and "signal 9" in client.state.reason
            with pytest.raises(NotReady) as refused:
                await client.submit(PROMPT, GREEDY)
            assert refused.value.retry_after is not None
            await client.ready()
            assert client.pid != first and client.losses == 1 and client.state.reason == ""
            stats = client.stats
            assert (stats.waiting, stats.running) == (0, 0)
            again = await pieces(client, PROMPT, GREEDY)
            assert len(ids(again)) == 12
            assert client.stats.generated_tokens == stats.generated_tokens + 12

            async with engines.stopped(client) as second:
                generation = await client.submit(PROMPT, LONG)
                os.kill(second, signal.SIGKILL)
            state = await client.ended()
            assert state.phase is Phase.FAILED and "lost again" in state.reason
            (error,) = await outcome(generation)
            assert isinstance(error, EngineLost)
            with pytest.raises(NotReady) as over:
                await client.submit(PROMPT, GREEDY)
            assert over.value.retry_after is None
            with pytest.raises(NotReady):
                await client.ready()

        engines.run(kill())


def test_an_engine_that_hangs_is_ended(engines: Any) -> None:
    with engines.client(stall_seconds=1.0) as client:

        async def hang() -> None:
            await client.ready()
            await asyncio.sleep(1.5)
            assert client.state.ready, "one that has nothing to do need not say anything"
            # The next engine is to answer, and is not ended where this machine holds it up.
            client.settings = replace(client.settings, stall_seconds=900.0)
            async with engines.stopped(client):
                (error,) = await outcome(await client.submit(PROMPT, GREEDY))
            assert isinstance(error, EngineLost) and "said nothing" in str(error)
            await client.ready()
            assert len(ids(await pieces(client, PROMPT, GREEDY))) == 12

        engines.run(hang())


def test_one_that_does_not_load_in_time_is_not_tried_for_ever(engines: Any) -> None:
    with engines.client(start_seconds=0.2) as client:
        state = engines.run(client.ended())
        assert state.phase is Phase.FAILED and "did not load within 0.2 s" in state.reason
        assert client.losses == 2


def test_what_another_process_would_find_too_is_not_tried_again(engines: Any) -> None:
    with engines.client(device="no-such-device") as client:
        state = engines.run(client.ended())
        assert state.phase is Phase.FAILED and "no-such-device" in state.reason
        assert client.losses == 1


_SERVER = """
import asyncio, sys
from poot_llm.driver import DriverOptions
from poot_serve.engine.client import EngineClient
from poot_serve.engine.settings import EngineSettings

async def main():
    client = EngineClient(EngineSettings(sys.argv[1], "vpu:cpu", DriverOptions(rows=1, capacity=64, chunk=16)))
    await client.start()
    if sys.argv[2] == "ready":
        await client.ready()
    while client.pid is None:
        await asyncio.sleep(0.01)
    print(client.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["loading", "ready"])
def test_a_server_that_is_killed_takes_its_engine_with_it(engines: Any, state: str) -> None:
    line = [sys.executable, "-c", _SERVER, str(engines.model), state]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    until = time.monotonic() + 120
    while not ended(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def ended(pid: int) -> bool:
    """Whether a process is gone, or nobody has asked how it ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"

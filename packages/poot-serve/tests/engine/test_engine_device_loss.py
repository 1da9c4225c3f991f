"""A device that is lost while an engine loads, reads a prompt, decodes, reads back: by a Vulkan layer below poot."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from poot_eval.conformance import open_or_skip
from poot_eval.conformance.vulkan_layer import DEVICE_LOST, build_or_skip
from poot_llm.driver import FinishReason
from poot_llm.sampling import SamplingParams
from poot_serve.engine.client import EngineClient, Phase
from poot_serve.engine.errors import EngineLost, NotReady

pytestmark = pytest.mark.device("vulkan")

PROMPT = [104, 277, 102, 110, 35, 101, 117, 114, 122, 113, 290, 7, 300, 9, 12, 60] * 2
LONG = SamplingParams(max_tokens=24, ignore_eos=True)
LONGER = SamplingParams(max_tokens=220, ignore_eos=True)
SUBMIT, WAIT = "vkQueueSubmit", "vkWaitForFences"
# Of four chunks the third one; of two answers that take hundreds of steps one behind both prompts.
PLACES = {"prefill": (SUBMIT, 2), "decode": (SUBMIT, 60), "readback": (WAIT, 60)}
"""Where a phase loses the device: at which call, from the first one of two requests on."""


class Fault:
    """Tells the layer of an engine process what to answer with, from a call on."""

    def __init__(self, folder: Path) -> None:
        self.order = folder / "arm"

    def arm(self, call: str, place: int) -> None:
        """Lose the device at the call number `place` from now on."""
        written = self.order.with_suffix(".new")
        written.write_text(json.dumps([call, place, DEVICE_LOST]))
        written.rename(self.order)

    async def taken(self) -> None:
        """Wait until the process has read it."""
        async with asyncio.timeout(240):
            while self.order.exists():  # noqa: ASYNC110 - another process takes it
                await asyncio.sleep(0.005)


@pytest.fixture
def fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Installs the device `faulty` for engine processes."""
    open_or_skip("vulkan").close()
    build_or_skip(tmp_path, "vulkan")
    installed = tmp_path / "faulty-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[poot.devices]\nfaulty = faulty_vulkan:FaultyDriver\n")
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parent / 'fixtures'}:{before}".rstrip(":"))
    monkeypatch.setenv("FAULTY_FOLDER", str(tmp_path))
    return Fault(tmp_path)


async def errors_of(client: EngineClient, fault: Fault, phase: str) -> list[list[Exception]]:
    """Two requests, lost in a phase; all that each of them raises."""
    fault.arm(*PLACES[phase])
    await fault.taken()
    generations = [await client.submit(PROMPT[place:], LONGER) for place in range(2)]
    raised: list[list[Exception]] = []
    answered = False
    for generation in generations:
        raised.append([])
        while True:
            try:
                piece = await anext(generation)
                assert piece.finish_reason is None
                answered = True
            except StopAsyncIteration:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
                raised[-1].append(error)
    assert answered == (phase != "prefill")
    return raised


def test_a_lost_device_ends_what_it_had_and_another_engine_takes_over(engines: Any, fault: Fault) -> None:
    options = {"rows": 2, "chunk": 8, "capacity": 256}
    with engines.client(device="faulty", driver=options, prepare_all=False, loss_seconds=0.001) as client:

        async def healthy() -> tuple[str, Any]:
            async with await client.submit(PROMPT, LONG) as generation:
                found = [piece async for piece in generation]
            assert found[-1].finish_reason is FinishReason.LENGTH
            return "".join(piece.text for piece in found), client.stats

        async def phases() -> None:
            await client.ready()
            answer, _ = await healthy()
            for number, phase in enumerate(("prefill", "decode", "readback"), 1):
                before = client.pid
                for raised in await errors_of(client, fault, phase):
                    (error,) = raised
                    assert isinstance(error, EngineLost) and "DeviceLost" in str(error), phase
                assert client.state.phase is Phase.RESTARTING and "DeviceLost" in client.state.reason
                with pytest.raises(NotReady):
                    await client.submit(PROMPT, LONG)
                await client.ready()
                assert client.pid != before and client.losses == number
                again, stats = await healthy()
                assert again == answer
                assert (stats.blocks_held, stats.running, stats.waiting) == (0, 0, 0)

        engines.run(phases())


def test_a_device_lost_while_it_loads_is_opened_once_more(engines: Any, fault: Fault) -> None:
    options = {"rows": 2, "chunk": 8, "capacity": 256}
    fault.arm(SUBMIT, 8)
    with engines.client(device="faulty", driver=options, prepare_all=False) as client:
        facts = engines.run(client.ready())
        assert client.losses == 1 and facts.rows == 2

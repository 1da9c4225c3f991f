"""Many clients that misbehave, and whether the server adds up afterwards: `hatch run bench:serve-soak [MODEL]`.

Clients stream, ask for whole answers, read slowly, leave in the middle and send what is wrong, for so many seconds.
Every answer is compared with the one that the same request got alone. Then clients leave in each state of a request.
Afterwards nothing may be open, every count must add up, and memory must be where it was. With `--term` the server is
told to end in the middle of it all, with `--kill-engine` its engine is killed. Exit status 1 where anything was not as
it should be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import served
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector

STORIES = ("Once upon a time", "The sea is", "In 1969", "def add(a, b):", "El perro", "A list of fruit:", "日本の")
TOKENS = (1, 4, 12, 24)
WEIGHTS = {"stream": 6, "whole": 3, "leave": 5, "slow": 2, "bad": 3, "guided": 1}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
WRONG: tuple[tuple[bytes, str | None], ...] = (
    (b"{", None),
    (b'{"prompt": "\xff"}', None),
    (b"[]", None),
    (b'{"prompt": "a", "max_tokens": "many"}', "max_tokens"),
    (b'{"prompt": "a", "unheard_of": 1}', "unheard_of"),
    (b'{"prompt": "a", "temperature": -1, "stream": true}', "temperature"),
    (b'{"prompt": "a", "guided_regex": "(", "stream": true}', "structured_outputs.regex"),
    (b'{"prompt": "a", "stop": [' + b'"x",' * 10_000 + b'"x"]}', "stop"),
    (b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", None),
    (json.dumps({"prompt": "word " * 20_000}).encode(), "prompt"),
)
"""Bodies, and the field that the refusal names."""
SETTLE_SECONDS = 30.0
LOOKS = 6
GROWTH, GROWTH_MB = 1.1, 64.0
"""What the server may hold at the end beyond what it held after the first look: caches that fill, arenas of malloc."""


class Soak:
    """One run: where the server is, what was seen, what was not as it should be."""

    def __init__(self, url: str, seed: int, pids: list[int]) -> None:
        self.url = url
        self.draw = random.Random(seed)
        self.pids = pids
        self.seen: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.known: dict[str, str] = {}
        self.looked: list[float] = []
        self.ending = False
        """Whether errors that say so are the server's due: it was told to end, or its engine was killed."""

    def fault(self, what: str) -> None:
        """Something was not as it should be."""
        self.faults[what[:200]] += 1

    def body(self, **more: Any) -> dict[str, Any]:
        """A request that can be told from others and has one answer."""
        number = self.draw.randrange(4)
        sampled = {"temperature": 0.9, "seed": number} if number else {"temperature": 0}
        return {"prompt": self.draw.choice(STORIES), "max_tokens": self.draw.choice(TOKENS), **sampled, **more}

    def compare(self, body: dict[str, Any], text: str) -> None:
        """The same request has the same answer, however it is asked for and whoever else is there."""
        key = json.dumps({name: value for name, value in body.items() if name != "stream"}, sort_keys=True)
        expected = self.known.setdefault(key, text)
        if expected != text:
            self.fault(f"another answer to {key}: {text!r} is not {expected!r}")

    # One action each; the result is what is counted.

    async def whole(self, session: ClientSession) -> str:
        """A buffered answer."""
        body = self.body()
        async with session.post(f"{self.url}/v1/completions", json=body) as answer:
            value = await answer.json()
            if answer.status != 200:
                return self.refused(answer.status, value)
            self.compare(body, value["choices"][0]["text"])
            return "answered"

    async def stream(self, session: ClientSession) -> str:
        """A streamed answer, read as it comes."""
        body = self.body(stream=True)
        async with session.post(f"{self.url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                return self.refused(answer.status, await answer.json())
            text, end = await _read(answer.content.iter_any())
        return self.ended(body, text, end)

    async def guided(self, session: ClientSession) -> str:
        """A streamed answer that must be an object, if it is long enough to have an end."""
        body = {"prompt": "An object: ", "max_tokens": 24, "temperature": 0, "stream": True, "guided_json": SCHEMA}
        async with session.post(f"{self.url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                return self.refused(answer.status, await answer.json())
            text, end = await _read(answer.content.iter_any())
        if end == "done" and text.rstrip().endswith("}") and set(json.loads(text)) != {"a"}:
            self.fault(f"guided: {text!r}")
        return self.ended(body, text, end)

    async def leave(self, session: ClientSession) -> str:
        """Leave at once, after a while, or after some pieces; streamed or not."""
        body = self.body(stream=self.draw.random() < 0.7, max_tokens=200, ignore_eos=True)
        patience = self.draw.choice((0.0, 0.05, 0.5, 2.0))

        async def ask() -> None:
            async with session.post(f"{self.url}/v1/completions", json=body) as answer:
                await answer.read()

        asking = asyncio.create_task(ask())
        await asyncio.wait((asking,), timeout=patience)
        if asking.done() and not asking.cancelled() and asking.exception() is not None:
            return "failed"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return "left"

    async def slow(self, session: ClientSession) -> str:
        """A stream that is read a few bytes at a time, from a socket that holds few."""
        body = self.body(stream=True, max_tokens=24)
        raw = json.dumps(body).encode()
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=256)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw)  # fmt: skip
        got = b""
        while part := await reader.read(200):
            got += part
            await asyncio.sleep(0.02)
        writer.close()
        head, _, rest = got.partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            return self.refused(int(head.split()[1]), json.loads(_joined(head, rest)))
        text, end = await _read(_once(_joined(head, rest)))
        return self.ended(body, text, end)

    async def bad(self, session: ClientSession) -> str:
        """What must be refused, with the field's name where there is one."""
        raw, param = self.draw.choice(WRONG)
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{self.url}/v1/completions", data=raw, headers=headers) as answer:
            value = await answer.json()
            if self.ending and answer.status == 503:
                return "ending"
            if not 400 <= answer.status < 500 or value["error"]["param"] != param:
                self.fault(f"bad {raw[:60]!r}: {answer.status} {value}")
            return f"{answer.status}"

    def refused(self, status: int, value: dict[str, Any]) -> str:
        """An error in place of an answer: never, unless the server ends."""
        if not self.ending or status != 503:
            self.fault(f"status {status}: {value['error']['message']}")
        return f"{status} {value['error']['code']}"

    def ended(self, body: dict[str, Any], text: str, end: str) -> str:
        """How a stream ended: done, an error's code, or cut, which it never may."""
        if end == "done":
            self.compare(body, text)
        elif end == "cut" or not self.ending:
            self.fault(f"a stream ended with {end}")
        return end

    async def client(self, session: ClientSession, until: float) -> None:
        """One client: an action after another."""
        while monotonic() < until:
            (kind,) = self.draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
            action: Callable[[ClientSession], Awaitable[str]] = getattr(self, kind)
            try:
                self.seen[f"{kind}: {await action(session)}"] += 1
            except (ClientError, OSError, ValueError, asyncio.IncompleteReadError) as error:
                if self.ending:
                    return
                self.fault(f"{kind}: {type(error).__name__}: {error}")

    async def metrics(self, session: ClientSession) -> dict[str, float]:
        """Every number of /metrics."""
        return await served.metrics(session, self.url)

    async def settled(self, session: ClientSession) -> dict[str, float]:
        """The metrics once nothing is open."""
        deadline = monotonic() + SETTLE_SECONDS
        while True:
            found = await self.metrics(session)
            open_now = {name: found[name] for name in ("poot_inflight_requests", "poot_batch_size", "poot_queue_depth")}
            if not any(open_now.values()):
                return found
            if monotonic() > deadline:
                self.fault(f"after {SETTLE_SECONDS:g} s there is still {open_now}")
                return found
            await asyncio.sleep(0.02)

    def add_up(self, found: dict[str, float]) -> None:
        """Sums of the metrics."""
        parts = ("completed", "cancelled", "errored", "refused")
        total = sum(found[f"poot_requests_{part}_total"] for part in parts) + found["poot_inflight_requests"]
        if total != found["poot_requests_total"]:
            self.fault(f"{found['poot_requests_total']:g} requests, {total:g} outcomes")
        if found.get("poot_kv_cache_blocks_used"):
            self.fault(f"{found['poot_kv_cache_blocks_used']:g} blocks are still held")
        ends = {name: value for name, value in found.items() if name.startswith("poot_answers_total")}
        print("answers", {name.partition('"')[2].partition('"')[0]: int(value) for name, value in ends.items()})

    async def disconnects(self, session: ClientSession) -> None:
        """Leave in each state, and how many steps the loop took until the request had nothing any more."""
        found = await self.metrics(session)
        rows, tokens = int(found["poot_slot_capacity"]), int(found["poot_context_tokens"])
        long, running, waiting = "word " * (tokens // 8), "poot_batch_size", "poot_queue_depth"
        states: dict[str, tuple[dict[str, Any], str, int]] = {
            "reading the prompt": ({"prompt": long, "stream": True}, running, 0),
            "streaming": ({"prompt": "Once", "stream": True}, running, 0),
            "buffered": ({"prompt": "Once"}, running, 0),
            "several answers": ({"prompt": "Once", "stream": True, "n": min(2, rows)}, running, 0),
            "guided": ({"prompt": "Once", "guided_regex": "[a-z ]{900}"}, running, 0),
            "waiting for a row": ({"prompt": "Once"}, waiting, rows),
        }
        for name, (body, gauge, others) in states.items():
            await self.settled(session)
            fields = {"max_tokens": tokens // 2, "ignore_eos": "guided_regex" not in body, "temperature": 0}
            beside = [self._ask(session, {**fields, "prompt": "Twice"}) for _ in range(others)]
            asking = [asyncio.create_task(ask) for ask in [*beside, self._ask(session, {**fields, **body})]]
            deadline = monotonic() + SETTLE_SECONDS
            while not (before := await self.metrics(session))[gauge]:
                if monotonic() > deadline or asking[-1].done():
                    self.fault(f"leaving while {name}: it never was")
                    break
            asking[-1].cancel()
            while (after := await self.metrics(session))[gauge] and monotonic() < deadline:
                pass
            steps = after["poot_step_seconds_count"] - before["poot_step_seconds_count"]
            print(f"leaving while {name}: gone after {steps:g} steps, with a look at the metrics before and after")
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, session: ClientSession, body: dict[str, Any]) -> None:
        async with session.post(f"{self.url}/v1/completions", json=body) as answer:
            await answer.read()

    async def watch(self, seconds: float) -> None:
        """Print what the server holds while clients are at work: it must not grow for ever."""
        for part in range(1, LOOKS):
            await asyncio.sleep(seconds / LOOKS)
            held = self.memory()
            self.looked.append(sum(held))
            print(f"memory, MB, after {part}/{LOOKS}:", [round(each) for each in held], flush=True)

    def grown(self) -> None:
        """Afterwards the server holds no more than it did when all clients had been at work for a while."""
        now, first = sum(self.memory()), self.looked[0]
        if now > first * GROWTH + GROWTH_MB:
            self.fault(f"memory: {now:.0f} MB, and {first:.0f} after 1/{LOOKS} of the time")

    def memory(self) -> list[float]:
        """MB that each process of the server holds."""
        pids = [*self.pids, *(child for pid in self.pids for child in served.children(pid))]
        return [_resident(pid) / 1e6 for pid in pids]


async def _read(chunks: AsyncIterator[bytes]) -> tuple[str, str]:
    """A stream's text, and how it ended: done, error CODE, or cut."""
    raw = b"".join([chunk async for chunk in chunks]).decode("utf-8")
    text, end = "", "cut"
    for line in raw.splitlines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return text, "done" if end == "cut" else end
        event = json.loads(line[6:])
        if "error" in event:
            end = f"error {event['error']['code']}"
        for choice in event.get("choices", ()):
            text += choice["text"]
    return text, end


async def _once(raw: bytes) -> AsyncIterator[bytes]:
    yield raw


def _joined(head: bytes, rest: bytes) -> bytes:
    """A body, its chunks joined where it is in chunks."""
    if b"chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size or b"0", 16)
        body, rest = body + rest[:length], rest[length + 2 :]
    return body


def _resident(pid: int) -> int:
    """Bytes in memory that are its own: files that it maps do not count."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


@asynccontextmanager
async def server(arguments: argparse.Namespace) -> AsyncGenerator[tuple[str, asyncio.subprocess.Process | None]]:
    """The server: one that is there, or one that is started and ended here."""
    if arguments.base_url:
        yield arguments.base_url.rstrip("/"), None
        return
    async with served.poot(arguments.model, arguments.device, arguments.rows, arguments.serve) as (url, process):
        yield url, process


async def soak(arguments: argparse.Namespace) -> int:
    """The whole run; the exit status."""
    timeout = ClientTimeout(total=600)
    async with (
        server(arguments) as (url, process),
        ClientSession(timeout=timeout, connector=TCPConnector(limit=0)) as session,
    ):
        print(await served.ready(session, url), flush=True)
        run = Soak(url, arguments.seed, [process.pid] if process else [])
        for _ in range(8):
            await run.whole(session)
        await run.settled(session)
        baseline = run.memory()
        until = monotonic() + arguments.seconds
        clients = [asyncio.create_task(run.client(session, until)) for _ in range(arguments.clients)]
        watching = asyncio.create_task(run.watch(arguments.seconds))
        if process and (arguments.term or arguments.kill_engine):
            await asyncio.sleep(arguments.seconds / 2)
            run.ending = True
            if arguments.kill_engine:
                os.kill(served.children(process.pid)[0], signal.SIGKILL)
                await asyncio.sleep(1)
                await served.ready(session, url)
            else:
                started = monotonic()
                process.terminate()
                await process.wait()
                print(f"ended {monotonic() - started:.1f} s after SIGTERM, with status {process.returncode}")
                if process.returncode:
                    run.fault(f"status {process.returncode} after SIGTERM")
        await asyncio.gather(*clients)
        watching.cancel()
        for name, count in sorted(run.seen.items()):
            print(f"{count:>7} {name}")
        if not process or process.returncode is None:
            found = await run.settled(session)
            run.add_up(found)
            if arguments.disconnects:
                await run.disconnects(session)
            run.add_up(await run.settled(session))
            if not arguments.kill_engine:
                run.grown()
            print("memory, MB:", [round(part) for part in baseline], "then", [round(part) for part in run.memory()])
    for what, count in run.faults.most_common():
        print(f"FAULT {count} x {what}")
    return 1 if run.faults else 0


def main() -> int:
    """Parse, run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2", help="(default: smollm2)")
    parser.add_argument("--device", default="auto", help="(default: auto)")
    parser.add_argument("--base-url", help="a server that runs already, in place of one that is started")
    parser.add_argument("--rows", type=int, default=16, help="of the server that is started (default: 16)")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further arguments for `poot serve`")
    parser.add_argument("--clients", type=int, default=64, help="(default: 64)")
    parser.add_argument("--seconds", type=float, default=300, help="(default: 300)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--no-disconnects", dest="disconnects", action="store_false", help="leave the last part out")
    parser.add_argument("--term", action="store_true", help="SIGTERM after half of the seconds")
    parser.add_argument(
        "--kill-engine", action="store_true", help="kill the engine's process after half of the seconds"
    )
    return asyncio.run(soak(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())

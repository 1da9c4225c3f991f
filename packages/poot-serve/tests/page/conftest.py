"""The page in a browser, and a server whose answers are written down by the test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from poot_serve.page import page_files

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

SECONDS = 10.0


class Answer:
    """What one request is answered with. Steps: str is an event's data, bytes go out as they are, an Event is waited
    for. A stream ends with the last step; `gone` is set once the client has left before that.
    """

    def __init__(self, *steps: str | bytes | threading.Event, status: int = 200, headers: dict[str, str] | None = None):
        self.steps = steps
        self.status = status
        self.headers = {"Content-Type": "text/event-stream"} if headers is None else headers
        self.gone = threading.Event()


class Scripted:
    """The scripted server: answers are given in order, `bodies` and `keys` are what was asked with."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.key: str | None = None
        self.not_ready: str | None = None
        self.models = ["smollm2"]
        self.url = ""

    def piece(self, text: str | None, finish: str | None = None) -> str:
        """A chunk of a streamed answer."""
        delta = {} if text is None else {"content": text}
        return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def end(self, tokens: int, finish: str = "stop") -> tuple[str, str, str]:
        """How a stream ends: the finish reason, the counts, and the end."""
        usage = {"prompt_tokens": 5, "completion_tokens": tokens}
        return self.piece(None, finish), json.dumps({"choices": [], "usage": usage}), "[DONE]"

    def streams(self, *steps: str | bytes | threading.Event) -> Answer:
        """The next answer is a stream of these steps."""
        self.answers.append(Answer(*steps))
        return self.answers[-1]

    def says(self, *texts: str, finish: str = "stop") -> Answer:
        """The next answer has a piece for each text."""
        return self.streams(*map(self.piece, texts), *self.end(len(texts), finish))

    def refuses(self, status: int, message: str, headers: dict[str, str] | None = None, **fields: Any) -> None:
        """The next answer is an error of OpenAI's shape."""
        body = json.dumps({"error": {"message": message, "type": "invalid_request_error", **fields}})
        headers = {"Content-Type": "application/json", **(headers or {})}
        self.answers.append(Answer(body.encode(), status=status, headers=headers))


def handler(scripted: Scripted) -> type[BaseHTTPRequestHandler]:
    pages = {page.path: page for page in page_files()}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Silence."""

        def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _json(self, status: int, value: object) -> None:
            self._send(status, {"Content-Type": "application/json"}, json.dumps(value).encode())

        def do_GET(self) -> None:
            if page := pages.get(self.path):
                self._send(200, {"Content-Type": page.media_type, **page.headers}, page.body)
            elif self.path == "/ready":
                reason = scripted.not_ready
                self._json(503 if reason else 200, {"ready": reason is None, "reason": reason})
            elif self.path == "/v1/models" and not self._authorized():
                self._json(401, {"error": {"message": "an API key is wanted"}})
            elif self.path == "/v1/models":
                self._json(200, {"data": [{"id": name} for name in scripted.models]})
            else:
                self._json(404, {"error": {"message": f"no {self.path}"}})

        def _authorized(self) -> bool:
            return scripted.key is None or self.headers["Authorization"] == f"Bearer {scripted.key}"

        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            scripted.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            scripted.keys.append(self.headers["Authorization"])
            answer = scripted.answers.pop(0)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for step in answer.steps:
                    self._step(step, answer)
            except (BrokenPipeError, ConnectionResetError):
                answer.gone.set()

        def _step(self, step: str | bytes | threading.Event, answer: Answer) -> None:
            if isinstance(step, threading.Event):
                while not step.wait(0.02):
                    self.wfile.write(b": waiting\n\n")
            else:
                self.wfile.write(step if isinstance(step, bytes) else f"data: {step}\n\n".encode())

    return Handler


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    state = Scripted()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(state))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def wrong() -> list[str]:
    """What the page's scripts threw and what its policy forbade."""
    return []


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[Page]:
    """One tab for all tests: each has an origin of its own, so that nothing is stored from one to the next."""
    context = browser.new_context(locale="en-GB")
    context.set_default_timeout(SECONDS * 1000)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(tab: Page, scripted: Scripted, wrong: list[str]) -> Iterator[Page]:
    """The page, open. Anything `wrong` in the end fails the test."""

    def thrown(error: object) -> None:
        wrong.append(str(error))

    def said(line: ConsoleMessage) -> None:
        if "Content Security Policy" in line.text:
            wrong.append(line.text)

    tab.on("pageerror", thrown)
    tab.on("console", said)
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=scripted.url)
    tab.set_viewport_size({"width": 900, "height": 700})
    tab.emulate_media(color_scheme="light")
    tab.goto(scripted.url)
    yield tab
    tab.unroute_all()
    tab.goto("about:blank")
    tab.remove_listener("pageerror", thrown)
    tab.remove_listener("console", said)
    assert wrong == []

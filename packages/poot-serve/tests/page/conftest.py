"""A browser, the page, and a server whose answers are written down by the test."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from poot_serve.page import page_files

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SECONDS = 10.0
SCREENSHOTS = Path(__file__).resolve().parents[4] / "artifacts" / "page"


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
    """The scripted server: `answers` are given in order, `bodies` and `keys` are what was asked with."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.key: str | None = None
        self.not_ready: str | None = None
        self.models = ["smollm2"]
        self.url = ""


def piece(text: str | None, finish: str | None = None) -> str:
    """A chunk of a streamed answer."""
    delta = {} if text is None else {"content": text}
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage(tokens: int) -> str:
    """The chunk that has the counts."""
    return json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})


def whole(*texts: str, finish: str = "stop") -> Answer:
    """An answer with a piece for each text."""
    return Answer(*map(piece, texts), piece(None, finish), usage(len(texts)), "[DONE]")


def refusal(status: int, message: str, headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    """An error of OpenAI's shape."""
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", **fields}})
    return Answer(body.encode(), status=status, headers={"Content-Type": "application/json", **(headers or {})})


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
                self._json(503 if reason else 200, {"error": {"message": reason}} if reason else {"status": "ready"})
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. CI has it; elsewhere its absence is a skip.

    A module's, not the session's: while it is there, playwright's event loop runs in this thread, and no other can.
    """
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        reason = "there is no chromium on the path"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        # Without a sandbox: containers rarely allow one, and the page is this repository's own.
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Browser, scripted: Scripted) -> Iterator[Page]:
    """The page, open. What its scripts throw, and what its policy forbids, fails the test."""
    context = browser.new_context(viewport={"width": 900, "height": 700}, locale="en-GB")
    context.set_default_timeout(SECONDS * 1000)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=scripted.url)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
    opened.goto(scripted.url)
    yield opened
    context.close()
    assert wrong == []


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where pictures of the page are kept; not committed."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS

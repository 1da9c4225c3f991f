"""Traces: a request's span as a collector of OpenTelemetry's gets it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.datastructures import Headers

from poot_executor.errors import SettingsError
from poot_serve.http.metrics import Metrics, Outcome
from poot_serve.http.settings import HttpSettings
from poot_serve.http.tracing import Traces

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Collector(HTTPServer):
    """Keeps the spans that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                import gzip

                data = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    data = gzip.decompress(data)
                request = ExportTraceServiceRequest.FromString(data)
                spans.extend(s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def attributes(span: Any) -> dict[str, Any]:
    """A span's attributes by name."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_request_is_a_span(collector: Collector, checkpoint: Any) -> None:
    from poot_serve.engine.client import EngineClient
    from poot_serve.engine.settings import EngineSettings

    async def go() -> None:
        traces = Traces(f"http://127.0.0.1:{collector.server_port}/v1/traces", "tiny")
        record = Metrics(EngineClient(EngineSettings(checkpoint)), ("tiny",)).begin()
        record.prompt_tokens, record.completion_tokens = 5, 7
        record.queued(0.25)
        record.piece(0, 1)
        record.end(Outcome.COMPLETED)
        headers = Headers({"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"})
        scope = {"method": "POST", "path": "/v1/chat/completions"}
        traces.end(traces.begin(scope, headers, "req-1"), "POST", "/v1/chat/completions", 200, record)
        traces.end(traces.begin(scope, Headers({}), "req-2"), "POST", "none", 503, None)
        await asyncio.to_thread(traces.close)

    asyncio.run(go())
    good, bad = collector.spans
    assert good.name == "POST /v1/chat/completions" and good.trace_id.hex() == TRACE
    found = attributes(good)
    assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.request.model"] == "tiny"
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (5, 7)
    assert found["poot.outcome"] == "completed" and found["poot.queue_ms"] == 250 and found["poot.ttft_ms"] > 0
    assert good.status.code == 0 and bad.status.code == 2
    assert attributes(bad)["http.response.status_code"] == 503


def test_an_address_is_a_url() -> None:
    with pytest.raises(SettingsError, match="traces"):
        HttpSettings(traces="localhost:4318")

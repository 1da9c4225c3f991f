"""Traces: a span for each request, sent by OpenTelemetry, which the extra `traces` brings."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import Scope

from poot_executor.errors import SettingsError
from poot_serve.http.metrics import Outcome, Record

if TYPE_CHECKING:
    from opentelemetry.trace import Span

LAST_SECONDS = 3.0
"""For the last spans to be sent when the server ends."""
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/responses": "chat",
    "/v1/embeddings": "embeddings",
}
"""What OpenTelemetry's conventions for generative models call a route's work."""


class Traces:
    """Spans by the conventions for HTTP and for generative models. A request that comes with `traceparent` is part of
    that trace.
    """

    def __init__(self, endpoint: str, model: str) -> None:
        """`endpoint` takes OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces. Raises SettingsError where
        OpenTelemetry is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise SettingsError(f'traces need OpenTelemetry: pip install "poot-serve[traces]" ({error})') from error
        resource = Resource.create({"service.name": "poot-serve", "service.version": version("poot-serve")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("poot_serve")
        self._propagator = TraceContextTextMapPropagator()
        self._model = model

    def begin(self, scope: Scope, headers: Headers, name: str) -> Span:
        """A request has come; `name` is its own."""
        from opentelemetry.trace import SpanKind

        carrier = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
        return self._tracer.start_span(
            scope["method"],
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={
                "http.request.method": scope["method"],
                "url.path": scope["path"][:200],
                "poot.request_id": name,
            },
        )

    def end(self, span: Span, method: str, route: str, status: int, record: Record | None) -> None:
        """It has ended, with what is known of it."""
        from opentelemetry.trace import StatusCode

        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        failed = status >= 500
        if record is not None:
            outcome = record.outcome.value if record.outcome else ""
            failed = failed or record.outcome is Outcome.ERRORED
            if route in OPERATIONS:
                span.set_attribute("gen_ai.operation.name", OPERATIONS[route])
            span.set_attribute("gen_ai.request.model", self._model)
            span.set_attribute("gen_ai.usage.input_tokens", record.prompt_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", record.completion_tokens)
            span.set_attribute("poot.outcome", outcome)
            for key, value in (("poot.queue_ms", record.queue_ms), ("poot.ttft_ms", record.ttft_ms)):
                if value is not None:
                    span.set_attribute(key, value)
        if failed:
            span.set_status(StatusCode.ERROR)
        span.end()

    def close(self) -> None:
        """Send what is left, within `LAST_SECONDS`."""
        self._provider.force_flush(int(1000 * LAST_SECONDS))
        self._provider.shutdown()

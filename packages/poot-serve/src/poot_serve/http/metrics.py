"""What the server counts, for Prometheus: requests by how they ended, tokens, latencies, the engine's own counts."""

from __future__ import annotations

import time
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

from poot_serve.engine.client import EngineClient
from poot_serve.http.engine_metrics import EngineCollector

MILLISECONDS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Outcome(Enum):
    """How a request ended. Each has exactly one."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    ERRORED = "errored"
    REFUSED = "refused"


class Metrics:
    """One server's counts. `poot_requests_total` is the sum of the four outcomes and `poot_inflight_requests`."""

    def __init__(self, client: EngineClient, names: tuple[str, ...]) -> None:
        self._registry = registry = CollectorRegistry()
        self.total = Counter("poot_requests", "Requests for answers, embeddings or scores", registry=registry)
        self.outcomes = {
            outcome: Counter(f"poot_requests_{outcome.value}", text, registry=registry)
            for outcome, text in {
                Outcome.COMPLETED: "Requests whose whole answer was handed over",
                Outcome.CANCELLED: "Requests whose client left before that",
                Outcome.ERRORED: "Requests that failed through no fault of theirs",
                Outcome.REFUSED: "Requests that were refused for what they ask, or for overload",
            }.items()
        }
        self.inflight = Gauge("poot_inflight_requests", "Requests that have not ended", registry=registry)
        self.prompt = Counter("poot_prompt_tokens", "Tokens of prompts, as usage counts them", registry=registry)
        self.completion = Counter(
            "poot_completion_tokens", "Tokens of answers, as usage counts them", registry=registry
        )
        self.ttft = _histogram("poot_ttft_ms", "From a request to the first piece of its answer, of streams", registry)
        self.itl = _histogram("poot_itl_ms", "Between two pieces of one answer, per token, of streams", registry)
        self.e2e = _histogram("poot_request_e2e_ms", "From a request to the end of its answer", registry)
        self.queue = _histogram("poot_queue_wait_ms", "From a request to a row on the device", registry)
        self._http = Counter("poot_http_responses", "Responses", ["route", "status"], registry=registry)
        info = Gauge("poot_model_info", "The model that is served", ["model"], registry=registry)
        info.labels(names[0]).set(1)
        engine: Collector = EngineCollector(client)
        registry.register(engine)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(self._registry)

    def response(self, route: str, status: int) -> None:
        """Count a response that was begun."""
        self._http.labels(route, f"{status}").inc()

    def begin(self) -> Record:
        """A request has come."""
        self.total.inc()
        self.inflight.inc()
        return Record(self)


class Record:
    """One request as it is counted."""

    __slots__ = (
        "_last", "_metrics", "_started", "completion_tokens", "outcome", "prompt_tokens", "queue_ms", "ttft_ms",
    )  # fmt: skip

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started = time.perf_counter()
        self._last: dict[int, float] = {}
        self.outcome: Outcome | None = None
        """None while it runs."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.queue_ms: float | None = None
        """How long it waited for a row; None where it had none."""
        self.ttft_ms: float | None = None
        """To the first piece of a stream; None where there was none."""

    def queued(self, seconds: float) -> None:
        """How long it waited for a row."""
        self.queue_ms = 1000 * seconds
        self._metrics.queue.observe(self.queue_ms)

    def piece(self, choice: int, tokens: int) -> None:
        """A piece of a stream is there."""
        now = time.perf_counter()
        if not self._last:
            self.ttft_ms = 1000 * (now - self._started)
            self._metrics.ttft.observe(self.ttft_ms)
        elif choice in self._last and tokens:
            each = 1000 * (now - self._last[choice]) / tokens
            for _ in range(tokens):
                self._metrics.itl.observe(each)
        self._last[choice] = now

    def end(self, outcome: Outcome) -> None:
        """It has ended; only the first end counts."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        metrics = self._metrics
        metrics.prompt.inc(self.prompt_tokens)
        metrics.completion.inc(self.completion_tokens)
        if outcome is Outcome.COMPLETED:
            metrics.e2e.observe(1000 * (time.perf_counter() - self._started))
        metrics.inflight.dec()
        metrics.outcomes[outcome].inc()


def _histogram(name: str, text: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, text, buckets=MILLISECONDS, registry=registry)

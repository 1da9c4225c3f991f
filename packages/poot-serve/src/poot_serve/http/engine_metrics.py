"""The engine's counts for Prometheus, read from its last report when they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from poot_serve.engine.client import EngineClient
from poot_serve.engine.life import Phase
from poot_serve.engine.stats import HOST_SECONDS, STEP_SECONDS, EngineStats


class EngineCollector(Collector):
    """Reads a client's stats, facts and state."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._started = time.monotonic()

    def collect(self) -> Iterator[Metric]:
        """Everything, as it is now."""
        stats, facts, state = self._client.stats, self._client.facts, self._client.state
        yield _gauge("poot_uptime_seconds", "Since the server began", time.monotonic() - self._started)
        yield _gauge("poot_ready", "1 where requests are taken", int(state.ready))
        phases = GaugeMetricFamily("poot_engine_phase", "1 for the phase that the engine is in", labels=["phase"])
        for phase in Phase:
            phases.add_metric([phase.value], int(phase is state.phase))
        yield phases
        yield _counter("poot_engine_losses", "Engines that were lost", self._client.losses)
        yield from _answers(stats)
        yield from _blocks(stats)
        yield _histogram("poot_step_seconds", "Turns of the loop that stepped", STEP_SECONDS, stats.step_buckets,
                         stats.step_seconds)  # fmt: skip
        yield _histogram("poot_loop_host_seconds", "Processor time of a turn in the loop itself", HOST_SECONDS,
                         stats.host_buckets, stats.host_seconds)  # fmt: skip
        yield _counter("poot_loop_device_seconds", "Processor time of the loop's thread in beginning and ending steps",
                       stats.device_seconds)  # fmt: skip
        yield _counter("poot_loop_wait_seconds", "Wall time in which turns waited for steps", stats.wait_seconds)
        if facts is not None:
            yield _gauge("poot_slot_capacity", "Answers that can run at once", facts.rows)
            yield _gauge("poot_context_tokens", "Tokens of prompt and answer together", facts.capacity)
            yield _gauge("poot_gpu_weight_bytes", "Weights on the device", facts.weight_bytes)
            yield _gauge("poot_gpu_kv_cache_bytes", "Keys and values on the device", facts.kv_bytes)
            device = GaugeMetricFamily("poot_device_info", "The device that runs the model", labels=["device"])
            device.add_metric([facts.device], 1)
            yield device
        if stats.device_bytes is not None:
            yield _gauge("poot_gpu_resident_bytes", "What the engine holds on the device", stats.device_bytes)
        if stats.device_free is not None:
            yield _gauge("poot_gpu_free_bytes", "Free on the device", stats.device_free)


def _answers(stats: EngineStats) -> Iterator[Metric]:
    yield _gauge("poot_queue_depth", "Answers that wait for a row", stats.waiting + stats.compiling)
    yield _gauge("poot_batch_size", "Answers that have a row", stats.running)
    ended = CounterMetricFamily("poot_answers", "Answers by how they ended; a request has n of them", labels=["end"])
    for name in ("finished", "cancelled", "failed"):
        ended.add_metric([name], getattr(stats, name))
    yield ended
    yield _counter("poot_requests_preempted", "Answers that gave their room to others", stats.preemptions)
    yield _counter("poot_engine_prompt_tokens", "Prompt tokens of answers that got a row", stats.prompt_tokens)
    yield _counter("poot_engine_generated_tokens", "Tokens that the engine committed", stats.generated_tokens)
    yield _counter("poot_prefix_cache_query_tokens", "Prompt tokens looked up", stats.prompt_tokens)
    yield _counter("poot_prefix_cache_hit_tokens", "Of them, found computed", stats.prefix_tokens)
    share = stats.prefix_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0
    yield _gauge("poot_prefix_cache_hit_rate", "The share of prompt tokens that was found computed", share)
    yield _counter("poot_speculative_forwarded_tokens", "Tokens that were guessed", stats.guessed_tokens)
    yield _counter("poot_speculative_committed_tokens", "Of them, right", stats.accepted_tokens)


def _blocks(stats: EngineStats) -> Iterator[Metric]:
    total, held = stats.blocks_total, stats.blocks_held
    if total is None or held is None:
        return
    yield _gauge("poot_kv_cache_blocks_total", "Blocks of 16 positions", total)
    yield _gauge("poot_kv_cache_blocks_used", "Of them, held by open answers", held)
    yield _gauge(
        "poot_kv_cache_blocks_cached",
        "Of them, known to the prefix cache",
        stats.blocks_cached or 0,
    )
    yield _gauge("poot_kv_cache_usage_ratio", "The share held by open answers", held / total if total else 0.0)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, bounds: tuple[float, ...], counts: tuple[int, ...], total: float) -> Metric:
    buckets, so_far = [], 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=total)

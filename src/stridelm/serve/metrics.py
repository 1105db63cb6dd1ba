"""What the engine does, as Prometheus metrics under vLLM's names, so that dashboards and benchmark tools read them.

One difference: vLLM records the whole time between two steps as one inter-token latency, however many tokens the step
added. Here the time is divided by the number of the stride's tokens, so that the mean is the time per token. All tokens
of the first stride count as the first token: they have a time to first token and no latency between them.
"""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stridelm.engine.worker import Ending, Worker
from stridelm.types import Sequence, Stride

_LABELS = ("model_name", "engine")
_ENDINGS: tuple[Ending, ...] = ("stop", "length", "abort", "error")
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_BETWEEN_TOKENS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_WHOLE_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)


class Metrics:
    """Observes a worker. Each server has a registry of its own, so that several can run in one process."""

    def __init__(self, worker: Worker, name: str) -> None:
        """`name`: the model's, in the label `model_name`."""
        self._registry = CollectorRegistry()
        self._labels = (name, "0")
        self._latest: dict[Sequence, float | None] = {}
        """When the latest token came, for each sequence that has begun."""
        self._prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of requests that have begun.")
        self._generation_tokens = self._counter("vllm:generation_tokens", "Tokens written.")
        self._queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._drafts = self._counter("vllm:spec_decode_num_drafts", "Forward passes of a sequence with drafts in them.")
        self._draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.")
        self._accepted = self._counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._forwards = self._counter("stridelm:forwards", "Forward passes of a sequence that brought tokens.")
        self._own_forwards = self._counter("stridelm:own_forwards", "Those of them that the backend ran by itself.")
        self._first_token = self._histogram("vllm:time_to_first_token_seconds", "Time to first token.", _FIRST_TOKEN)
        self._between = self._histogram("vllm:inter_token_latency_seconds", "Time a later token took.", _BETWEEN_TOKENS)
        self._whole = self._histogram("vllm:e2e_request_latency_seconds", "Time of a whole answer.", _WHOLE_REQUEST)
        self._accepted_at = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by their place in the draft, from 0.",
            (*_LABELS, "position"),
            registry=self._registry,
        )
        ended = Counter(
            "vllm:request_success",
            "Requests, by how they ended.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._ended = {ending: ended.labels(*self._labels, ending) for ending in _ENDINGS}
        self._registry.register(_EngineCollector(worker, self._labels))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry)

    def strode(self, sequence: Sequence, stride: Stride) -> None:
        if sequence not in self._latest:
            self._begin(sequence)
        if stride.tokens:
            self._count(stride)
            self._time(sequence, stride)

    def ended(self, sequence: Sequence, ending: Ending) -> None:
        self._latest.pop(sequence, None)
        self._ended[ending].inc()
        if sequence.finish_reason:
            self._whole.observe(time.perf_counter() - sequence.stats.started)

    def _begin(self, sequence: Sequence) -> None:
        stats = sequence.stats
        self._latest[sequence] = None
        self._prompt_tokens.inc(stats.prompt_tokens)
        if sequence.shares_prefixes:
            self._queries.inc(stats.prompt_tokens)
            self._hits.inc(stats.reused)

    def _time(self, sequence: Sequence, stride: Stride) -> None:
        now, before = time.perf_counter(), self._latest[sequence]
        self._latest[sequence] = now
        if before is None:
            self._first_token.observe(now - sequence.stats.started)
            return
        for _ in stride.tokens:
            self._between.observe((now - before) / len(stride.tokens))

    def _count(self, stride: Stride) -> None:
        self._generation_tokens.inc(len(stride.tokens))
        self._forwards.inc()
        self._own_forwards.inc(stride.is_own)
        # Unverified decoders have no drafts: the tokens of their masks are kept without being verified.
        if stride.drafted:
            accepted = sum(source != "model" for source in stride.sources)
            self._drafts.inc()
            self._draft_tokens.inc(stride.drafted)
            self._accepted.inc(accepted)
            for position in range(accepted):
                self._accepted_at.labels(*self._labels, str(position)).inc()

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(name, what, _LABELS, registry=self._registry).labels(*self._labels)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, what, _LABELS, buckets=buckets, registry=self._registry).labels(*self._labels)


class _EngineCollector(Collector):
    """Figures that are read from the engine on request, rather than recorded as they change."""

    def __init__(self, worker: Worker, labels: tuple[str, str]) -> None:
        self._worker = worker
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        worker, cache = self._worker, self._worker.engine.forward.cache
        gauges = (
            ("vllm:num_requests_running", "Sequences that take part in steps.", worker.running),
            ("vllm:num_requests_waiting", "Sequences that wait for their first step.", worker.waiting),
            ("vllm:kv_cache_usage_perc", "Use of the KV cache; 1 is full.", 1 - cache.free_blocks / cache.block_count),
        )
        for name, what, value in gauges:
            gauge = GaugeMetricFamily(name, what, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        made_room = worker.engine.scheduler.preemptions
        failed = worker.engine.own_steps.failures
        counters = (
            ("vllm:num_preemptions", "Sequences that made room for others, to be read again.", made_room),
            ("stridelm:own_step_failures", "What failed in the backend's own steps; the host ran it again.", failed),
        )
        for name, what, value in counters:
            counter = CounterMetricFamily(name, what, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter

"""Metrics under vLLM's names, so that its dashboards and autoscalers read this server."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from shardwise.commands.run.serving import Engine, Generation, StepRecord

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
SECONDS += (20, 40, 80, 160, 640, 2560)
BETWEEN = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
BETWEEN += (0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
STEP_TOKENS = tuple(2**i for i in range(15))
NAMES = ("model_name", "engine")
"""Labels of every metric of the engine."""

COUNTERS = {
    "num_preemptions": "Preemptions.",
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens of answers.",
    "prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "spec_decode_num_draft_tokens": "Tokens guessed.",
    "spec_decode_num_accepted_tokens": "Guessed tokens that were accepted.",
}
STEP_SECONDS = {
    "step_seconds": "Measured seconds of steps.",
    "predicted_step_seconds": "Predicted seconds of the same steps; 0 without a plan.",
}
HISTOGRAMS = {
    "time_to_first_token_seconds": ("Seconds from arrival to the first token.", SECONDS),
    "inter_token_latency_seconds": ("Token to token.", BETWEEN),
    "request_time_per_output_token_seconds": (
        "Mean seconds per output token of an answer.",
        BETWEEN,
    ),
    "e2e_request_latency_seconds": ("Seconds from arrival to the last token.", SECONDS),
    "request_queue_time_seconds": ("Seconds from arrival to the first step.", SECONDS),
    "request_prefill_time_seconds": ("Seconds from the first step to the first token.", SECONDS),
    "request_decode_time_seconds": ("Seconds from the first to the last token.", SECONDS),
    "request_inference_time_seconds": ("Seconds from the first step to the last token.", SECONDS),
    "request_prompt_tokens": ("Tokens in a prompt.", TOKENS),
    "request_generation_tokens": ("Tokens in an answer.", TOKENS),
    "iteration_tokens_total": ("Tokens in a step.", STEP_TOKENS),
}
REASONS = ("stop", "length", "abort")


class ServerMetrics:
    """Counters of one server, in a registry of its own."""

    def __init__(
        self,
        model: str,
        engine: Engine,
        predicted: Callable[[StepRecord], float | None] = lambda _: None,
    ) -> None:
        registry = self.registry = CollectorRegistry()
        self._engine, self._predicted = engine, predicted
        labels = (model, "0")
        self.counters = {
            name: Counter(f"vllm:{name}", said, NAMES, registry=registry).labels(*labels)
            for name, said in COUNTERS.items()
        }
        self._seconds = {
            name: Counter(f"shardwise:{name}", said, NAMES, registry=registry).labels(*labels)
            for name, said in STEP_SECONDS.items()
        }
        self.histograms = {
            name: Histogram(f"vllm:{name}", said, NAMES, registry=registry, buckets=buckets).labels(
                *labels
            )
            for name, (said, buckets) in HISTOGRAMS.items()
        }
        ended = Counter(
            "vllm:request_success",
            "Answers by finish reason.",
            (*NAMES, "finished_reason"),
            registry=registry,
        )
        self._ended = {reason: ended.labels(*labels, reason) for reason in REASONS}
        self._answers = Counter(
            "http_requests",
            "HTTP requests by path and status; 499: the client disconnected.",
            ("handler", "status"),
            registry=registry,
        )
        self._gauges(labels)

    def _gauges(self, labels: tuple[str, str]) -> None:
        engine, registry = self._engine, self.registry
        read = {
            "num_requests_running": lambda: engine.outstanding - engine.queued,
            "num_requests_waiting": lambda: engine.queued,
            "kv_cache_usage_perc": lambda: 1 - engine.available / engine.pages,
        }
        for name, value in read.items():
            gauge = Gauge(f"vllm:{name}", "Now.", NAMES, registry=registry)
            gauge.labels(*labels).set_function(value)
        said = "Step programs compiled so far."
        compiled = Gauge("shardwise:compiled_programs", said, NAMES, registry=registry)
        executors = [replica.executor for replica in engine.replicas]
        compiled.labels(*labels).set_function(lambda: sum(e.programs for e in executors))
        sizes = {"block_size": str(engine.config.page_size), "num_gpu_blocks": str(engine.pages)}
        names = (*NAMES, *sizes)
        cache = Gauge("vllm:cache_config_info", "The cache.", names, registry=registry)
        cache.labels(*labels, *sizes.values()).set(1)

    def stepped(self, record: StepRecord) -> None:
        """One step more; called on the engine's thread."""
        shape = record.shape
        tokens = shape.prefill_tokens + shape.decode_tokens
        self.histograms["iteration_tokens_total"].observe(tokens)
        self.counters["generation_tokens"].inc(shape.samples * record.steps + record.accepted)
        self.counters["spec_decode_num_draft_tokens"].inc(record.guessed)
        self.counters["spec_decode_num_accepted_tokens"].inc(record.accepted)
        self._seconds["step_seconds"].inc(max(record.seconds, 0.0))
        self._seconds["predicted_step_seconds"].inc(self._predicted(record) or 0.0)

    def ended(self, generation: Generation, count: int, reason: str) -> None:
        """An answer of `count` tokens has ended."""
        observe = {name: histogram.observe for name, histogram in self.histograms.items()}
        self._ended[reason].inc()
        prompt = len(generation.prompt)
        self.counters["prompt_tokens"].inc(prompt)
        self.counters["prefix_cache_queries"].inc(prompt)
        self.counters["prefix_cache_hits"].inc(generation.cached_tokens)
        self.counters["num_preemptions"].inc(generation.preemptions)
        observe["request_prompt_tokens"](prompt)
        observe["request_generation_tokens"](count)
        arrived, first, last = generation.arrived, generation.first, generation.last
        if first is None or last is None:
            return
        started = generation.job.started or arrived
        observe["e2e_request_latency_seconds"](last - arrived)
        observe["request_queue_time_seconds"](started - arrived)
        observe["request_prefill_time_seconds"](first - started)
        observe["request_decode_time_seconds"](last - first)
        observe["request_inference_time_seconds"](last - started)
        observe["time_to_first_token_seconds"](first - arrived)
        if count > 1:
            observe["request_time_per_output_token_seconds"]((last - first) / (count - 1))

    def answered(self, handler: str, status: int) -> None:
        """A request of HTTP has its answer, or its client has left (499)."""
        self._answers.labels(handler, str(status)).inc()

    def text(self) -> bytes:
        """What GET /metrics answers."""
        return generate_latest(self.registry)

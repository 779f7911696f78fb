"""The figures of a simulation, as its document has them: `metrics.py` makes them.

Names are those of `vllm bench serve` where it has them; `metrics.DEFINITIONS` says how each is
measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise.boundary.records import Record, part


@dataclass(frozen=True, kw_only=True)
class LatencyFigures(Record):
    """How long completed requests took, in milliseconds; null where none has such a time."""

    mean_ttft_ms: float | None
    """Mean of the times to the first token."""
    std_ttft_ms: float | None
    """Standard deviation of the times to the first token."""
    median_ttft_ms: float | None
    """Median of the times to the first token."""
    p90_ttft_ms: float | None
    """90th percentile of the times to the first token."""
    p95_ttft_ms: float | None
    """95th percentile of the times to the first token."""
    p99_ttft_ms: float | None
    """99th percentile of the times to the first token."""
    mean_tpot_ms: float | None
    """Mean of the times per output token."""
    std_tpot_ms: float | None
    """Standard deviation of the times per output token."""
    median_tpot_ms: float | None
    """Median of the times per output token."""
    p90_tpot_ms: float | None
    """90th percentile of the times per output token."""
    p95_tpot_ms: float | None
    """95th percentile of the times per output token."""
    p99_tpot_ms: float | None
    """99th percentile of the times per output token."""
    mean_itl_ms: float | None
    """Mean of the times between two tokens."""
    std_itl_ms: float | None
    """Standard deviation of the times between two tokens."""
    median_itl_ms: float | None
    """Median of the times between two tokens."""
    p90_itl_ms: float | None
    """90th percentile of the times between two tokens."""
    p95_itl_ms: float | None
    """95th percentile of the times between two tokens."""
    p99_itl_ms: float | None
    """99th percentile of the times between two tokens."""
    mean_e2el_ms: float | None
    """Mean of the times of whole requests."""
    std_e2el_ms: float | None
    """Standard deviation of the times of whole requests."""
    median_e2el_ms: float | None
    """Median of the times of whole requests."""
    p90_e2el_ms: float | None
    """90th percentile of the times of whole requests."""
    p95_e2el_ms: float | None
    """95th percentile of the times of whole requests."""
    p99_e2el_ms: float | None
    """99th percentile of the times of whole requests."""


@dataclass(frozen=True, kw_only=True)
class ReplicaLoad(Record):
    """How full one replica was; averages are over time."""

    index: int
    """Its number, from 0."""
    role: Literal["serve", "prefill"]
    """Whether it answers or only prefills."""
    requests: int
    """Requests that it was given."""
    utilisation: float
    """Share of the duration in which it ran a step."""
    steps: int
    """Steps that it ran."""
    mean_waiting: float
    """Requests that wait, in the mean."""
    max_waiting: int
    """Requests that wait, at most."""
    mean_running: float
    """Sequences that run, in the mean."""
    max_running: int
    """Sequences that run, at most."""
    peak_cache_use: float
    """Share of the cache's pages in use, at most."""


@dataclass(frozen=True, kw_only=True)
class UsdOfRun(Record):
    """Dollars of all chips per million tokens; null without a price."""

    input: float | None
    """Of prompt tokens."""
    output: float | None
    """Of answer tokens."""
    all: float | None
    """Of both together."""


@dataclass(frozen=True, kw_only=True)
class RunFigures(LatencyFigures):
    """What a simulation says: latencies, throughput, goodput, load, cache and dollars."""

    completed: int
    """Requests that were answered."""
    refused: Mapping[str, int]
    """Requests that were not, by the reason."""
    duration: float
    """Seconds from the first arrival to the last token; in the steady state those in which as many
    requests come as are counted."""
    total_input_tokens: int
    """Prompt tokens of completed requests."""
    total_output_tokens: int
    """Tokens emitted to them."""
    request_throughput: float | None
    """Completed requests per second; null where all came and ended at one moment."""
    output_throughput: float | None
    """Tokens emitted per second, likewise."""
    total_token_throughput: float | None
    """Prompt and emitted tokens per second, likewise."""
    request_goodput: float | None = part()
    """Completed requests per second that met every objective."""
    good_share: float | None = part()
    """Share of all requests that met every objective."""
    hit_rate: float
    """Prompt tokens found in the prefix cache over all prompt tokens."""
    hit_tokens: int
    """Prompt tokens found in the cache, by requests that ran again too."""
    host_hit_tokens: int
    """Those of them that lay in the hosts' memory."""
    prefilled_tokens: int
    """Prompt tokens that were computed."""
    recomputed_tokens: int
    """Tokens that were computed and lost to preemption."""
    preemptions: int
    """How often a running request had to give up its pages."""
    utilisation: float
    """Share of the duration in which a replica ran a step."""
    steps: int
    """Steps of all replicas."""
    host_copied_tokens: int
    """Tokens copied between chips and the hosts' memory."""
    replicas: Sequence[ReplicaLoad]
    """Each replica."""
    chips: int
    """Chips of all replicas."""
    chip_hours: float
    """Hours of all chips for the duration."""
    prompt_share_of_time: float
    """Share of the steps' time that prompts took."""
    usd: float | None
    """Dollars of all chips for the duration; null without a price."""
    usd_per_million_tokens: UsdOfRun
    """The same per million tokens."""


@dataclass(frozen=True, kw_only=True)
class OverTime(Record):
    """All replicas at moments of even distance."""

    seconds: Sequence[float]
    """The moments: seconds from the first arrival."""
    waiting: Sequence[float]
    """Requests that wait."""
    running: Sequence[float]
    """Sequences that run."""
    ttft_seconds: Sequence[float | None]
    """Median seconds to the first token of requests that came from there to the next moment; null
    where none came."""
    tpot_seconds: Sequence[float | None]
    """Median seconds per output token, likewise."""

"""`bench serve`: a load on a live server, and what it took."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

from shardwise.boundary import Command, number, whole
from shardwise.boundary.options import described, option
from shardwise.boundary.remote import server_at
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.run.asking import KEY, KEY_IN_CLEAR
from shardwise.commands.run.calibration.endpoint import model_of, programs_of
from shardwise.commands.run.server_load import (
    LONGEST,
    MOST_THREADS,
    PERCENTILES,
    DrawnLoad,
    LoadFigures,
    PromptRequest,
    load_figures,
    put_load,
    traced,
)
from shardwise.errors import BadRequest
from shardwise.units import format_seconds

_WHOLE = {
    "requests": (1, 100_000),
    "input": (1, 10**7),
    "output": (1, 10**7),
    "concurrency": (0, MOST_THREADS),
    "vocabulary": (2, 2**31 - 1),
    "seed": (0, 2**32 - 1),
}
_NUMBERS = {
    "rate": (1e-6, 1e6),
    "cv": (0.01, 100.0),
    "spread": (0.0, 1.0),
    "speed": (1e-6, 1e6),
    "timeout": (0.001, 1e6),
}
"""The least and the most of each number."""

LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between tokens",
    "e2el": "end to end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServeRequest(Command):
    """Put a load on an OpenAI-compatible server and measure it. Prompts are random ids; requests of
    a `trace` arrive at its times."""

    COMMAND: ClassVar[str] = "bench serve"

    endpoint: str = option(default="http://127.0.0.1:8000", show_default=True, metavar="URL")
    api_key: str | None = field(default=None, repr=False, metadata=described(KEY))
    key_in_clear: bool = option(KEY_IN_CLEAR)
    served_model: str | None = option("Default: the server's first.", metavar="NAME")
    requests: int = option(default=100, show_default=True, kind="whole")
    rate: float | None = option("Requests per second. Default: all at once.", kind="number")
    cv: float = option("Burstiness of arrivals; 1 is Poisson.  [1]", default=1.0, kind="number")
    input: int = option(default=128, show_default=True, kind="whole")
    output: int = option(default=64, show_default=True, kind="whole")
    spread: float = option(
        "Relative spread of lengths, both ways.  [0]", default=0.0, kind="number", group="The load"
    )
    trace: str | None = option("Requests with arrival times and shared prefixes.", metavar="FILE")
    speed: float = option("Of a trace.  [1]", default=1.0, kind="number")
    concurrency: int = option(
        "Most requests in flight; 0: no bound.  [0]", default=0, kind="whole", group="The load"
    )
    vocabulary: int = option(
        default=1000,
        show_default=True,
        kind="whole",
        group="The load",
        meaning="token ids of prompts are below this",
    )
    timeout: float = option(
        "Of one whole request.  [600]", default=600.0, kind="number", metavar="SECONDS"
    )
    seed: int = option("Seed of times, lengths and prompts.  [0]", default=0, kind="whole")

    def load(self) -> list[PromptRequest]:
        """The requests."""
        self._check()
        found = self._requests()
        if (last := found[-1].ask.at) > LONGEST:
            raise BadRequest(
                f"the last request comes after {last:g} s; a load of at most {LONGEST:g} s is put "
                "on a server: raise --rate or --speed, or give fewer --requests"
            )
        return found

    def _check(self) -> None:
        """Raise BadRequest for a number that makes no load."""
        for name, (least, most) in _WHOLE.items():
            whole(getattr(self, name), f"--{name}", least=least, most=most)
        for name, (least, most) in _NUMBERS.items():
            if getattr(self, name) is not None:
                number(getattr(self, name), f"--{name}", least=least, most=most)

    def _requests(self) -> list[PromptRequest]:
        if self.trace is not None:
            return traced(
                Path(self.trace),
                self.vocabulary,
                most=self.requests,
                speed=self.speed,
                seed=self.seed,
            )
        drawn = DrawnLoad(
            requests=self.requests,
            prompt=self.input,
            output=self.output,
            rate=float("inf") if self.rate is None else self.rate,
            cv=self.cv,
            spread=self.spread,
        )
        return drawn.made(self.vocabulary, self.seed)

    def answer(self, progress: Progress | None = None) -> "BenchServeAnswer":
        """Send them and wait for all answers."""
        requests = self.load()
        server = server_at(self.endpoint, api_key=self.api_key, in_clear=self.key_in_clear)
        model = self.served_model or model_of(server, min(self.timeout, 30.0))
        before = programs_of(server, min(self.timeout, 30.0))
        outcomes, duration = put_load(
            server,
            model,
            requests,
            concurrency=self.concurrency,
            timeout=self.timeout,
            progress=progress,
        )
        found = load_figures(outcomes, duration)
        warnings = [f"{error}" for error in found.errors[:3]]
        compiled = (
            (programs_of(server, min(self.timeout, 30.0)) or 0) - before
            if before is not None
            else 0
        )
        if compiled > 0:
            warnings.append(
                f"the server compiled {compiled} programs under this load, and the times include "
                "the compiles; run it again, or serve with --warm all"
            )
        return BenchServeAnswer.of(
            found,
            date=datetime.now().strftime("%Y%m%d-%H%M%S"),
            model_id=model,
            num_prompts=len(requests),
            request_rate="inf" if self.rate is None else self.rate,
            burstiness=1 / self.cv**2,
            max_concurrency=self.concurrency or None,
            compiled_programs=compiled,
            warnings=warnings,
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class BenchServeAnswer(Answer, LoadFigures):
    """The figures of a load."""

    date: str
    """When it ended, as YYYYMMDD-HHMMSS."""
    backend: Literal["openai"] = "openai"
    """The API that was spoken."""
    model_id: str
    """The server's name for its model."""
    num_prompts: int
    """Requests that were sent."""
    request_rate: float | Literal["inf"]
    """Requests per second, as given; "inf" for all at once."""
    burstiness: float
    """1 / cv^2 of the times between requests: 1 is Poisson, less comes in bursts."""
    max_concurrency: int | None
    """Requests under way at once at most; null without a bound."""
    compiled_programs: int
    """Programs that the server compiled under the load."""

    def table(self) -> list[Row]:
        """One row per latency."""
        return [_row(self, name) for name in LATENCIES]

    def page(self) -> Page:
        """Throughput, then latencies."""
        failed = f", {self.failed:,} failed" if self.failed else ""
        yield (
            f"{self.completed:,} requests in {format_seconds(self.duration)}{failed}: "
            f"{self.output_throughput:,.0f} output tokens/s, "
            f"{self.total_token_throughput:,.0f} in all, "
            f"{self.request_throughput:,.2f} requests/s"
        )
        header = ("", "mean", *(f"p{p}" for p in PERCENTILES))
        rows = [_cells(row) for row in self.table()]
        yield TextTable(header, rows)


def _row(found: LoadFigures, name: str) -> Row:
    stats = ("mean", "std", *(f"p{p}" for p in PERCENTILES))
    return {"latency": LATENCIES[name], **{s: getattr(found, f"{s}_{name}_ms") for s in stats}}


def _cells(row: Row) -> list[str]:
    latency, mean, _, *percentiles = row.values()
    times = (mean, *percentiles)
    return [latency, *("-" if ms is None else format_seconds(ms / 1e3) for ms in times)]


bench_serve = verb("bench_serve", BenchServeRequest)

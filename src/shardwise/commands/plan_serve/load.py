"""A load in the words of a person: its requests, made or read, and what they hold."""

from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.boundary import number
from shardwise.boundary.options import option
from shardwise.commands.base.inputs import PLAN_CONSTANTS, HardwareWords, whole_number
from shardwise.commands.plan_serve.words import prefix_of
from shardwise.errors import BadRequest
from shardwise.planner.serve.served import objectives_of
from shardwise.planner.simulate.demand import Demand, demand_of, prefix_keys
from shardwise.planner.simulate.metrics import Objectives
from shardwise.planner.simulate.traces import (
    MOST_REQUESTS,
    Lengths,
    check_count,
    from_quantiles,
    from_rates,
    poisson,
    rates_of,
    read_quantiles,
    read_trace,
    scaled,
    tiled,
    with_lengths,
)
from shardwise.plans import ServePlan
from shardwise.scheduling import Request

_TRACES = (
    "Azure, Vidur (arrived_at in seconds), Mooncake or LLMServingSim (timestamp in milliseconds), "
    "ServeGen, or own JSONL: arrival in seconds, prompt and output in tokens."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(HardwareWords):
    """The requests: a trace, or made ones; and how the chips of the plan are read.

    `requests` cuts a trace before `tile` repeats it. `cv` is that of the gaps between made ones.
    `lengths` is for made requests and for traces that hold rates alone.
    """

    trace: Path | str | None = option(_TRACES, kind="file")
    requests: int | str | None = option(
        "Take the first N of a trace, or make N (see above).",
        group="The load",
        meaning="how many requests",
    )
    tile: int | str = option("Repeat the load N times.", default="1", before="cv", group="The load")
    rate: float | str | None = option(
        "Requests per second: make requests, or rescale a trace. Default: the load in the plan."
    )
    speed: float | str | None = option("Replay a trace this many times as fast.", group="The load")
    cv: float | str | None = option(
        "Burstiness of arrivals that are made; 1 (default) is Poisson.", group="The load"
    )
    input: int | str | None = option(
        "Prompt tokens of requests that are made. Default: as in the plan."
    )
    output: int | str | None = option(
        "Answer tokens of requests that are made. Default: as in the plan."
    )
    prefix: int | str | None = option(
        "Tokens at the start that all prompts share. Default: as in the plan."
    )
    lengths: str | None = option(
        "Draw lengths from ServeGen's quantiles.", metavar="FILE:CATEGORY", group="The load"
    )
    seed: int | str = option(
        "Seed of all random draws.", default="0", show_default=True, group="The machine"
    )
    constants: str | None = option(PLAN_CONSTANTS)

    def number(self, name: str) -> float | None:
        """A rate, speed or variation as a number; None where it is not given."""
        least, most = (0, 100) if name == "cv" else (1e-9, 1e6)
        words = getattr(self, name)
        if words is None:
            return None
        return number(words, f"--{name}", least=least, most=most, suffix=True)

    def whole(self, name: str, most: int = 2**31) -> int:
        """A count; 0 where it is not given."""
        words = getattr(self, name)
        return 0 if words is None else whole_number(words, f"--{name}", least=1, most=most)

    @property
    def plain(self) -> bool:
        """Whether nothing but a rate and lengths is said of the load."""
        odd = (self.trace, self.speed, self.cv, self.lengths)
        return all(words is None for words in odd) and self.whole("tile") == 1

    @property
    def own_lengths(self) -> bool:
        """Whether lengths are left to the plan."""
        return self.input is None and self.output is None and self.prefix is None

    def shared(self, plan: ServePlan, prompt: int) -> int:
        """Tokens that all prompts begin with."""
        if self.prefix is not None:
            return prefix_of(self.prefix, prompt)
        own = self.input is None and plan.workload is not None
        return (plan.workload.prefix or 0) if own and plan.workload else 0

    @property
    def first_seed(self) -> int:
        """The seed of all draws; NumPy takes 32 bits."""
        return whole_number(self.seed, "--seed", most=2**32 - 1)

    def drawn_lengths(self) -> tuple[Lengths, Lengths]:
        """What draws prompts and answers."""
        file, _, category = str(self.lengths).rpartition(":")
        prompts = read_quantiles(Path(file), category, "input_tokens")
        outputs = read_quantiles(Path(file), category, "output_tokens")
        return from_quantiles(prompts), from_quantiles(outputs)

    def verify(self) -> None:
        """Raise BadRequest for words that make no sense, whether they are used or not."""
        for name in ("rate", "speed", "cv"):
            self.number(name)
        if self.lengths is not None and ":" not in str(self.lengths):
            raise BadRequest(f"--lengths '{self.lengths}' is not FILE:CATEGORY")


MADE = 1000
"""Requests that are made where their number is not given."""


def targets(plan: ServePlan) -> Objectives:
    """The targets of the load that a plan was made for; none where it was made for none."""
    load = plan.workload
    return Objectives() if load is None else objectives_of(load)


def demand_for(plan: ServePlan, load: Load | None = None) -> Demand:
    """What the requests of a plan's load hold, or those of another load."""
    load = load or Load()
    trace = load.trace
    if trace is None and load.own_lengths and plan.workload is not None:
        trace = plan.workload.trace
    if trace is not None:
        return demand_of(read_trace(Path(trace), plan.scheduling.page_size))
    prompt = load.whole("input") or plan.input_length
    output = load.whole("output") or plan.output_length
    return Demand(prompts=(prompt,), outputs=(output,), prefix=load.shared(plan, prompt))


MOST_REPLICAS = 10_000
"""Replicas of one simulation: each takes about 10 kB (ours)."""
MOST_PLACINGS = 50_000_000
"""Requests times replicas: a router looks at every replica for each request, 15 s in all (ours)."""
MOST_TOKENS = 1e9
"""Tokens of all answers: up to a minute of scheduling (ours)."""


def check_size(requests: list[Request], plan: ServePlan) -> None:
    """Raise BadRequest for a simulation that would not end in time or take too much memory."""
    check_places(len(requests), plan.replicas + plan.prefill_replicas)
    check_tokens(sum(r.output for r in requests))


def check_places(requests: int, replicas: int) -> None:
    if replicas > MOST_REPLICAS:
        raise BadRequest(
            f"the plan has {replicas:,} replicas; at most {MOST_REPLICAS:,} can be simulated, so "
            "simulate a share of them under the same share of the load (--set replicas=N)"
        )
    if requests * replicas > MOST_PLACINGS:
        raise BadRequest(
            f"{requests:,} requests on {replicas:,} replicas are "
            f"{requests * replicas:,} places to weigh; at most {MOST_PLACINGS:,} can be "
            "simulated, so simulate fewer of both (--requests, --set replicas=N)"
        )


def check_tokens(tokens: float) -> None:
    if tokens > MOST_TOKENS:
        raise BadRequest(
            f"the answers have {tokens:,.0f} tokens in all; at most {MOST_TOKENS:,.0f} can be "
            "simulated, so give fewer --requests or shorter answers (--output)"
        )


def requests_of(load: Load, plan: ServePlan) -> list[Request]:
    """The requests of a load; what it leaves open is the plan's."""
    load.verify()
    tile = load.whole("tile", MOST_REQUESTS)
    check_count(load.whole("requests") * tile)
    requests = _made(load, plan) if load.trace is None else _traced(load, plan, Path(load.trace))
    check_count(len(requests) * tile)
    found = tiled(requests, tile) if tile > 1 else requests
    last = max(r.arrival for r in found)
    if not last <= _LONGEST:
        raise BadRequest(
            f"the last request comes after {last:g} s; a load of at most {_LONGEST:g} s (30 years) "
            "can be simulated: check the units of arrivals (seconds; timestamps of JSONL are "
            "milliseconds), or raise --rate or --speed"
        )
    return found


_LONGEST = 1e9
"""Seconds that the clock is asked to count (ours)."""


def _made(load: Load, plan: ServePlan) -> list[Request]:
    rate, cv, seed = load.number("rate"), load.number("cv"), load.first_seed
    if rate is None or load.speed is not None:
        raise BadRequest("a load needs --trace FILE, or --rate for requests that are made")
    requests = poisson(
        rate,
        load.whole("requests") or MADE,
        load.whole("input") or plan.input_length,
        load.whole("output") or plan.output_length,
        cv=1.0 if cv is None else cv,
        seed=seed,
    )
    if load.lengths is None:
        keys = prefix_keys(load.shared(plan, requests[0].prompt), plan.scheduling.page_size)
        return [replace(request, keys=keys) for request in requests] if keys else requests
    if load.input or load.output or load.prefix:
        raise BadRequest(
            "--lengths gives the lengths of requests; leave --input, --output and --prefix out"
        )
    return with_lengths(requests, *load.drawn_lengths(), seed)


def _traced(load: Load, plan: ServePlan, path: Path) -> list[Request]:
    windows = rates_of(path)
    if windows is None:
        for name in ("input", "output", "prefix", "cv", "lengths"):
            if getattr(load, name) is not None:
                raise BadRequest(f"--{name} takes no effect: the trace '{path}' says it itself")
        requests = read_trace(path, plan.scheduling.page_size, load.whole("requests"))
    else:
        if load.lengths is None:
            raise BadRequest(
                f"'{path}' holds rates of arrival alone; give lengths with --lengths FILE:CATEGORY"
            )
        most, seed = load.whole("requests"), load.first_seed
        requests = from_rates(windows, *load.drawn_lengths(), most=most, seed=seed)
    rate, speed = load.number("rate"), load.number("speed")
    if rate is not None:
        if speed is not None:
            raise BadRequest("--rate and --speed both set how fast requests arrive; give one")
        span = requests[-1].arrival - requests[0].arrival
        if not span:
            raise BadRequest(f"all requests of '{path}' arrive at once; --rate cannot stretch that")
        speed = rate * span / max(len(requests) - 1, 1)
    return scaled(requests, speed) if speed is not None else requests

"""`simulate`: a serving plan under a trace or a made load, request by request."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import ClassVar

from shardwise.boundary import Command, command_of
from shardwise.boundary.options import option, place, switch
from shardwise.boundary.records import hidden, values
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.inputs import chip_of, parse_share, places_of, plan_changes
from shardwise.commands.base.layout import next_step, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.plan_serve.follow import fleets_that_follow
from shardwise.commands.plan_serve.load import Load, targets
from shardwise.commands.plan_serve.loaded import Simulated, simulate_plan
from shardwise.commands.plan_serve.replay import beside, replay_rows, replay_table
from shardwise.commands.plan_serve.serve import ServePlanRequest
from shardwise.commands.plan_serve.words import paced
from shardwise.commands.pricing.plans import GivenPlan, given_plan
from shardwise.errors import BadRequest, ThresholdMissed
from shardwise.models.zoo import split_family
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.simulate.metrics import (
    DEFINITIONS,
    REQUEST_COLUMNS,
    Objectives,
    request_rows,
)
from shardwise.planner.simulate.replays import Replay, read_replay
from shardwise.plans import ServePlan
from shardwise.plans.files import flat_plan
from shardwise.plans.servers import JAX, SERVING_SOFTWARE
from shardwise.results.simulated import (
    FollowingFleet,
    LargestRateFigures,
    OverloadedFigures,
    SteadyFigures,
    WholeLoadFigures,
)
from shardwise.units import format_seconds, format_usd, many, parse_seconds, sig


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateRequest(Load, Command):
    """Run a load through the replicas of a serving plan, with the scheduler of the engine.

    `path` is the plan's file, or a plan; `sets` first change its fields, or numbers of its chip.
    The default objectives are those of the plan's load. `verify` raises ThresholdMissed if a
    smaller share of the requests than `check` meets them.
    """

    COMMAND: ClassVar[str] = "simulate"

    path: GivenPlan = field(kw_only=False, metadata=place("PLAN", kind="file"))
    ttft: float | str | None = option("Objective: longest time to the first token, such as 2s.")
    tpot: float | str | None = option("Objective: longest time per output token, such as 50ms.")
    e2e: float | str | None = option("Objective: longest time to the last token, such as 30s.")
    interactivity: float | str | None = option(
        "Objective: fewest tokens per second of the answer, over the whole request.",
    )
    find_rate: bool = switch(
        "Find the largest rate that holds (see above).",
        group="The load",
        meaning="look for the largest rate that a plan holds",
    )
    start_up: str | None = option(
        "Cost of servers that scale with the trace, for these start-up times, such as 30s,5min.",
        group="The load",
        meaning="seconds from asking for a server to its first answer",
    )
    replay: Path | str | None = option(
        "Compare a benchmark's requests, measured and simulated: the JSON of vllm bench serve "
        "--save-detailed, or a line of sglang.bench_serving --output-details.",
        kind="file",
        group="The load",
        meaning="a benchmark's file, whose requests are simulated beside what was measured",
    )
    check: float | str | None = option(
        "Exit with code 4 if fewer requests meet the objectives, such as 99%.",
        metavar="SHARE",
        group="Targets",
        meaning="the threshold that an answer must keep; missed, the exit code is 4",
    )

    def answer(
        self, progress: Progress | None = None, *, keep_steps: bool = False
    ) -> "LoadSimulated | SteadySimulated | LargestRateSimulated | OverloadedSimulated":
        """Simulate it; every step is kept for a trace file where asked."""
        objectives, least = self._objectives(), None
        if self.check is not None:
            least = parse_share(self.check, "--check")
        fields, numbers = plan_changes(self.sets)
        hardware = replace(self, sets=numbers).hardware
        plan = given_plan(self.path, fields, hardware=hardware)
        own = targets(plan) if isinstance(plan, ServePlan) else Objectives()
        if objectives.given:
            objectives = objectives.over(own)
        if least is not None and not objectives.given and not own.given:
            raise BadRequest(
                "--check needs objectives; give --ttft, --tpot, --e2e or --interactivity"
            )
        found = simulate_plan(
            plan,
            self,
            objectives=objectives,
            find_rate=self.find_rate,
            keep_steps=keep_steps,
            replay=(replay := self._replay()),
            progress=progress,
        )
        if replay is not None:
            found = beside(found, replay)
        if self.start_up is not None:
            late = [parse_seconds(text, "--start-up") for text in self.start_up.split(",")]
            found = fleets_that_follow(found, self, late)
        return SIMULATED[type(found.result)].of(
            found.result,
            simulated=found,
            replay=replay,
            asked=self if isinstance(self.path, str | Path) else replace(self, path="plan.yaml"),
            objectives=found.objectives,
            least=least,
            resolved={
                k: Resolved(value=v, origin="flag" if k in fields else "file")
                for k, v in flat_plan(plan).items()
            },
            warnings=found.warnings,
            provenance={"definitions": DEFINITIONS},
        )

    def _replay(self) -> Replay | None:
        """The benchmark; BadRequest beside another load."""
        if self.replay is None:
            return None
        for name in ("trace", "requests", "rate", "speed", "cv", "input", "output", "lengths"):
            if getattr(self, name) is not None:
                raise BadRequest(f"--{name} takes no effect with --replay, whose file says it")
        if self.find_rate or self.start_up is not None or self.whole("tile") != 1:
            raise BadRequest(
                "--replay runs the requests of a benchmark once, as they arrived; leave out "
                "--find-rate, --start-up and --tile"
            )
        return read_replay(Path(self.replay), self.first_seed)

    def _objectives(self) -> Objectives:
        given = {"ttft": self.ttft, "tpot": self.tpot, "e2el": self.e2e}
        flags = {"e2el": "--e2e"}
        return Objectives(
            **{
                name: parse_seconds(words, flags.get(name, f"--{name}"))
                for name, words in given.items()
                if words is not None
            },
            **paced(self.interactivity),
        )


def _target(seconds: float) -> str | None:
    return None if seconds == inf else f"{seconds:g}s"


def _software_of(plan: ServePlan) -> str:
    """What `plan serve` calls the software of a plan."""
    stored = plan.dtypes.weights, plan.dtypes.kv
    for row in SERVING_SOFTWARE.values():
        if row.is_priced_by(plan.engine) and stored[0] in row.weights and stored[1] in row.caches:
            return row.name
    return plan.engine if plan.engine.endswith(".toml") else JAX.name


@dataclass(frozen=True, kw_only=True, repr=False)
class LoadSimulated(Answer, WholeLoadFigures):
    """Figures of a plan under a load; `least` is the share of `check`."""

    simulated: Simulated = hidden()
    asked: SimulateRequest = hidden()
    objectives: Objectives = hidden()
    least: float | None = hidden(None)
    replay: Replay | None = hidden(None)

    def verify(self) -> None:
        """Raise ThresholdMissed where fewer requests than `least` met the objectives."""
        if self.least is None:
            return
        assert self.good_share is not None, "--check has objectives"
        if (share := self.good_share) < self.least:
            raise ThresholdMissed(
                f"{share:.1%} of the requests met the objectives, below --check {self.least:.1%}"
            )

    def table(self) -> list[Row]:
        """A row for each request, of a benchmark's with what was measured."""
        if self.replay is not None:
            return replay_rows(self.simulated, self.replay)
        rows = request_rows(self.simulated.outcome)
        return [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in rows]

    def page(self) -> Page:
        """The fleet, latencies, load, cache and cost."""
        plan = self.simulated.plan
        yield wrapped(
            f"{plan.model} on {_fleet_text(plan)}, {mesh_text(plan.mesh)} each, engine "
            f"{plan.engine}: {plan.scheduling.policy}, batch {plan.batch:,}, "
            f"{plan.prefill_chunk:,} tokens a step, "
            f"{self.cache.pages:,} pages of {self.cache.page_size}",
            hanging=2,
        )
        yield from self._verdict()  # with the first lines, which --brief shows
        if self.replayed:
            yield ""
            yield replay_table(self.replayed)
        if self.following is not None:
            yield "\nservers that follow this trace: 99 of 100 requests arrive within capacity"
            yield TextTable(FOLLOWING, [_following_row(fleet) for fleet in self.following])
        yield ""
        rows = [
            [name.upper(), *(_ms(getattr(self, f"{kind}_{name}_ms")) for kind in _KINDS)]
            for name in ("ttft", "tpot", "itl", "e2el")
        ]
        yield TextTable(["simulated", *_KINDS], rows)
        yield ""
        yield TextTable(["", "simulated"], _figures(self, self.objectives, plan.batch))

    def _verdict(self) -> Page:
        """Whether this run is within the targets, what holds, and what to type next."""
        if isinstance(self, LargestRateFigures):
            yield f"largest rate that holds, also in slow runs: {sig(self.largest_rate)} requests/s"
        elif isinstance(self, OverloadedFigures):
            yield wrapped(f"DOES NOT HOLD: {self._short(self.rate)}; {_rather(self)}", 0, 2)
            yield next_step("next:", command_of(self.asked, find_rate=True, rate=None, check=None))
            more = command_of(self._more_servers(self.rate))
            yield next_step("or, for more servers:", more)
        elif self.objectives.given:
            yield f"within targets in this run: {self.good_share:.1%} of the requests"
        elif isinstance(self, SteadyFigures):  # a trace or a burst is one run
            yield "all requests are answered in this run"

    def _more_servers(self, rate: float) -> ServePlanRequest:
        """The search for servers that hold this load on such chips."""
        plan, load, chips = self.simulated.plan, self.asked, self.simulated.chips
        (model, family), goal = split_family(plan.model), self.objectives
        trace = load.trace or (plan.workload and load.own_lengths and plan.workload.trace)
        lengths = (load.input or plan.input_length, load.output or plan.output_length)
        names = tuple(dict.fromkeys(map(chip_of, places_of(plan))))
        return ServePlanRequest(
            model,
            ",".join(names),
            as_=family or None,
            input=None if trace else lengths[0],
            output=None if trace else lengths[1],
            prefix=None if trace else load.shared(plan, int(lengths[0])) or None,
            trace=trace or None,
            rate=f"{rate:g}",
            ttft=_target(goal.ttft),
            tpot=_target(goal.tpot),
            e2e=_target(goal.e2el),
            interactivity=None if goal.pace == inf else f"{1 / goal.pace:g}",
            software=_software_of(plan),
            pools="two" if plan.prefill_replicas else "one",
            weights=plan.dtypes.weights,
            kv=plan.dtypes.kv,
            constants=load.constants or plan.constants,
            hw_files=chips.files,
            sets=chips.numbers_of(names[0]),
            prices=chips.prices,
            provider=chips.provider or None,
            spot=chips.spot,
        )

    def _short(self, rate: float) -> str:
        """What is missed, in words."""
        said = f"{sig(self.request_throughput or 0.0)} of {sig(rate)} requests/s answered"
        if self.objectives.given:
            said += f", {self.good_share:.1%} of the requests within the targets"
        return said

    def sections(self) -> Mapping[str, Page]:
        """Each server, and what the figures mean."""
        return {"detail": self._detail()}

    def _detail(self) -> Page:
        yield TextTable(
            ["replica", "requests", "busy", "waiting", "running", "most waiting", "peak cache"],
            [
                [
                    f"{r.index}" + (" (prefill)" if r.role == "prefill" else ""),
                    f"{r.requests:,}",
                    f"{r.utilisation:.0%}",
                    sig(r.mean_waiting),
                    sig(r.mean_running),
                    f"{r.max_waiting:,}",
                    f"{r.peak_cache_use:.0%}",
                ]
                for r in self.replicas
            ],
        )
        yield "\nDefinitions, as of vllm bench where it has them"
        for name, text in DEFINITIONS.items():
            yield wrapped(f"{name}: {text}", 2, 4)


@dataclass(frozen=True, kw_only=True, repr=False)
class SteadySimulated(SteadyFigures, LoadSimulated):
    """Figures of the steady state, under a load that holds in this run."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LargestRateSimulated(LargestRateFigures, LoadSimulated):
    """Figures at the largest rate that the plan holds (--find-rate)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class OverloadedSimulated(OverloadedFigures, LoadSimulated):
    """Figures of the steady state, under a load that the plan does not hold."""


SIMULATED: Mapping[type[WholeLoadFigures], type[LoadSimulated]] = {
    WholeLoadFigures: LoadSimulated,
    SteadyFigures: SteadySimulated,
    LargestRateFigures: LargestRateSimulated,
    OverloadedFigures: OverloadedSimulated,
}
"""The answer that has the figures of each kind of run."""

simulate = verb("simulate", SimulateRequest)

_KINDS = ("mean", "median", "p90", "p95", "p99")


def _fleet_text(plan: ServePlan) -> str:
    text = f"{plan.replicas} x {plan.slice}"
    if not plan.prefill_replicas:
        return text
    other = "" if plan.prefill is None else f" x {plan.prefill.slice}"
    return f"{text} + {plan.prefill_replicas}{other} to prefill"


FOLLOWING = ["start-up (counted)", "always", "asks for more at", "servers", "most", "$/h"]


def _following_row(fleet: FollowingFleet) -> list[str]:
    fixed = fleet.fewest_servers == fleet.most_servers
    return [
        format_seconds(fleet.start_up_seconds),
        f"{fleet.fewest_servers:,}",
        "never" if fixed else f"{fleet.utilisation:.0%} of their load",
        sig(fleet.servers),
        f"{fleet.most_servers:,}",
        "-" if fleet.usd_per_hour is None else format_usd(fleet.usd_per_hour),
    ]


def _ms(value: float | None) -> str:
    return "-" if value is None else format_seconds(value / 1e3)


def _per_second(value: float | None, of: str = "") -> str:
    return "-" if value is None else f"{sig(value)}{of}/s"


def _rather(result: OverloadedFigures) -> str:
    if result.holds_about is None:
        return "no rate holds: even one request alone misses the targets"
    about = sig(result.holds_about)
    return f"from one short run, about {about} requests/s may hold; --find-rate finds the rate"


def _running(result: WholeLoadFigures) -> str:
    """Sequences on a server that answers, at the mean."""
    found = [r.mean_running for r in result.replicas if r.role == "serve"]
    return sig(sum(found) / len(found))


def _figures(result: WholeLoadFigures, objectives: Objectives, batch: int) -> list[list[str]]:
    span = format_seconds(result.duration)
    over = f"of those that arrived in {span}" if isinstance(result, SteadyFigures) else f"in {span}"
    rows = [
        ["completed", f"{result.completed:,} {over}"],
        ["request_throughput", _per_second(result.request_throughput)],
        ["output_throughput", _per_second(result.output_throughput, " tokens")],
        ["total_token_throughput", _per_second(result.total_token_throughput, " tokens")],
    ]
    if objectives.given:
        share = f"{result.good_share:.1%} of the requests"
        rows.append(["request_goodput", f"{_per_second(result.request_goodput)}, {share}"])
    rows += [
        ["steps run", f"{result.utilisation:.1%} of the time"],
        ["running", f"{_running(result)} sequences of at most {batch:,} on a server"],
        ["hit_rate", f"{result.hit_rate:.1%}"],
        ["preemptions", f"{result.preemptions:,}, {result.recomputed_tokens:,} tokens lost"],
        ["steps", f"{result.steps:,}"],
        ["chips", f"{many(result.chips, 'chip')}, {sig(result.chip_hours)} chip-hours"],
    ]
    if result.usd is not None and result.price is not None:
        usd = values(result.usd_per_million_tokens)
        parts = ", ".join(f"{format_usd(v)} {k}" for k, v in usd.items() if v is not None)
        rows.append(["usd_per_million_tokens", parts])
        rows.append(["price", result.price.text])
    return rows

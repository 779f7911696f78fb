"""`plan serve`: the cheapest servers for a load within its targets, confirmed by simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from shardwise.boundary import Command, command_of, spelt
from shardwise.boundary.options import option, switch
from shardwise.boundary.records import Record, flat, hidden, part, plain
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.inputs import (
    COARSE_ANSWER,
    COMPILE_FLAGS,
    COMPILE_TIMEOUT,
    SENSITIVITY,
    Hardware,
    Words,
    parse_pins,
)
from shardwise.commands.base.layout import Fact, next_step, wrapped
from shardwise.commands.base.request import Progress, Watch, verb
from shardwise.commands.plan_serve.words import ServeWords
from shardwise.commands.pricing.served_page import chips_table, instead_table, served_page
from shardwise.errors import BadRequest, NoFeasiblePlan, Remark
from shardwise.hardware import Chip, Spelling, chip_ids
from shardwise.planner.serve.instead import SIMULATE, alternatives, answer_row, serving_front
from shardwise.planner.serve.limits import (
    Breakdown,
    breakdown,
    limits,
    serve_sensitivity,
    speculation,
)
from shardwise.planner.serve.served import Served, Serving, cheapest_serving
from shardwise.plans import ServePlan
from shardwise.plans.servers import JAX, SERVING_SOFTWARE, VLLM
from shardwise.results.compiled import CompiledServers
from shardwise.results.sensitivity import ChangedInput, changed_inputs, strongest
from shardwise.results.served import (
    DEFINITIONS,
    OtherServers,
    ServedPlan,
    other_servers,
    served_cautions,
    served_result,
)
from shardwise.roofline.engines import load_engine
from shardwise.units import format_seconds, many, sig

if TYPE_CHECKING:
    from shardwise.commands.plan_serve.second_opinion import ServedOpinion


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlanRequest(ServeWords, Command):
    """The cheapest servers for a load. `compile` compiles the best plans and takes the cheapest.
    Raises BadRequest, or NoFeasiblePlan with the nearest miss; `anyway` returns that miss as a
    plan."""

    COMMAND: ClassVar[str] = "plan serve"

    anyway: bool = switch(
        "Show and write the nearest plan even if it does not hold.", group="Targets"
    )
    coarse: bool = option(COARSE_ANSWER)
    compile: int | str | None = option(
        "Compile decode and prefill of the best plans for our server until N fit; the cheapest "
        "compiled plan is the answer. Compiles at most 3 N plans, a minute or two each on a core, "
        "and caches them. Implies --for jax.",
        kind="whole",
        metavar="N",
    )
    timeout: float | str = option(COMPILE_TIMEOUT)
    xla: Words = option(COMPILE_FLAGS)
    sensitivity: bool = option(SENSITIVITY)

    def answer(
        self, progress: Progress | None = None, watch: Watch | None = None
    ) -> "ServePlanned":
        """Search and simulate on each chip; the cheapest answers. `watch` hears of compiles."""
        if self.compile is not None:
            if self.coarse:
                raise BadRequest(
                    "--coarse asks for short runs and --compile for compiles; give one of the two"
                )
            return self._compiled(progress, watch)
        found, missed = self._searched(progress)
        return self._planned(found, missed)

    def _compiled(self, progress: Progress | None, watch: Watch | None) -> "ServePlanned":
        """The answer whose plan is the cheapest as compiled."""
        from shardwise.commands.plan_serve.second_opinion import served_opinion
        from shardwise.commands.program.candidate import Compiling

        compiling = Compiling.of(self.compile or 0, self.hardware, self.timeout, self.xla, watch)
        asked = self._of_one_server()
        (serving,), missed = asked._searched(progress)
        trace = None if self.trace is None else str(self.trace)
        opinion = served_opinion(serving, asked.demand(), trace, compiling)
        return asked._planned([opinion.reranked(serving)], missed, opinion)

    def _of_one_server(self) -> Self:
        """The same for our server on one chip, with a plan that holds."""
        if self.software not in (None, JAX.name):
            raise BadRequest(
                f"--compile compiles our own server's steps, and --for is {self.software}; leave "
                "out one of the two"
            )
        if len(self.places()) > 1:
            raise BadRequest(
                f"--compile takes one chip or slice, and --on is {self.on}; compile on each"
            )
        if self.anyway:
            raise BadRequest(
                "--compile ranks plans by the load that they hold, and --anyway allows a plan that "
                "holds none; leave out one of the two"
            )
        return replace(self, software=JAX.name, compile=None)

    def _searched(self, progress: Progress | None) -> tuple[list[Serving], list[str]]:
        """The cheapest plan of each place that has one, and why others have none."""
        demand, places = self.demand(), self.places()
        asked = {place: self.requests(place, demand) for place in places}
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1
            if progress is not None:
                progress(steps, 0)

        found, missed = [], []
        trace = None if self.trace is None else str(self.trace)
        for place in places:
            try:
                serving = cheapest_serving(
                    asked[place],
                    demand,
                    trace=trace,
                    anyway=self.anyway,
                    progress=step,
                    quick=self.coarse,
                )
                found.append(serving)
            except NoFeasiblePlan as miss:
                missed.append(f"{place}: {miss}")
                if len(places) == 1:
                    raise
        if not found:
            raise NoFeasiblePlan("; ".join(missed))
        return found, missed

    def _planned(
        self,
        found: Sequence[Serving],
        missed: Sequence[str],
        opinion: "ServedOpinion | None" = None,
    ) -> "ServePlanned":
        ordered = sorted(found, key=lambda s: (not s.served.held.kept, s.served.dearness))
        best = ordered[0]
        served = best.served
        others = self._others(served.piece.chip.id) if len(self.places()) == 1 else []
        beside = served.held.kept and not self.coarse
        rows = [answer_row(best), *(alternatives(best, others) if beside else [])]
        return ServePlanned.of(
            served_result(served),
            instead=other_servers(rows),
            front=other_servers(serving_front(best)),
            chips_compared=[served_result(s.served) for s in ordered],
            search=ServeSearch(candidates=best.searched.columns, simulated=best.simulated),
            sensitivity=_sensitivity(best) if self.sensitivity else None,
            compiled=opinion and opinion.result(),
            serving=best,
            opinion=opinion,
            may_guess=self.acceptance is not None,
            resolved=self._resolved(served.plan),
            warnings=[
                *self._notes(),
                *missed,
                *([] if opinion is None else [Remark(AS_COMPILED)]),
                *([Remark(QUICK)] if self.coarse else []),
                *served_cautions(served),
            ],
            provenance={
                "efficiency": served.piece.chip.efficiency.source,
                "engine": dict(load_engine(served.plan.engine).sources),
                "definitions": DEFINITIONS,
            },
        )

    def _others(self, taken: str) -> list[Chip]:
        """Chips to compare with: those with a price of the kind that was asked for."""
        if self.provider is not None or self.spot:
            return []
        plain = Hardware(constants=self.hardware.constants)
        chips = (plain.chip(name) for name in chip_ids() if name != taken)
        return [
            chip
            for chip in chips
            if chip.price is not None
            and chip.status == "current"
            and chip.release >= COMPARED_SINCE
        ]

    def _notes(self) -> Sequence[str]:
        found = (self.hardware.target(place) for place in self.places())
        return [note for one in found if isinstance(one, Spelling) for note in one.notes]

    def _resolved(self, plan: ServePlan) -> dict[str, Resolved]:
        """Every choice with its value and where it came from."""
        words = {"weights": plan.dtypes.weights, "kv": plan.dtypes.kv, "batch": plan.batch}
        words |= {"prefill_chunk": plan.prefill_chunk}
        found = {
            name: Resolved(
                value=value, origin="computed" if getattr(self, name) is None else "flag"
            )
            for name, value in words.items()
        }
        software = self.software
        found |= {
            "software": Resolved(
                value=software or VLLM.name, origin="flag" if software else "default"
            ),
            "slice": Resolved(value=plan.slice, origin="computed"),
        }
        assert plan.workload is not None
        for name in ("rate", "ttft", "tpot", "e2e"):
            value, given = getattr(plan.workload, name), getattr(self, name) is not None
            origin = "flag" if given else "default" if name == "ttft" else "computed"
            found[name] = Resolved(value=value, origin=origin)
        pinned = parse_pins(self.pins)
        for axis, degree in plan.mesh.items():
            origin = "flag" if axis in pinned else "computed"
            found[f"mesh.{axis}"] = Resolved(value=degree, origin=origin)
        return found


COMPARED_SINCE = "2022"
"""An answer is compared with chips that have a price and came out from then on (ours)."""

QUICK = (
    "from short runs (--coarse): for 9 of 10 loads the throughput is within 20 % of a full "
    "run's, or a rate needs at most one server more or less (docs/lab/page.md)"
)

AS_COMPILED = (
    "load and times use the compiled steps; the parts of a decode step, the front and `plan "
    "show` of the plan's file use predicted ones"
)

_CURVE = (0.25, 0.5, 1.0, 1.5, 2.0)
"""Multiples of the number in flight of which --detail shows the step."""


@dataclass(frozen=True, kw_only=True)
class ServeSearch(Record):
    """Size of a search of servers."""

    candidates: int
    """Servers that were priced: each mesh with each number of sequences and prefill chunk."""
    simulated: int
    """Plans that were simulated."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ServePlanned(Answer, ServedPlan):
    """The cheapest servers that hold the load."""

    instead: Sequence[OtherServers]
    """The answer and alternatives: estimates by short runs, in part checked by full ones."""
    front: Sequence[OtherServers]
    """Closed forms of faster plans within the targets that cost more, and the answer."""
    chips_compared: Sequence[ServedPlan]
    """The cheapest servers on each requested chip."""
    search: ServeSearch
    """Size of the search."""
    compiled: CompiledServers | None = part()
    """The first servers, compiled (--compile)."""
    sensitivity: Sequence[ChangedInput] | None = part()
    """The same servers with one input changed, that which weighs most first (--sensitivity)."""

    serving: Serving = hidden()
    opinion: "ServedOpinion | None" = hidden(None)
    may_guess: bool = hidden(False)

    @property
    def best(self) -> Served:
        """The plan under its load, simulated."""
        return self.serving.served

    @property
    def plan(self) -> ServePlan:
        """The plan to save, to simulate or to export."""
        return self.best.plan

    @property
    def shown_instead(self) -> Sequence[OtherServers]:
        """The answer and what else would serve, where the page has a table of those."""
        return self.instead if len(self.chips_compared) == 1 and len(self.instead) > 1 else ()

    def table(self) -> list[Row]:
        """The chips where several were asked for, else the answer and what else would serve."""
        several = len(self.chips_compared) > 1
        rows: Sequence[Record] = self.chips_compared if several else self.instead
        return [flat(plain(row), "_") for row in rows]

    def page(self) -> Page:
        """The servers, what they hold, and what else would."""
        compiled = self.opinion.facts() if self.opinion else []
        if self.may_guess and not self.best.plan.scheduling.guesses:
            compiled = [
                Fact("guesses", "none: here a step that checks guesses costs more than it gains"),
                *compiled,
            ]
        yield from served_page(self.best, self, compiled)
        if self.opinion:
            yield from self.opinion.page()
        elif len(self.chips_compared) > 1:
            yield from chips_table(self.chips_compared)
        elif self.shown_instead:
            yield instead_table(self.shown_instead)

    def sections(self) -> Mapping[str, Page]:
        """The front and the parts of a step; what limits the servers."""
        return {"detail": self._detail(), "why": self._why()}

    def breakdown(self) -> Breakdown:
        """Where a decode step goes at the number in flight of the closed form, and around it."""
        fleet, request = self.serving.fleet, self.serving.request
        running = np.unique(np.maximum(np.round(fleet.running * np.array(_CURVE)), 1.0))
        return breakdown(request, fleet, running)

    def _detail(self) -> Page:
        yield _front(self.front)
        yield ""
        yield from _parts(self.breakdown())
        search = self.search
        yield (
            f"\n{many(search.candidates, 'server')} priced (each mesh with each number of "
            f"sequences and prefill chunk), {many(search.simulated, 'plan')} simulated"
        )

    def _why(self) -> Page:
        request, fleet = self.serving.request, self.serving.fleet
        yield "What limits it: how much cheaper tokens get with 10 % more of"
        gains = limits(request, fleet, request.within)
        yield from (f"  {name:13} {gain:.1%}" for name, gain in gains.items())
        yield wrapped(strongest(self.sensitivity or _sensitivity(self.serving)))
        found = speculation(request, fleet)
        pays = "pays" if found.helps else "may not pay"
        yield wrapped(f"Speculative decoding {pays}: {found.why}")


def _sensitivity(serving: Serving) -> list[ChangedInput]:
    request = serving.request
    return changed_inputs(serve_sensitivity(request, serving.fleet, request.within))


plan_serve = verb("plan_serve", ServePlanRequest)


def _front(rows: Sequence[OtherServers]) -> TextTable:
    cells = [
        [
            row.servers,
            f"{row.chips:,}",
            format_seconds(row.ttft_seconds or 0.0),
            format_seconds(row.tpot_seconds or 0.0),
            "unknown" if row.usd_per_million_tokens is None
            else f"${sig(row.usd_per_million_tokens)}",
        ]
        for row in rows
    ]  # fmt: skip
    header = ["servers", "chips", "TTFT", "TPOT", "$/M all"]
    return TextTable(
        header,
        cells,
        "Pareto front: faster servers cost more per token; the last row is the answer",
    )


def _parts(step: Breakdown) -> Page:
    parts = step.matmuls, step.kv, step.flops, step.network, step.other, step.engine, step.expected
    rows = [
        [f"{running:,.0f}", *map(format_seconds, seconds)]
        for running, *seconds in zip(step.running, *parts, strict=True)
    ]
    header = ["sequences", "matmuls", "KV", "FLOPs", "network", "other", "engine", "expected"]
    yield TextTable(header, rows, "A decode step, each part alone at peak rates (book, 8.2)")
    yield wrapped(
        "matmuls, KV, other: time to read weights, the KV cache and the rest from memory; FLOPs: "
        "arithmetic; engine: time of the software. Parts overlap; expected is the whole step",
        2,
    )


def next_line(asked: ServePlanRequest, path: Path | None, answer: ServePlanned) -> str:
    """Where the plan is and what to type next."""
    named = any(row.option.startswith(SIMULATE) for row in answer.shown_instead)
    plan = " (PLAN above)" if named else ""
    if path is None:
        return next_step(f"next{plan}:", command_of(asked, "-o", "plan.yaml"))
    target = answer.software
    steps = [spelt("simulate", [path], {"--rate": f"{answer.best.rate:g}"})]
    if target in SERVING_SOFTWARE and SERVING_SOFTWARE[target].measured:
        steps.append(spelt("export", [path], {"--to": target}))
    return next_step(f"{path} written{plan}; next:", *steps)

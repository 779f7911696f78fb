"""`plan train`: the fastest training plan that fits, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from shardwise.book.thresholds import book_result
from shardwise.errors import BadRequest
from shardwise.evidence.against import (
    Against,
    against_result,
    gain_text,
    published_plan,
    set_against,
)
from shardwise.hardware import Spelling
from shardwise.models.describe import unpriced
from shardwise.planner.price.goodput import Overheads
from shardwise.planner.training import TrainAnswer, TrainPlanning
from shardwise.plans.train import mesh_text
from shardwise.units import (
    format_count,
    format_gib,
    format_seconds,
    format_usd,
    parse_seconds,
    sig,
)
from shardwise.verbs.answer import Answer, Page, Row, TextTable
from shardwise.verbs.layout import Fact, wrapped
from shardwise.verbs.request import Progress, verb
from shardwise.verbs.train_page import train_detail, train_page
from shardwise.workflows.inputs import flag_of, parse_pins, parse_share, parse_total
from shardwise.workflows.predict import (
    AT_EXPECTED,
    batch_hints,
    caveats,
    plan_training,
    planning_result,
    run_result,
    slower_text,
    unused_choices,
)
from shardwise.workflows.train_choices import TrainChoices


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlanRequest(TrainChoices):
    """The best training plan that fits: mesh, microbatches, schedule, storage and remat.

    `model` is a zoo name, a config.json or a folder with one; `on` a slice ("v5p:16x16x16"), or a
    bare chip for the smallest of its slices that a plan fits; `batch` tokens ("4Mi") or sequences
    ("1024seq") per step; `seq` tokens per sequence; `top` how many of the next best meshes to show.
    `remat`, `schedule`, `zero`, `pins` and their like fix what is else searched:
    `shardwise plan train --help` has what each takes.

    `tokens` ("15T") adds days and dollars of a whole run, at the expected step time or at `mfu` of
    6*N*tokens, N being `params` where given; `straggler` (1.05), `chip_mtbf` ("10y"),
    `checkpoint_time`, `checkpoint_interval` and `restart_time` are what it loses. `against` is a
    plan file or "audit:NAME" to price beside the best plan. Raises BadRequest, or NoFeasiblePlan
    with the nearest miss.
    """

    model: str | Path = field(kw_only=False)
    on: str = field(kw_only=False)
    batch: str | int
    seq: str | int
    top: int | str = 3
    tokens: float | str | None = None
    mfu: float | str | None = None
    params: float | str | None = None
    straggler: float | str | None = None
    chip_mtbf: float | str | None = None
    checkpoint_time: float | str | None = None
    checkpoint_interval: float | str | None = None
    restart_time: float | str | None = None
    against: str | Path | None = None

    def answer(self, progress: Progress | None = None) -> "TrainPlanned":
        """Search, and price what was asked for beside it."""
        run = self._run()
        published = published_plan(str(self.against)) if self.against else None
        planning = plan_training(
            self.model,
            self.on,
            batch=self.batch,
            seq=self.seq,
            top=self.top,
            choices=self,
            progress=progress,
        )
        best = planning.best
        result = planning_result(planning)
        result["book"] = book_result(best, self.hardware)
        against = None
        if published is not None:
            against = set_against(planning, published, str(self.against), self.hardware)
            result["against"] = against_result(against)
        if run:
            result["run"] = run_result(best, **run)
        return TrainPlanned(
            planning=planning,
            against=against,
            result=result,
            resolved=self._resolved(best),
            warnings=[
                *self._notes(best),
                *unpriced(planning.request.cfg),
                *unused_choices(planning, self.schedule, self.context_method),
                *batch_hints(planning),
                *caveats(best),
                *planning.rank_changes,
            ],
            provenance={"efficiency": best.piece.chip.efficiency.source},
        )

    def _notes(self, best: TrainAnswer) -> list[str]:
        found = self.hardware.target(self.on)
        if isinstance(found, Spelling):
            return list(found.notes)
        return [f"{best.piece} is the smallest slice of {found.id} that fits"]

    def _run(self) -> dict[str, Any] | None:
        """Arguments of `run_result`, or None without tokens. Raises for choices without effect."""
        if self.params and not self.mfu:
            raise BadRequest("--params changes only the arithmetic of --mfu; give --mfu too")
        for name in ("mfu", "straggler", *_LOSSES):
            if getattr(self, name) and not self.tokens:
                raise BadRequest(
                    f"{flag_of(name)} changes only the days of a run; give --tokens too"
                )
        if not self.tokens:
            return None
        return {
            "tokens": parse_total(self.tokens, "--tokens"),
            "mfu": parse_share(self.mfu, "--mfu") if self.mfu else None,
            "params": parse_total(self.params, "--params") if self.params else None,
            "overheads": self._overheads(),
        }

    def _overheads(self) -> Overheads:
        given = {
            name: parse_seconds(getattr(self, option), flag_of(option))
            for option, name in _LOSSES.items()
            if getattr(self, option)
        }
        if self.straggler:
            given["straggler"] = parse_total(self.straggler, "--straggler")
        return Overheads(**given)

    def _resolved(self, best: TrainAnswer) -> dict[str, Any]:
        """Every choice with its value and where it came from."""
        fixed = {"software"} if self.software else set()
        fixed |= {"slice", "global_batch_sequences", "sequence_length", *self.fixed}
        plan, pinned = best.plan, parse_pins(self.pins)
        values = {name: (getattr(plan, name), name in fixed) for name in _RESOLVED}
        values |= {f"mesh.{axis}": (n, axis in pinned) for axis, n in plan.mesh.items()}
        return {
            name: {"value": value, "origin": "flag" if flag else "computed"}
            for name, (value, flag) in values.items()
        }


_LOSSES = {
    "chip_mtbf": "chip_mtbf",
    "checkpoint_time": "checkpoint",
    "checkpoint_interval": "interval",
    "restart_time": "restart",
}
"""Keyword -> field of Overheads."""
_RESOLVED = (
    "slice",
    "global_batch_sequences",
    "sequence_length",
    "microbatches",
    "remat",
    "zero",
    "layers_per_stage",
    "storage_axes",
    "weight_gather",
    "gradient_reduce",
    "context_method",
    "pipeline_schedule",
    "virtual_stages",
    "optimizer",
    "software",
    "stack",
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainPlanned(Answer):
    """A search of training plans: the best, the next best meshes, and why."""

    planning: TrainPlanning
    against: Against | None

    @property
    def best(self) -> TrainAnswer:
        """The best plan, priced."""
        return self.planning.best

    @property
    def runners_up(self) -> tuple[TrainAnswer, ...]:
        """The next best meshes, priced."""
        return self.planning.runners_up

    def table(self) -> list[Row]:
        """The best plan and its runners-up."""
        return [
            {
                "mesh": mesh_text(r["mesh"]),
                "microbatches": r["microbatches"],
                "remat": r["remat"],
                **{f"{bound}_s": seconds for bound, seconds in r["step_seconds"].items()},
                "mfu": r["mfu"],
                "bytes": r["peak_bytes_per_chip"],
            }
            for r in (self.result, *self.result["runners_up"])
        ]

    def page(self) -> Page:
        """The plan, its time and memory, where the step goes, and what else was close; with
        `against` the other plan instead of these."""
        more = _run_facts(self.result["run"], self.result) if "run" in self.result else []
        yield from train_page(self.best, self.result, [*more, *_faster_outside(self.result)])
        if self.against is not None:
            yield from _against_page(self.against, self.result)
        else:
            yield from _runners_up(self.result)

    def sections(self) -> Mapping[str, Page]:
        """All else: what the figures are made of, why this plan, and the book's rules."""
        return {
            "detail": chain(
                train_detail(self.best, self.result), _close_detail(self.result), self._more()
            ),
            "why": _why(self.result),
            "book": (wrapped(line, 0, 2) for line in self.result["book"]["lines"]),
        }

    def _more(self) -> Page:
        if "run" in self.result:
            yield from _run_detail(self.result["run"])
        if self.against is not None:
            yield from _against_detail(self.against)
        s = self.result["search"]
        yield ""
        yield wrapped(
            f"searched {s['enumerated']:,} plans, {s['legal']:,} legal, {s['candidates']:,} priced "
            f"in full (floors rule out the others), in {format_seconds(s['seconds'])}"
        )


plan_train = verb("plan_train", TrainPlanRequest)


def _why(result: Mapping[str, Any]) -> Page:
    yield "why this plan"
    for reason in result["why"]:
        yield wrapped(f"- {reason}", 2, 4)


def _faster_outside(result: Mapping[str, Any]) -> list[Fact]:
    """The plan that is faster, but that the program does not run."""
    other = result["faster_outside"]
    if other is None:
        return []
    took = format_seconds(other["step_seconds"]["expected"])
    plan = f"{mesh_text(other['mesh'])}, remat {other['remat']}"
    return [Fact("faster", f"{took}, but not in {result['runs_in']}: {plan} (--for any)")]


def _runners_up(result: Mapping[str, Any]) -> Page:
    if not result["runners_up"]:
        return
    yield ""
    yield TextTable(
        ["what else was close", "microbatches", "remat", "step", "slower", "memory"],
        [
            [
                mesh_text(r["mesh"]),
                str(r["microbatches"]),
                r["remat"],
                format_seconds(r["step_seconds"]["expected"]),
                slower_text(r["times_slower"]).removesuffix(" slower").replace("%", " %"),
                f"{sig(r['peak_bytes_per_chip'] / 2**30)} GiB",
            ]
            for r in result["runners_up"]
        ],
        spare=("microbatches", "memory", "remat"),
        ruled=False,
    )


def _close_detail(result: Mapping[str, Any]) -> Page:
    """The next best meshes with what bounds them."""
    if result["runners_up"]:
        yield ""
        yield TextTable(
            ["next best mesh", "MFU", "waits", "limited by"],
            [
                [
                    mesh_text(r["mesh"]),
                    f"{r['mfu']:.1%}",
                    format_seconds(r["exposed_seconds"]),
                    r["bound_by"],
                ]
                for r in result["runners_up"]
            ],
        )


def _run_facts(run: Mapping[str, Any], result: Mapping[str, Any]) -> list[Fact]:
    """Days and dollars of a whole run in one labelled line."""
    cost = "cost unknown: no price in the catalogue (give --price CHIP=USD)"
    if run["usd"] is not None:
        price = f"${run['usd_per_chip_hour']:.2f} per chip-hour"
        cost = f"{format_usd(run['usd'])}{_idle_text(run)} at {price} ({run['price_as_of']})"
    given = "" if run["basis"].startswith(AT_EXPECTED) else f" at {run['basis']}"
    said = f"{sig(run['days'])} days{_days_range(run, result)}{given}"
    text = f"{said}, {format_count(run['chip_hours'])} chip-hours, {cost}"
    return [Fact(f"{format_count(run['tokens'])} tokens", text)]


def _days_range(run: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The days' range where they come from the expected step time, which has one."""
    found, expected = result["expected_80"], result["step_seconds"]["expected"]
    if found is None or not run["basis"].startswith(AT_EXPECTED):
        return ""
    low, high = (run["days"] * found[end] / expected for end in ("low", "high"))
    return f" ({sig(low)} to {sig(high)})"


def _run_detail(run: Mapping[str, Any]) -> Page:
    """What the run's days and dollars are made of."""
    yield ""
    source = f"; price: {run['price_source']}" if run["usd"] is not None else ""
    yield wrapped(
        f"the run of {format_count(run['tokens'])} tokens: at {run['basis']}{source}", 0, 2
    )
    if "goodput" in run:
        yield wrapped(_lost_text(run["goodput"]), 2, 4)


def _idle_text(run: Mapping[str, Any]) -> str:
    return f" ({format_usd(run['usd_idle'])} of it for idle chips)" if run["usd_idle"] else ""


def _lost_text(good: Mapping[str, float]) -> str:
    """Where the time that does not train goes."""
    parts = [f"{name} {good[name]:.1%}" for name in ("straggler", "checkpoint", "failures")]
    every = f", a checkpoint every {format_seconds(good['interval'])}" if good["checkpoint"] else ""
    return f"trains {good['share']:.1%} of the time; lost to {', '.join(parts)}{every}"


def _against_page(found: Against, result: Mapping[str, Any]) -> Page:
    """The two plans' figures, and the choices that cost the other one most."""
    theirs, slower = result["against"], found.times_slower
    told = slower_text(slower) if slower >= 1 else f"{1 - slower:.1%} faster"
    yield ""
    yield wrapped(f"against {found.name}: {told} than the best plan", 0, 2)
    yield TextTable(["predicted", "ours", "theirs"], figures(result, theirs), ruled=False)
    rows = [[r.field, shown(r.ours), shown(r.theirs), gain_text(r)] for r in found.differences]
    if rows:
        yield TextTable(
            ["choice", "ours", "theirs", "theirs with ours"],
            rows[:_CHOICES],
            left=3,
            spare=("ours",),
            ruled=False,
        )
    left = len(rows) - _CHOICES
    yield f"  ({left} more choices differ: --detail)" if left > 0 else "  (no other choice differs)"


_CHOICES = 4
"""Choices that a page shows of those that differ from another plan's."""


def _against_detail(found: Against) -> Page:
    """How the other plan was read, every choice that differs, and the reasons."""
    yield ""
    yield f"against {found.name}"
    for note in found.notes:
        yield wrapped(note, 2, 4)
    rows = [[r.field, shown(r.ours), shown(r.theirs), gain_text(r)] for r in found.differences]
    if rows:
        yield TextTable(["choice", "ours", "theirs", "theirs with ours"], rows, left=3)
    for reason in found.reasons:
        yield wrapped(f"- {reason}", 2, 4)


def figures(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[list[str]]:
    """Headline figures of both."""
    both = ours, theirs
    return [
        ["seconds per step", *(format_seconds(r["step_seconds"]["expected"]) for r in both)],
        ["tokens/s", *(format_count(r["tokens_per_second"]) for r in both)],
        ["MFU", *(f"{r['mfu']:.1%}" for r in both)],
        ["HBM per chip", *(format_gib(r["peak_bytes_per_chip"]) for r in both)],
        ["bound by", *(r["bound_by"] for r in both)],
    ]


def shown(value: Any) -> str:
    """A choice in a table."""
    if isinstance(value, dict):
        return mesh_text(value)
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value)

"""`plan show`: price a plan as written or edited by hand, and hold it against the book's rules."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from shardwise.book.rules.audit import PlanAudit, audit_result
from shardwise.boundary import Command
from shardwise.boundary.options import option, place
from shardwise.boundary.records import hidden, part, values
from shardwise.commands.base.answer import Answer, Page, Resolved, Row, TextTable
from shardwise.commands.base.inputs import (
    FAMILY,
    OWN_RUNS,
    PLAN_CONSTANTS,
    HardwareWords,
    Own,
    plan_changes,
)
from shardwise.commands.base.layout import Fact, wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.commands.plan_serve.loaded import served_under
from shardwise.commands.pricing.plans import GivenPlan, Priced, check_fits, price_given
from shardwise.commands.pricing.serve_page import serve_detail, serve_page
from shardwise.commands.pricing.served_page import served_page
from shardwise.commands.pricing.train_page import train_detail, train_page
from shardwise.commands.pricing.whole_run import (
    CHECKPOINT_INTERVAL,
    CHECKPOINT_TIME,
    CHIP_MTBF,
    MFU,
    PARAMS,
    RESTART_TIME,
    RUN_TOKENS,
    STRAGGLER,
    Word,
    run_detail,
    run_facts,
    run_words,
)
from shardwise.errors import BadRequest
from shardwise.evidence.measured import MeasuredRun, measured_run
from shardwise.evidence.training.own import read_own_runs
from shardwise.planner.serve.served import Served
from shardwise.plans import ServePlan, TrainPlan
from shardwise.plans.files import flat_plan, keys_written, origin_of
from shardwise.plans.named import Measured, audit_measured
from shardwise.plans.software import software_row
from shardwise.results.run import WholeRun, whole_run
from shardwise.results.served import (
    DEFINITIONS,
    ServedPlan,
    UsdOfTokens,
    served_cautions,
    served_result,
)
from shardwise.results.server import PricedServer
from shardwise.results.train import PricedPlan, refused_by, runs_in
from shardwise.units import format_usd, sig


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShowRequest(HardwareWords, Command):
    """Price a plan: `path` is its file, "audit:NAME" of a published run, or a plan.

    `sets` first change fields of the plan, or numbers of its chip. Raises BadRequest, and
    NoFeasiblePlan if the plan needs more memory than a chip has.
    """

    COMMAND: ClassVar[str] = "plan show"

    path: GivenPlan = field(kw_only=False, metadata=place(kind="file"))
    constants: str | None = option(PLAN_CONSTANTS)
    as_: str | None = option(FAMILY)
    tokens: Word = option(RUN_TOKENS)
    mfu: Word = option(MFU)
    params: Word = option(PARAMS)
    straggler: Word = option(STRAGGLER)
    chip_mtbf: Word = option(CHIP_MTBF)
    checkpoint_time: Word = option(CHECKPOINT_TIME)
    checkpoint_interval: Word = option(CHECKPOINT_INTERVAL)
    restart_time: Word = option(RESTART_TIME)
    resolve: bool = option(
        "Show every choice with where it comes from: the file, a search of what it leaves open "
        "(searched), computed of the others, what users of the program leave (usual), or the "
        "default.",
        default=False,
        kind="flag",
        group="Level of detail",
        meaning="write the plan out whole, with what its file left out",
    )
    evidence: Own | None = option(OWN_RUNS)

    def answer(
        self, progress: Progress | None = None
    ) -> "TrainPlanShown | ServePlanShown | ServedShown":
        """Price it; a plan that was made for a load is simulated under it."""
        own = read_own_runs(self.evidence)
        priced, run = price_given(self.path, self, self.as_, own), run_words(self)
        plan, found = priced.plan, priced.result
        if isinstance(plan, ServePlan) and run:
            raise BadRequest("--tokens is the length of a training run; this is a serving plan")
        if isinstance(plan, ServePlan) and plan.workload is not None:
            return self._under_load(priced)
        check_fits(priced, self.path)
        shared: dict[str, Any] = {
            "priced": priced,
            "resolves": self.resolve,
            "resolved": self._resolved(priced),
            "warnings": [*priced.warnings, *_refused(priced)],
        }
        if isinstance(plan, ServePlan):
            return ServePlanShown.of(found, **shared)
        answer = priced.answer
        return TrainPlanShown.of(
            found,
            runs_in=runs_in(answer),
            measured=measured_run(self._measured(), answer),
            audit=audit_result(plan, answer.cfg, answer.piece),
            run=whole_run(answer, run) if run else None,
            **shared,
        )

    def _measured(self) -> Measured | None:
        """What the published run took; None where another job is priced than the run had."""
        fields, _ = plan_changes(self.sets)
        return None if fields.keys() & JOB else audit_measured(self.path)

    def _under_load(self, priced: Priced) -> "ServedShown":
        served = served_under(priced)
        return ServedShown(
            **values(priced.result) | values(served_result(served)),
            priced=priced,
            served=served,
            resolves=self.resolve,
            resolved=self._resolved(priced),
            warnings=[*priced.warnings, *served_cautions(served)],
            provenance={"definitions": DEFINITIONS},
        )

    def _resolved(self, priced: Priced) -> dict[str, Resolved]:
        """Every choice with its value, and whether an option gave it."""
        fields, numbers = plan_changes(self.sets)
        changed = set(fields) | ({"constants"} if self.constants else set())
        if numbers or self.hw_files or self.prices or self.provider or self.spot:
            changed.add("chips")
        origin = self._origins(priced)
        return {
            key: Resolved(
                value=value,
                origin="flag" if {key, key.partition(".")[0]} & changed else origin(key),
            )
            for key, value in flat_plan(priced.plan).items()
        }

    def _origins(self, priced: Priced) -> Callable[[str], str]:
        """Where a choice comes from that no flag gave."""
        if not isinstance(self.path, str | Path):
            return lambda key: "file"
        return partial(origin_of, keys_written(self.path), priced.plan, priced.searched)


JOB = {"model", "slice", "global_batch_sequences", "sequence_length", "mtp_layers", "lora_rank"}
JOB |= {"lora_targets", "quantize"}
"""Fields of a plan that say what is trained on what, not how."""


def _refused(priced: Priced) -> list[str]:
    """A line where the program that a training plan names does not run it."""
    if not isinstance(priced.plan, TrainPlan) or not (why := refused_by(priced.answer)):
        return []
    title = software_row(priced.plan.software).title
    return [f"the plan is for {title}, which does not run it: {why}"]


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanShown(Answer):
    """A plan with its estimate: its page, or with `resolves` all choices by origin."""

    priced: Priced = hidden()
    resolves: bool = hidden(False)

    @property
    def best(self) -> Any:
        """The plan, or one step of it, priced; called as that of a search."""
        return self.priced.answer

    def table(self) -> list[Row]:
        """The headline figures."""
        return [dict(self.priced.headline)]

    def page(self) -> Page:
        """What is shown of the plan; or all choices by origin."""
        return iter([choices_table(self.resolved)]) if self.resolves else self.shown()

    @abstractmethod
    def shown(self) -> Page:
        """The plan, its times, memory and cost."""


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainPlanShown(PlanShown, PricedPlan):
    """A training plan with its estimate."""

    runs_in: str
    """The program that runs it; "" for none in particular, or where its program refuses it."""
    measured: MeasuredRun | None
    """Measured time of its run, if published."""
    audit: PlanAudit
    """The plan held against the book's rules."""
    run: WholeRun | None = part()
    """Days and dollars of a whole run (--tokens)."""

    def shown(self) -> Page:
        """The priced plan."""
        more = self._dollars()
        yield from train_page(self.best, self, self.runs_in, measured=self.measured, more=more)

    def _dollars(self) -> list[Fact]:
        """Of the run, or of so many tokens where nobody says how long it is."""
        if self.run:
            return run_facts(self.run)
        usd, price = self.priced.headline.get("usd_per_trillion_tokens"), self.best.piece.chip.price
        if usd is None:
            return []
        return [Fact("cost", f"{format_usd(usd)} per 1T tokens at {price}")]

    def sections(self) -> Mapping[str, Page]:
        """What the figures are made of, and the book's rules."""
        run = run_detail(self.run) if self.run else ()
        detail = chain(train_detail(self.best, self, self.measured), run)
        return {"detail": detail, "book": _audit_page(self.audit)}


@dataclass(frozen=True, kw_only=True, repr=False)
class ServePlanShown(PlanShown, PricedServer):
    """A serving plan with its estimate."""

    def shown(self) -> Page:
        """The priced plan."""
        yield from serve_page(self.best, self)

    def sections(self) -> Mapping[str, Page]:
        """What the figures are made of."""
        return {"detail": serve_detail(self.best, self), "book": iter([NO_RULES])}


NO_RULES = "The book has rules for training plans alone."


@dataclass(frozen=True, kw_only=True, repr=False)
class ServedShown(PlanShown, PricedServer, ServedPlan):
    """A plan of `plan serve` under the load that it was made for: what that search printed."""

    usd_per_million_tokens: UsdOfTokens
    """Dollars per million tokens under the load."""

    served: Served = hidden()

    def shown(self) -> Page:
        """The servers, what they hold, times and cost."""
        yield from served_page(self.served, self)

    def sections(self) -> Mapping[str, Page]:
        """Where the mesh lies, and the two steps of a full batch."""
        assert isinstance(self.priced.result, PricedServer)
        return {"detail": serve_detail(self.best, self.priced.result), "book": iter([NO_RULES])}


def choices_table(resolved: Mapping[str, Resolved]) -> TextTable:
    """All choices, with what gave each."""
    rows = [[k, short(v.value), v.origin] for k, v in resolved.items()]
    return TextTable(["choice", "value", "from"], rows)


def short(value: Any) -> str:
    """A choice in a table of 100 columns."""
    text = "none" if value in ("", [], {}) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _audit_page(audited: PlanAudit) -> Page:
    """The book's rules for each strategy: what the plan has, what it needs, and why."""
    if not audited.verdicts:
        yield "No rule of the book speaks of this mesh."
        return
    yield TextTable(
        ["book rule", "degree", "has", "needs", "in", "compute-bound"],
        [
            [
                v.strategy,
                f"{v.degree:,}",
                sig(v.have),
                f"{'>=' if v.at_least else '<='} {sig(v.need)}",
                v.unit,
                "yes" if v.ok else "no",
            ]
            for v in audited.verdicts
        ],
    )
    for v in audited.verdicts:
        yield wrapped(f"{v.text} ({v.source})", 2, 4)


plan_show = verb("plan_show", PlanShowRequest)

"""`plan train`: the simplest training plan as fast as predictions can tell, and why."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from shardwise.book.thresholds import BookSays, book_result
from shardwise.boundary import Command, number
from shardwise.boundary.options import option, required, switch
from shardwise.boundary.records import hidden, part
from shardwise.commands.base.answer import Answer, Page, Resolved, Row
from shardwise.commands.base.inputs import (
    COMPILE_FLAGS,
    COMPILE_TIMEOUT,
    FAMILY,
    SENSITIVITY,
    Words,
    parse_part,
    parse_pins,
)
from shardwise.commands.base.layout import Fact, wrapped
from shardwise.commands.base.request import Progress, Watch, verb
from shardwise.commands.plan_train.against import (
    Against,
    AgainstPlan,
    against_plan,
    published_plan,
    set_against,
)
from shardwise.commands.plan_train.against_page import against_detail, against_page
from shardwise.commands.plan_train.deadline import DatedRun, SliceChoice
from shardwise.commands.plan_train.points import SIZES, USUAL_CHIPS, SweepPoint, slices_offered
from shardwise.commands.plan_train.why import close_detail, close_table, differs_in, reasons
from shardwise.commands.pricing.predict import (
    batch_hints,
    caveats,
    plan_training,
    tight,
    unused_choices,
)
from shardwise.commands.pricing.train_choices import TrainChoices, coarsely
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
    idle_unpaid,
    late_run,
    run_detail,
    run_facts,
    run_words,
)
from shardwise.errors import BadRequest, NoFeasiblePlan, Remark
from shardwise.hardware import Spelling, Torus
from shardwise.models.describe import unpriced
from shardwise.models.zoo import with_family
from shardwise.planner.beside import choices_beside, close_plans
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.sensitivity import train_sensitivity
from shardwise.planner.training import TrainPlanning
from shardwise.plans import TrainPlan
from shardwise.plans.batch_words import parse_batch, parse_length
from shardwise.plans.software import JAX
from shardwise.plans.software.trainer import TRAINER
from shardwise.plans.train import mesh_text
from shardwise.results.compiled import CompiledPlans
from shardwise.results.run import RunLength, WholeRun, whole_run
from shardwise.results.sensitivity import ChangedInput, changed_inputs, strongest
from shardwise.results.train import ClosePlan, SearchedPlan, plan_beside, runs_in, searched_plan
from shardwise.units import format_seconds

if TYPE_CHECKING:
    from shardwise.commands.plan_train.second_opinion import SecondOpinion


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlanRequest(TrainChoices, Command):
    """The best training plan that fits: mesh, microbatches, schedule, storage and remat.

    For a bare chip the answer is its smallest slice with a plan that fits. With `days` it is the
    slice of fewest chips that meets the deadline, or with `objective` "cost" the cheapest slice,
    counting all its chips. Days follow from the expected step time, or from `mfu` of 6*N*tokens,
    with N = `params` if given. `straggler` and the times after it are losses of the run. Raises
    BadRequest, or NoFeasiblePlan with the nearest miss.
    """

    COMMAND: ClassVar[str] = "plan train"

    model: str | Path = field(
        kw_only=False,
        metadata=required(
            "Zoo name, config.json, or a folder with one.", group="What is planned", offers="models"
        ),
    )
    on: str = field(
        kw_only=False,
        metadata=required(
            "Slice such as v5p:16x16x16, or a bare chip.",
            group="What is planned",
            offers="chips",
            meaning="the chips: a slice (v5p:4x4x8, 4*h100:8), or a chip to look through",
        ),
    )
    as_: str | None = option(FAMILY, before="on")
    batch: str | int = field(
        metadata=required(
            "Tokens (4Mi) or sequences (1024seq) per step.",
            group="What is planned",
            meaning="sequences worked on together: all of a training step (tokens, 4Mi, or "
            "1024seq), or at most so many on a server",
        )
    )
    seq: str | int = field(metadata=required("Tokens per sequence.", group="What is planned"))
    top: int | str = option(
        "Next best meshes to show, up to 50.",
        default=3,
        show_default=True,
        kind="whole",
        group="Beside the answer",
        meaning="how many to show: of the next best, of the dearest ops",
    )
    tokens: Word = option(RUN_TOKENS)
    days: float | str | None = option(
        "Deadline for --tokens; for a bare chip, takes the fewest chips that meet it.",
        kind="number",
        before="tokens",
        group="What is planned",
        meaning="the days that a run or a load may take",
    )
    mfu: Word = option(MFU)
    params: Word = option(PARAMS)
    straggler: Word = option(STRAGGLER)
    chip_mtbf: Word = option(CHIP_MTBF)
    checkpoint_time: Word = option(CHECKPOINT_TIME)
    checkpoint_interval: Word = option(CHECKPOINT_INTERVAL)
    restart_time: Word = option(RESTART_TIME)
    against: str | Path | None = option(
        "A plan file or audit:NAME (`shardwise book list`) to compare with the best plan.",
        metavar="PLAN",
        group="Beside the answer",
        meaning="what stands beside the answer: a plan (a file or audit:NAME) beside the best one; "
        "the program before (a function, or a file of --save) beside an explained one",
    )
    compile: int | str | None = option(
        "Compile the best plans for our trainer until N fit; the best compiled plan is the answer. "
        "Compiles at most 3 N plans, one to four minutes each on a core, and caches them. Implies "
        "--for jax.",
        kind="whole",
        metavar="N",
        group="Beside the answer",
        meaning="how many of the best plans are compiled; the best as compiled is the answer",
    )
    tune: bool = switch(
        "With --compile: also find compiler flags that shorten the best plan's step (four to six "
        "compiles).",
        group="Beside the answer",
        meaning="sets of compiler flags are tried on the best plan as compiled",
    )
    timeout: float | str = option(COMPILE_TIMEOUT)
    xla: Words = option(COMPILE_FLAGS)
    sensitivity: bool = option(SENSITIVITY)

    def answer(
        self, progress: Progress | None = None, watch: Watch | None = None
    ) -> "TrainPlanned":
        """Search, and price what was asked for beside it; `watch` hears of compiles."""
        if self.compile is not None:
            if self.coarse:
                raise BadRequest(
                    "--coarse tries few plans and --compile compiles the best ones; give one of "
                    "the two"
                )
            return self._compiled(progress, watch)
        if self.tune:
            raise BadRequest(
                "--tune tries compiler flags on the best compiled plan; give --compile N too"
            )
        return self._planned(progress)

    def _compiled(self, progress: Progress | None, watch: Watch | None) -> "TrainPlanned":
        """The answer whose best plan is the best as compiled."""
        # Here, as the readers of compiled programs are a fifth of the imports of a plain search.
        from shardwise.commands.plan_train.second_opinion import second_opinion
        from shardwise.commands.program.candidate import TRIED, Compiling

        compiling = Compiling.of(self.compile or 0, self.hardware, self.timeout, self.xla, watch)
        top = TRIED * compiling.count
        asked = replace(self._of_one_program(), top=top, compile=None, tune=False)
        return asked._planned(
            progress, lambda planning: second_opinion(planning, compiling, tune=self.tune)
        )

    def _of_one_program(self) -> Self:
        """The same for our trainer and without pipelines: a step of theirs is many programs."""
        if self.software not in (None, JAX.name):
            raise BadRequest(
                f"--compile compiles our own trainer's step, and --for is {self.software}; leave "
                "out one of the two (docs/lab/maxtext.md has MaxText's runs beside ours, compiled)"
            )
        pins = parse_pins(self.pins)
        if pins.get("stage", 1) != 1:
            raise BadRequest(
                "--compile takes a step that is one program, and a pipeline has many; leave out "
                "--pin stage"
            )
        return replace(self, software="jax", pins={**pins, "stage": 1})

    def _planned(
        self,
        progress: Progress | None,
        opinion_of: Callable[[TrainPlanning], "SecondOpinion"] | None = None,
    ) -> "TrainPlanned":
        """Search, and price what was asked for beside it; an opinion may choose another plan."""
        if self.evidence is not None:
            from shardwise.evidence.training.own import read_own_runs  # loads pydantic

            self = replace(self, evidence=read_own_runs(self.evidence))
        if "," in self.on:
            raise BadRequest(
                f"--on {self.on} names several chips; `shardwise plan sweep` with the same options "
                "and --chips N, or with --tokens and --days, puts them side by side"
            )
        run = run_words(self)
        days = self._days(run)
        chosen = self._in_time(run, days, progress) if run and days else None
        published = self._published() if self.against else None
        planning = self._searched(chosen, progress)
        opinion = opinion_of(planning) if opinion_of else None
        if opinion is not None:
            planning = opinion.reranked(planning)
        best = planning.best
        choices = choices_beside(planning) if planning.top else ()
        close = close_plans(planning, choices)
        against = None
        if published is not None:
            against = set_against(planning, published, str(self.against), self.hardware)
        whole = whole_run(best, run, days) if run else None
        return TrainPlanned.of(
            searched_plan(planning, choices),
            close=[ClosePlan.of(plan_beside(a, best), differs=differs_in(a, best)) for a in close],
            why=reasons(planning, choices),
            compiled=opinion and opinion.result(),
            book=book_result(
                best, replace(self.hardware, constants="book").chip(best.piece.chip.id)
            ),
            against=against and against_plan(against),
            run=whole,
            sensitivity=changed_inputs(train_sensitivity(best)) if self.sensitivity else None,
            planning=planning,
            close_answers=close,
            against_answer=against,
            opinion=opinion,
            resolved=self._resolved(best),
            warnings=[
                *self._notes(best, chosen),
                *([] if opinion is None else [Remark(ONE_PROGRAM)]),
                *unpriced(planning.request.cfg),
                *unused_choices(planning, self.schedule, self.context_method),
                *coarsely(self.coarse),
                *([] if self.coarse else batch_hints(planning)),
                *caveats(best),
                *tight(planning),
                *late_run(whole),
                *idle_unpaid(best, whole, self.objective),
                *planning.rank_changes,
                *planning.offloaded,
            ],
            provenance={"efficiency": best.piece.chip.efficiency.source},
        )

    def _searched(self, chosen: SliceChoice | None, progress: Progress | None) -> TrainPlanning:
        """The slice that was asked for, or the one that was chosen, which a coarse answer has
        searched already."""
        if self.coarse and chosen and chosen.point.planning:
            return chosen.point.planning
        return plan_training(
            with_family(self.model, self.as_),
            self.on if chosen is None else str(chosen.point.piece),
            batch=self.batch,
            seq=self.seq,
            top=0 if self.coarse else self.top,
            choices=self if chosen is None else replace(self, objective="time"),
            progress=progress,
            outside=not self.coarse,
            may_offload=True,
        )

    def _published(self) -> TrainPlan:
        """The plan beside the best, on the slice of the request where its file names none."""
        found = self.hardware.target(self.on)
        piece = found.slice if isinstance(found, Spelling) else None
        return published_plan(str(self.against), piece, self.hardware)

    def _days(self, run: RunLength | None) -> float | None:
        if self.days is None:
            return None
        if run is None or self.mfu:
            raise BadRequest("--days is the deadline of a run; give --tokens, and leave out --mfu")
        return number(self.days, "--days", above=0, most=1e6, suffix=True)

    def _in_time(
        self, run: RunLength, days: float, progress: Progress | None
    ) -> SliceChoice | None:
        """Of a bare chip the slice that the deadline needs; None where the slice is given. Raises
        NoFeasiblePlan where no slice is fast enough."""
        found = self.hardware.target(self.on)
        if isinstance(found, Spelling):
            return None
        asked = DatedRun(
            model=with_family(self.model, self.as_),
            tokens=run.tokens,
            days=days,
            overheads=run.overheads,
            choices=replace(self, objective="cost" if self.objective == "cost" else "chips"),
        )
        pieces = slices_offered(found, 1, USUAL_CHIPS)
        length = parse_length(self.seq, "--seq")
        batch = f"{parse_batch(self.batch, length)}seq"
        job = SweepPoint(piece=pieces[-1], batch=batch, sequence_length=length, answer=None)
        chosen = asked.choice(job, pieces, lambda: progress and progress(0, 0))
        if not chosen.keeps:
            raise NoFeasiblePlan(chosen.too_slow(days))
        return chosen

    def _notes(self, best: TrainAnswer, chosen: SliceChoice | None) -> list[str]:
        found = self.hardware.target(self.on)
        if isinstance(found, Spelling):
            return list(found.notes)
        if chosen is not None:
            few = "the cheapest slice" if self.objective == "cost" else "the slice of fewest chips"
            many = f"of {len(chosen.looked)} tried ({SIZES})"
            runs = f" and runs in {program}" if (program := runs_in(best)) else ""
            said = f"{best.piece} is {few} of {found.id} that meets the deadline{runs}"
            return [Remark(f"{said}, {many}")]
        every = isinstance(found.network, Torus) or best.piece.chips <= 2
        tried = "" if every else " (tried: sizes that double)"
        full = self.margin is not None and parse_part(self.margin, "--margin") == 0
        how = "that fits" if full else "on which a plan keeps the margin"
        said = f"{best.piece} is the smallest slice of {found.id} {how}{tried}"
        if self.tokens:
            said += (
                "; --days N takes the smallest that meets the deadline, and `shardwise plan sweep` "
            )
            said += "with the same options shows others"
        return [Remark(said)]

    def _resolved(self, best: TrainAnswer) -> dict[str, Resolved]:
        """Every choice with its value and where it came from."""
        fixed = {"software"} if self.software else set()
        fixed |= {"slice", "global_batch_sequences", "sequence_length", *self.fixed}
        plan, pinned = best.plan, parse_pins(self.pins)
        values = {name: (getattr(plan, name), name in fixed) for name in _RESOLVED}
        values |= {f"mesh.{axis}": (n, axis in pinned) for axis, n in plan.mesh.items()}
        return {
            name: Resolved(value=value, origin="flag" if flag else "computed")
            for name, (value, flag) in values.items()
        }


ONE_PROGRAM = (
    "--compile plans for our own trainer (--for jax), in its dtypes, and without pipeline "
    "stages: their step is many programs"
)
_RESOLVED = ("slice", "global_batch_sequences", "sequence_length", "microbatches", "remat", "zero")
_RESOLVED += ("layers_per_stage", "storage_axes", "weight_gather", "gradient_reduce")
_RESOLVED += ("context_method", "pipeline_schedule", "virtual_stages", "optimizer", "software")
_RESOLVED += ("stack",)


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainPlanned(Answer, SearchedPlan):
    """A search of training plans: the best, the next best meshes, and why."""

    close: Sequence[ClosePlan]
    """Plans that were close, and that a reader would tell apart."""
    why: Sequence[str]
    """Why this plan: what bounds it, what waits, what other choices would cost."""
    compiled: CompiledPlans | None = part()
    """The first plans, compiled (--compile)."""
    book: BookSays
    """Rules of the book for this batch on these chips."""
    against: AgainstPlan | None = part()
    """The plan to compare with (--against)."""
    run: WholeRun | None = part()
    """Days and dollars of a whole run (--tokens)."""
    sensitivity: Sequence[ChangedInput] | None = part()
    """The same plan with one input changed, that which weighs most first (--sensitivity)."""

    planning: TrainPlanning = hidden()
    close_answers: Sequence[TrainAnswer] = hidden(())
    against_answer: Against | None = hidden(None)
    opinion: "SecondOpinion | None" = hidden(None)

    @property
    def best(self) -> TrainAnswer:
        """The best plan, priced."""
        return self.planning.best

    def table(self) -> list[Row]:
        """The best plan and its runners-up."""
        return [
            {
                "mesh": mesh_text(r.mesh),
                "microbatches": r.microbatches,
                "remat": r.remat,
                "lower_s": r.step_seconds.lower,
                "expected_s": r.step_seconds.expected,
                "upper_s": r.step_seconds.upper,
                "mfu": r.mfu,
                "bytes": r.peak_bytes_per_chip,
            }
            for r in (self, *self.runners_up)
        ]

    def page(self) -> Page:
        """The plan, its time and memory, where the step goes, and close alternatives; with
        `against` the other plan instead of these."""
        more = run_facts(self.run) if self.run else []
        compiled = self.opinion.facts() if self.opinion else []
        yield from train_page(
            self.best,
            self,
            self.runs_in,
            beside=self.against is not None,
            more=[*compiled, *more, *self._faster_outside()],
            between=self.opinion.page() if self.opinion else (),
        )
        if self.against_answer is not None and self.against is not None:
            yield from against_page(self.against_answer, self.against, self)
        elif not self.opinion:
            yield from close_table(self.planning, self.close_answers)

    def _faster_outside(self) -> list[Fact]:
        """The plan that is faster, but that the program does not run."""
        other, ours = self.planning.outside, self.best.plan
        if other is None:
            return []
        said = [mesh_text(other.plan.mesh), f"remat {other.plan.remat}"]
        if (other.plan.mesh, other.plan.remat) == (ours.mesh, ours.remat):
            said = ["the same mesh", *differs_in(other, self.best)]
        took = format_seconds(other.step_seconds.expected)
        plan = ", ".join(said)
        program = self.runs_in or TRAINER.title
        return [Fact("faster", f"{took}, but {program} does not run it: {plan} (--for any)")]

    def sections(self) -> Mapping[str, Page]:
        """All else: what the figures are made of, why this plan, and the book's rules."""
        return {
            "detail": chain(
                train_detail(self.best, self),
                close_detail(self.close, self.mfu_dtype),
                self._more(),
            ),
            "why": self._why(),
            "book": (wrapped(line, 0, 2) for line in self.book.lines),
        }

    def _why(self) -> Page:
        yield "why this plan"
        for reason in self.why:
            yield wrapped(f"- {reason}", 2, 4)
        found = self.sensitivity or changed_inputs(train_sensitivity(self.best))
        yield wrapped(f"- {strongest(found)}", 2, 4)

    def _more(self) -> Page:
        if self.run:
            yield from run_detail(self.run)
        if self.against_answer is not None:
            yield from against_detail(self.against_answer)
        s = self.search
        yield ""
        yield wrapped(
            f"searched {s.enumerated:,} plans, {s.legal:,} legal, {s.candidates:,} priced "
            f"in full (lower bounds rule out the others), in {format_seconds(s.seconds)}"
        )


plan_train = verb("plan_train", TrainPlanRequest)

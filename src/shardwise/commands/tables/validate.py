"""`validate`: predicted against measured times of published training and serving runs."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import ClassVar, Literal

from shardwise.boundary import Command
from shardwise.boundary.options import option, place, several, switch
from shardwise.boundary.records import hidden, plain
from shardwise.commands.base.answer import Answer, Page, Row, TextTable
from shardwise.commands.base.inputs import OWN_RUNS, Own, Words, parse_share, words
from shardwise.commands.base.layout import wrapped
from shardwise.commands.base.request import Progress, verb
from shardwise.errors import BadRequest, ThresholdMissed, unknown
from shardwise.evidence.serving.runs import PUBLISHED_SERVING, ServingTable, read_serving
from shardwise.evidence.serving.validate import ServingValidation, validate_serving, worst
from shardwise.evidence.serving.validation_result import ServingRuns, ValidatedServing, serving_runs
from shardwise.evidence.training.own import read_own_runs
from shardwise.evidence.training.scores import Summary
from shardwise.evidence.training.table import PUBLISHED, RunTable, read_table
from shardwise.evidence.training.validate import ScoredRun, Validation
from shardwise.evidence.training.validate import validate as validate_training
from shardwise.evidence.training.validation_result import TrainingRuns, ValidatedRun, training_runs
from shardwise.roofline.engines import load_engine
from shardwise.roofline.evidence import OwnRuns
from shardwise.units import format_gib, format_seconds, sig

_WORST, _FEW = 10, 20
"""Runs that --detail names; runs of a table that are each shown, as a user's own are."""
_NO_COLUMNS = ("interval", "mesh", "inferred", "evidence")
Efficiency = Literal["fitted", "roofline"]
_CONSTANTS = {"fitted": "fitted constants", "roofline": "peak chip rates, no fit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateRequest(Command):
    """Price every run of a table of measurements on its own plan and compare times.

    `path` is a CSV; the default is the published runs that ship with shardwise, each with its
    citation. Constants fitted without its group predict each training run, so that every error is
    that of an unseen run; the in-sample error comes second. `evidence` corrects every training run,
    a run of its own table only by the others. `checked()` of the answer raises if the median
    absolute error is larger than `check`.
    """

    COMMAND: ClassVar[str] = "validate"

    path: str | Path | None = field(
        default=None, kw_only=False, metadata=place("[TABLE.csv]", kind="file", required=False)
    )
    serving: bool = switch(
        "Serving runs: time per output token and TTFT.",
        group="Beside the answer",
        meaning="rows of serving in place of training",
    )
    source: Words = several(
        "Only rows of this source; may be repeated.", metavar="S", group="Beside the answer"
    )
    grade: str | None = option("Only rows of this grade.", metavar="A|B", group="Beside the answer")
    no_fit: bool = switch(
        "Peak chip rates: no efficiency, no fitted constant.", group="Beside the answer"
    )
    check: float | str | None = option(
        "Exit with code 4 if the median absolute error is larger, such as 10%.", metavar="MEDIAN"
    )
    detail: bool = switch("Name the worst rows, and every row that is left out.")
    evidence: Own | None = option(OWN_RUNS)

    def answer(self, progress: Progress | None = None) -> "TrainingValidated | ServingValidated":
        """Price them all."""
        limit = None if self.check is None else _limit(self.check)
        efficiency = "roofline" if self.no_fit else "fitted"
        if self.serving:
            told = serving_runs(served := self._servers(efficiency, progress))
            return ServingValidated.of(told, found=served, limit=limit, detail=self.detail)
        found = self._runs(efficiency, progress)
        return TrainingValidated.of(
            training_runs(found),
            found=found,
            limit=limit,
            detail=self.detail,
            warnings=read_table(self.table).warnings,
        )

    @property
    def table(self) -> Path:
        """The file that is read."""
        return Path(self.path or (PUBLISHED_SERVING if self.serving else PUBLISHED))

    def _own(self) -> OwnRuns | None:
        """The runs of one's own. Raises BadRequest where they would do nothing."""
        for given, flag in ((self.serving, "--serving"), (self.no_fit, "--no-fit")):
            if self.evidence is not None and given:
                raise BadRequest(f"--evidence cannot take effect with {flag}; leave out one")
        return read_own_runs(self.evidence)

    def _runs(self, efficiency: Efficiency, progress: Progress | None) -> Validation:
        own = self._own()
        table = _chosen(read_table(self.table), words(self.source), self.grade)
        found = validate_training(
            table.rows,
            folder=self.table.parent,
            lines=table.lines,
            efficiency=efficiency,
            evidence=own,
            progress=progress,
        )
        if not found.rows:
            reason = "it is empty"
            for first in found.left_out[:1]:
                reason = f"the first is {first.place}: {first.reason}"
            raise BadRequest(f"no row of '{self.table}' can be priced; {reason}")
        return found

    def _servers(self, efficiency: Efficiency, progress: Progress | None) -> ServingValidation:
        self._own()
        if self.grade:
            raise BadRequest("--grade cannot take effect with --serving; leave it out")
        runs = _chosen_servers(read_serving(self.table), words(self.source))
        return validate_serving(runs, efficiency=efficiency, progress=progress)


@dataclass(frozen=True, kw_only=True, repr=False)
class Validated(Answer):
    """Runs with their predicted and measured times."""

    limit: float | None = hidden()
    detail: bool = hidden()

    @abstractmethod
    def watched(self) -> tuple[Summary, str]:
        """The errors that --check limits, and of what they are."""

    def checked(self) -> None:
        """Raise ThresholdMissed where the median absolute error is beyond what was asked for; of
        servers that of TPOT."""
        summary, of = self.watched()
        median = summary.median_abs_error
        if self.limit is not None and median is not None and median > self.limit:
            raise ThresholdMissed(
                f"the median absolute error{of} is {median:.1%} over {summary.n} runs; "
                f"--check asks for at most {self.limit:.1%}"
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingValidated(TrainingRuns, Validated):
    """Training runs with their predicted and measured seconds per step."""

    found: Validation = hidden()

    def watched(self) -> tuple[Summary, str]:
        """The errors of steps."""
        return self.summary, ""

    def table(self) -> list[Row]:
        """One row per run; a range as two columns."""
        return _rows(self.rows)

    def page(self) -> Page:
        """Errors by source, chip and the like."""
        return _training_page(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class ServingValidated(ServingRuns, Validated):
    """Serving runs with their predicted and measured times."""

    found: ServingValidation = hidden()

    def watched(self) -> tuple[Summary, str]:
        """The errors of times per output token."""
        return self.summary, " of TPOT"

    def table(self) -> list[Row]:
        """One row per run; a range as two columns."""
        return _rows(self.rows)

    def page(self) -> Page:
        """Errors by source, chip and the like."""
        return _serving_page(self)


validate = verb("validate", ValidateRequest)


def _rows(runs: Sequence[ValidatedRun] | Sequence[ValidatedServing]) -> list[Row]:
    """Runs as rows; a range as two columns."""
    rows = []
    for run in runs:
        low, high = run.interval or ("", "")
        flat = {k: v for k, v in plain(run).items() if k not in _NO_COLUMNS}
        rows.append({**flat, "interval_low": low, "interval_high": high})
    return rows


def _limit(text: float | str) -> float:
    """A median error; 1 alone would pass everything and means 1 %."""
    limit = parse_share(text, "--check")
    if limit == 1 and not str(text).endswith("%"):
        raise BadRequest(f"--check '{text}' would allow errors of 100%; write 1% or 100%")
    return limit


def _chosen(table: RunTable, sources: Sequence[str], grade: str | None) -> RunTable:
    """The rows of the sources and the grade asked for. BadRequest where there are none."""
    held = dict.fromkeys(row.get("source", "") for row in table.rows)
    for source in sources:
        if source not in held:
            raise unknown("source", source, held, "a run without --source shows all")
    grades = dict.fromkeys(row.get("grade") or "" for row in table.rows)
    if grade is not None and grade not in grades:
        raise unknown("grade", grade, grades)
    kept = [
        (row, line)
        for row, line in zip(table.rows, table.lines, strict=True)
        if (not sources or row.get("source", "") in sources) and grade in (None, row.get("grade"))
    ]
    rows, lines = zip(*kept, strict=True) if kept else ((), ())
    return replace(table, rows=rows, lines=lines)


def _chosen_servers(runs: ServingTable, sources: Sequence[str]) -> ServingTable:
    """The runs of the sources asked for. BadRequest where there are none."""
    if not runs.runs:
        reason = next(iter(runs.first.values() or runs.left_out), "")
        said = f"the first is {reason}" if reason else "it is empty"
        raise BadRequest(f"no row of the table can be priced; {said}")
    held = dict.fromkeys(run.source for run in runs.runs)
    for source in sources:
        if source not in held:
            raise unknown("source", source, held, "a run without --source shows all")
    kept = tuple(r for r in runs.runs if not sources or r.source in sources)
    return replace(runs, runs=kept)


def _training_page(told: TrainingValidated) -> Page:
    found, detail, errors = told.found, told.detail, told.summary
    priced = f"runs priced with {_CONSTANTS[found.efficiency]}"
    yield f"{len(found.rows)} {priced}, {len(found.left_out)} left out"
    yield from _own_runs(found)
    yield ""
    few = len(found.rows) + len(found.left_out) <= _FEW
    if few:
        yield _each(found)
        yield from _peaks(found.rows, "peak memory of a chip")
        if not detail:
            yield from _left_out(found)
        yield ""
    yield summaries_table("error of", _headline(told), "rank of MFU")
    groups = {
        "source": errors.by_source,
        "chip": errors.by_chip,
        "bound by": errors.by_bound,
        "software": errors.by_stack,
        "runs that are": errors.gates,
    }
    for title, sums in groups.items():
        held = {name: one for name, one in sums.items() if one.n} if few else sums
        if not few or len({one.n for one in held.values()} - {len(found.rows)}):
            yield ""
            yield summaries_table(title, held, "rank of MFU")
    yield ""
    yield from _orders(told)
    yield ""
    yield from _checks(told)
    if detail:
        yield from _details(found)
    elif found.left_out and not few:
        yield f"\nleft out: {len(found.left_out)} rows (--detail names each)"


def _own_runs(found: Validation) -> Page:
    """How many were moved by runs of one's own, and by how much."""
    shifts = [row.shift for row in found.rows if row.shift is not None]
    if not shifts:
        return
    name, among = shifts[0].name, sum(row.among for row in found.rows)
    if among:
        yield wrapped(
            f"{name} also has {among} of these runs; each is predicted from the others there, "
            "without itself and its configuration, so that its error is that of a run not seen",
            hanging=2,
        )
    moved = [one.times for one in shifts if one.like]
    if not moved:
        yield wrapped(
            f"no{' other' * bool(among)} run of {name} is like one of these, so nothing "
            "changes; add runs of these chips and this software to it",
            hanging=2,
        )
        return
    widths = median((t.high - t.low) / (t.before.high - t.before.low) for t in shifts if t.like)
    yield wrapped(
        f"corrected by runs of {name}: {len(moved)} of these runs; in the median the prediction "
        f"is {sig(median(moved))} times as long and its range {sig(widths)} times as wide",
        hanging=2,
    )


def _each(found: Validation) -> TextTable:
    """Every run of a few, with the range in which 8 of 10 runs fell."""
    rows = [
        [
            r.run.id,
            format_seconds(r.predicted),
            " to ".join(map(format_seconds, r.interval or ())),
            format_seconds(r.measured),
            signed_text(r.error),
        ]
        for r in found.rows
    ]
    return TextTable(["run", "predicted", "8 of 10 runs", "measured", "error"], rows)


def _peaks(rows: Sequence[ScoredRun], title: str) -> Page:
    """Predicted and measured peak memory of those of some runs that tell it, as each counts it."""
    told = [
        [
            r.run.id,
            format_gib(r.reported_peak),
            format_gib(r.run.peak_mem_bytes),
            signed_text(r.peak_error),
            "reserved" if r.run.reserved else "allocated",
        ]
        for r in rows
        if r.reported_peak is not None and r.run.peak_mem_bytes is not None
    ]
    if told:
        yield ""
        yield TextTable([title, "predicted", "measured", "error", "counted as"], told)


def _headline(told: TrainingRuns) -> dict[str, Summary]:
    """The error of runs not seen first, the baseline beside it, the in-sample error last."""
    errors, seen = told.summary, told.summary.in_sample
    if not seen.n:
        return {"chip rates" if told.efficiency == "roofline" else "runs not seen": errors}
    own = "runs, each by a fit without its group" if seen.n == len(told.rows) else "runs not seen"
    return {
        own: errors,
        "one MFU per dtype, fitted likewise": errors.constant_mfu,
        "in-sample: runs used in the fit": seen,
    }


def _checks(told: TrainingRuns) -> Page:
    coverage, memory = told.coverage, told.memory
    rows = [["runs inside their 80 % range", share_text(coverage.all)]]
    rows += [[f"  {k} ({one.n})", share_text(one.inside)] for k, one in coverage.by_class.items()]
    if memory.n:
        what = f"peak memory, median |error| of {memory.n} runs that report it"
        rows.append([what, share_text(memory.median_abs_error)])
        rows.append(["  in the median", signed_text(memory.median_error)])
        rows.append(["  90th % of |error|", share_text(memory.p90_abs_error)])
    unfit = f"{len(told.would_not_fit)} of {len(told.rows)}"
    rows.append(["runs predicted not to fit usable HBM", unfit])
    yield TextTable(["check", ""], rows)


def _orders(told: TrainingRuns) -> Page:
    """How well plans of one model are ordered, and all plans of its source beside a plain guess."""
    rows = []
    for source, every in told.against_size.items():
        for one in (o for o in told.within_model if o.source == source):
            ours = rank_text(one.rank_correlation)
            rows.append([f"MFU of {one.model}, each of its dtype's peak", str(one.n), ours, ""])
        ranks = [rank_text(every.predicted), rank_text(every.one_over_parameters)]
        rows.append([f"tokens/s per chip of {source}", str(every.n), *ranks])
    if rows:
        yield TextTable(["order of plans by", "runs", "rank", "rank of 1/parameters"], rows)


def _details(found: Validation) -> Page:
    yield ""
    rows = [
        [
            r.run.id,
            format_seconds(r.predicted),
            format_seconds(r.measured),
            signed_text(r.error),
            r.bound_by,
        ]
        for r in sorted(found.rows, key=lambda r: -abs(r.log_ratio))[:_WORST]
    ]
    yield TextTable(["worst", "predicted", "measured", "error", "bound by"], rows)
    if len(found.rows) + len(found.left_out) > _FEW:  # else each is there already
        heavy = sorted(found.rows, key=lambda r: -abs(r.peak_error or 0.0))[:_WORST]
        yield from _peaks(heavy, "worst peak memory of a chip")
    yield from _left_out(found)


def _left_out(found: Validation) -> Page:
    yield from (f"left out: {row.place}: {row.reason}" for row in found.left_out)


def _serving_page(told: ServingValidated) -> Page:
    found, errors = told.found, told.summary
    constants = _CONSTANTS[found.efficiency]
    yield f"{len(found.rows)} runs of {found.table.rows} rows priced with {constants}"
    yield "\nTime per output token; throughput is concurrency / TPOT"
    yield from _held_out({fold: one.tpot for fold, one in found.left_out.items()}, errors)
    groups = {
        "source": errors.by_source,
        "chip": errors.by_chip,
        "model": errors.by_model,
        "engine": errors.by_engine,
    }
    for title, sums in groups.items():
        yield ""
        yield summaries_table(title, sums, "rank")
    if found.coverage is not None:
        yield f"\n{found.coverage:.0%} of them inside their 80 % range"
    if unknown := {r.run.chip for r in found.rows if not load_engine(r.engine).knows(r.run.chip)}:
        yield f"no published run on {', '.join(sorted(unknown))}: these ranges are wide"
    yield "\nTime to the first token"
    yield from _held_out({fold: one.ttft for fold, one in found.left_out.items()}, told.ttft)
    if found.first_coverage is not None:
        yield f"\n{found.first_coverage:.0%} of them inside their 80 % range"
    if told.detail:
        yield ""
        yield summaries_table("release", found.by(lambda r: r.run.engine), "rank")
        yield from _serving_details(found)
    elif found.table.left_out and found.table.rows <= _FEW:
        yield ""
        yield from _left_out_rows(found)
    elif found.table.left_out:
        number = sum(found.table.left_out.values())
        yield f"\nleft out: {number:,} rows (--detail says why)"


def _held_out(left_out: Mapping[str, Summary], all_runs: Summary) -> Page:
    """Errors with each kind of group left out of the fit, then those in sample."""
    if left_out:
        left = {f"a {fold} left out": one for fold, one in left_out.items()}
        yield summaries_table("fitted with", left, "rank")
        yield ""
    yield summaries_table("in-sample", {"all": all_runs}, "rank")


def _serving_details(found: ServingValidation) -> Page:
    rows = [
        [r.run.id, format_seconds(r.tpot), format_seconds(r.run.tpot), signed_text(r.error)]
        for r in worst(found.rows, _WORST)
    ]
    yield ""
    yield TextTable(["worst", "predicted", "measured", "error"], rows)
    yield from _left_out_rows(found)


def _left_out_rows(found: ServingValidation) -> Page:
    for reason, number in sorted(found.table.left_out.items(), key=lambda item: -item[1]):
        first = found.table.first.get(reason)
        yield f"left out: {number:,} rows: {reason}" + (f" (first: {first})" if first else "")


def summaries_table(title: str, summaries: Mapping[str, Summary], rank: str) -> TextTable:
    """One line per summary; `rank` says what is ranked."""
    rows = [
        [
            name,
            str(s.n),
            share_text(s.median_abs_error),
            share_text(s.p90_abs_error),
            signed_text(s.median_error),
            rank_text(s.rank_correlation),
        ]
        for name, s in summaries.items()
    ]
    return TextTable([title, "runs", "median |error|", "90th %", "median error", rank], rows)


def share_text(value: float | None) -> str:
    """5.1%, or nothing."""
    return "" if value is None else f"{value:.1%}"


def signed_text(value: float | None) -> str:
    """+5.1%, or nothing."""
    return "" if value is None else f"{value:+.1%}"


def rank_text(value: float | None) -> str:
    """A rank correlation, or nothing."""
    return "" if value is None else f"{value:.2f}"

"""A whole training run: its words, which a search and a plan in a file share, and how its days and
dollars print."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from shardwise.boundary import flag_of
from shardwise.boundary.options import Option
from shardwise.commands.base.answer import Page
from shardwise.commands.base.inputs import parse_share, parse_total
from shardwise.commands.base.layout import Fact, wrapped
from shardwise.commands.pricing.predict import compared_text
from shardwise.errors import BadRequest
from shardwise.hardware import Chip
from shardwise.hardware.prices import price_text
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.expected import ExpectedRange, expected_range
from shardwise.planner.price.goodput import Goodput, Overheads
from shardwise.results.run import AT_EXPECTED, DaysBetween, RunLength, WholeRun
from shardwise.units import (
    format_count,
    format_seconds,
    format_seconds_between,
    format_usd,
    many,
    parse_seconds,
    sig,
)

Word = float | str | None

RUN_TOKENS = Option(
    about="Length of the run, such as 15T: adds days and dollars.", group="What is planned"
)


def _run(about: str) -> Option:
    return Option(about=about, group="A whole run")


MFU = _run("Take this share of peak in place of the expected time (with --tokens).")
PARAMS = _run("With --mfu: take this parameter count, such as 70e9.")
STRAGGLER = _run("Step time of the slowest chip over the typical one, such as 1.05.")
CHIP_MTBF = _run("Time between failures of one chip with its host, such as 10y.")
CHECKPOINT_TIME = _run("Time that training stops for a checkpoint, such as 30s.")
CHECKPOINT_INTERVAL = _run("Time between checkpoints. Default: the best one.")
RESTART_TIME = _run("Time from a failure to the first new step, such as 10min.")
"""What each word of a run is on the command line."""


class RunAsked(Protocol):
    """A request with the words of a run."""

    @property
    def tokens(self) -> Word: ...
    @property
    def mfu(self) -> Word: ...
    @property
    def params(self) -> Word: ...
    @property
    def straggler(self) -> Word: ...


def run_words(asked: RunAsked) -> RunLength | None:
    """The run that was asked for, None without tokens. Raises BadRequest for words without
    effect."""
    if asked.params and not asked.mfu:
        raise BadRequest("--params changes only the arithmetic of --mfu; give --mfu too")
    for name in ("mfu", "straggler", *_LOSSES):
        if getattr(asked, name) and not asked.tokens:
            raise BadRequest(
                f"{flag_of(asked, name)} changes only the days of a run; give --tokens too"
            )
    if not asked.tokens:
        return None
    return RunLength(
        tokens=parse_total(asked.tokens, "--tokens"),
        mfu=parse_share(asked.mfu, "--mfu") if asked.mfu else None,
        params=parse_total(asked.params, "--params") if asked.params else None,
        overheads=_overheads(asked),
    )


def _overheads(asked: RunAsked) -> Overheads:
    given = {
        name: parse_seconds(getattr(asked, option), flag_of(asked, option))
        for option, name in _LOSSES.items()
        if getattr(asked, option)
    }
    if asked.straggler:
        given |= {"straggler": parse_total(asked.straggler, "--straggler")}
    return Overheads(**given)


_LOSSES = {
    "chip_mtbf": "chip_mtbf",
    "checkpoint_time": "checkpoint",
    "checkpoint_interval": "interval",
    "restart_time": "restart",
}
"""Keyword -> field of Overheads."""
RUN_WORDS = ("tokens", "mfu", "params", "straggler", *_LOSSES)
"""Keywords of a run, which is no part of its plan."""

# The page ---------------------------------------------------------------------------------------

MEASURE = "a few runs of yours narrow it (--evidence RUNS.csv)"
"""What a reader can do about a wide range."""
Between = DaysBetween | None
"""The days of 8 of 10 runs, where a range is known."""


def run_facts(run: WholeRun) -> list[Fact]:
    """Days and dollars of a whole run in one labelled line, and where asked for what it loses."""
    cost = "cost unknown: no price in the catalogue (give --price CHIP=USD)"
    if run.usd is not None:
        cost = f"{format_usd(run.usd)}{_idle_text(run)} at {run.price}"
    given = "" if run.basis.startswith(AT_EXPECTED) else f" at {run.basis}"
    said = f"{days_text(run.days, run.days_80, run.deadline_days, ' days')}{given}"
    text = f"{said}, {format_count(run.chip_hours)} chip-hours, {cost}"
    facts = [Fact(f"{format_count(run.tokens)} tokens", text)]
    if run.goodput:
        facts.append(Fact("trains", _trains_text(run.goodput)))
    return facts


def days_text(days: float, between: Between, deadline: float | None = None, unit: str = "") -> str:
    """Days with the range of 8 of 10 runs, and whether both ends keep a deadline.

    >>> days_text(27, DaysBetween(low=24.1, high=32.4), 30, " days")
    '27 days (24.1 to 32.4: may be late)'
    >>> days_text(31, None, 30), days_text(31, None)
    ('31 (late)', '31')
    """
    late = ""
    if deadline is not None and days > deadline:
        late = "late"
    elif slow_end(between, deadline):
        late = "may be late"
    ends = f"{sig(between.low)} to {sig(between.high)}" if between else ""
    told = ": ".join(part for part in (ends, late) if part)
    return f"{sig(days)}{unit} ({told})" if told else f"{sig(days)}{unit}"


def slow_end(between: Between, deadline: float | None) -> str:
    """A line where the slow end of a range of days misses the deadline."""
    if between is None or deadline is None or between.high <= deadline:
        return ""
    return (
        f"8 of 10 runs take {sig(between.low)} to {sig(between.high)} days: the slow "
        f"end misses --days {sig(deadline)}"
    )


def wide_ranges(answers: Iterable[TrainAnswer | None]) -> list[str]:
    """Reasons for wide ranges, each with its slices."""
    slices: dict[str, list[str]] = {}
    for answer in answers:
        found = expected_range(answer) if answer else None
        known = found and found.evidence and found.evidence.like
        if answer and found and found.why and not known:
            slices.setdefault("; ".join(found.why), []).append(str(answer.piece))
    lines = slices.items()
    return [f"range of {', '.join(dict.fromkeys(of))}: {why}; {MEASURE}" for why, of in lines]


def own_runs(answers: Iterable[TrainAnswer | None]) -> list[str]:
    """What runs of one's own did to the answers, with the slices that it is of."""
    slices: dict[str, list[str]] = {}
    for answer in answers:
        found = expected_range(answer) if answer else None
        if answer and found and found.evidence:
            slices.setdefault(own_text(found, spread=False), []).append(str(answer.piece))
    return [f"{', '.join(dict.fromkeys(of))}: {said}" for said, of in slices.items()]


def own_text(found: ExpectedRange, *, spread: bool = True) -> str:
    """What runs of one's own say of a step: by how much it moves, and with `spread` in seconds how
    its range narrows; or that they are about something else."""
    own = found.evidence
    assert own is not None, "only of runs of one's own"
    of = f"{many(own.rows, 'run')} of {own.table}"
    if not own.like:
        return f"none of the {of} is like this plan, so they change nothing"
    if own.like < own.rows:
        of = f"{own.like} of the {of} (the others differ from this plan)"
    moved = compared_text(own.times, "published runs suggest")
    widths = [one.high / one.low for one in (own, found)]
    ends = [f"{sig(times)}x" for times in widths]
    if spread:
        ends = [f"({format_seconds_between(one.low, one.high)})" for one in (own, found)]
    verb = "narrowed" if widths[1] < widths[0] else "widened"
    told = "" if spread else " (slow end over fast)"
    changed = "as wide" if ends[0] == ends[1] else f"{verb} from {ends[0]} to {ends[1]}"
    return f"from {of}: {moved}; range{told} {changed}"


def price_facts(chips: Iterable[Chip]) -> list[Fact]:
    """The price that an answer takes for each chip, and its range over providers."""
    found = {chip.id: chip.price for chip in chips}
    return [Fact(f"{name} price", price_text(name, price)) for name, price in found.items()]


def run_detail(run: WholeRun) -> Page:
    """What the run's days and dollars are made of."""
    yield ""
    source = f"; price: {run.price_source}" if run.usd is not None else ""
    yield wrapped(f"the run of {format_count(run.tokens)} tokens: at {run.basis}{source}", 0, 2)
    if run.goodput:
        yield wrapped(_lost_text(run.goodput), 2, 4)


def _idle_text(run: WholeRun) -> str:
    return f" ({format_usd(run.usd_idle)} of it for idle chips)" if run.usd_idle else ""


def _lost_text(good: Goodput) -> str:
    """Where the time that does not train goes, and what a straggler costs of the rest."""
    held = 1 - good.straggler
    parts = f"checkpoint {good.checkpoint / held:.1%}, failures {good.failures / held:.1%}"
    left = f"; with the longer steps {good.share:.1%} of the speed remains"
    return f"trains {_trains_text(good)}; lost to {parts}{left if good.straggler else ''}"


def _trains_text(good: Goodput) -> str:
    """The share of the time that trains, the interval between checkpoints that gives it, and by how
    much the slowest chip makes steps longer."""
    every = f", a checkpoint every {format_seconds(good.interval)}" if good.checkpoint else ""
    longer = good.trains / good.share
    slow = f"; steps take {longer:.4g} times as long (--straggler)" if good.straggler else ""
    return f"{good.trains:.1%} of the time{every}{slow}"


def idle_unpaid(best: TrainAnswer, run: WholeRun | None, objective: str) -> Sequence[str]:
    """A line where the cheapest plan leaves chips idle, which the objective counts as unpaid."""
    if objective != "cost" or not best.chips_idle:
        return []
    paid = ""
    if run is not None and run.usd is not None and run.usd_idle is not None:
        paid = f", {format_usd(run.usd - run.usd_idle)} of the run's {format_usd(run.usd)}"
    used = f"--objective cost counts only chips in use{paid}"
    remedy = f"plan on {best.chips_used:,}, or leave --objective out if you pay for all"
    return [f"{best.chips_idle:,} of {best.piece.chips:,} chips stay idle: {used}; {remedy}"]


def late_run(run: WholeRun | None) -> Sequence[str]:
    """A line where a run misses its deadline, or its slow end does."""
    if run is None or run.deadline_days is None:
        return []
    if run.keeps_deadline:
        slow = slow_end(run.days_80, run.deadline_days)
        return [f"{slow}; {_with_room(run)}"] if slow else []
    late = f"late: {sig(run.days)} days, and --days allows {sig(run.deadline_days)}"
    return [f"{late}; give more chips, or a bare chip (--on v5p) to find how many it takes"]


def _with_room(run: WholeRun) -> str:
    """What to ask for so that the slow end of such a range is in time, too."""
    assert run.deadline_days is not None
    assert run.days_80 is not None
    days = run.deadline_days * run.days / run.days_80.high
    return f"--days {days:.3g} on a bare chip leaves room for that"

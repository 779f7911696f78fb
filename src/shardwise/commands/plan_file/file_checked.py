"""A checked launch file: the fields of the answer, and its page, the verdict first and then each
change as a diff."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.boundary.records import hidden, part
from shardwise.commands.base.answer import Answer, Page, Row
from shardwise.commands.base.layout import (
    Fact,
    Facts,
    Verbatim,
    memory_fact,
    memory_of,
    percent,
    shares_text,
    wrapped,
)
from shardwise.commands.plan_file.changes import FileChange, unwritten
from shardwise.commands.plan_file.failure import FailedStep, failure_facts
from shardwise.commands.pricing.train_page import plan_text
from shardwise.planner.evaluate import TrainAnswer
from shardwise.planner.export.trainer import TARGETS as TRAINERS
from shardwise.planner.export.trainer.dialects import dialects
from shardwise.plans.software import SOFTWARE
from shardwise.results.train import PricedPlan
from shardwise.units import format_count, format_seconds, format_seconds_between, gib

_SHOWN = 4
"""Keys that a page shows of those that were not understood."""


@dataclass(frozen=True, kw_only=True, repr=False)
class FileChecked(Answer, PricedPlan):
    """A launch file's plan with its estimate, and what to change in the file."""

    file: str
    """The file that was read."""
    program: str
    """The program that it is for."""
    model: str
    """The model that is trained, as a plan calls it."""
    tokens_per_step: int
    """Tokens in a step."""
    sequence_length: int
    """Tokens of a sequence."""
    global_batch_sequences: int
    """Sequences of a step."""
    fits: bool
    """Whether the predicted peak is at most the usable memory, and no error says otherwise."""
    margin: float
    """The share of usable memory that should stay free: predictions were short by at most that in
    19 of 20 published runs."""
    not_understood: Sequence[str]
    """A line for each key of the file that was not read."""
    without_effect: Sequence[str]
    """A line of the keys that were read and change neither time nor memory."""
    changes: Sequence[FileChange]
    """What to change in the file, the best first."""
    failed: FailedStep | None = part()
    """The out-of-memory error that was given (--error)."""
    output: str | None = None
    """The file that was written (-o); null where there is none."""

    priced_answer: Any = hidden(None)
    text: str = hidden("")

    @property
    def best(self) -> TrainAnswer:
        """The plan of the file, priced."""
        return self.priced_answer

    def table(self) -> list[Row]:
        """The file as it is, and with each of the changes."""
        rows = [("", self.step_seconds, self.peak_bytes_per_chip, self.fits)]
        rows += [(c.says, c.step_seconds, c.peak_bytes_per_chip, c.fits) for c in self.changes]
        return [
            {
                "change": says,
                "step_seconds": step.expected,
                "peak_bytes_per_chip": peak,
                "fits": fits,
            }
            for says, step, peak, fits in rows
        ]

    def sections(self) -> Mapping[str, Page]:
        """The diffs with the lines around them, and the keys without effect."""
        return {"detail": detail_page(self)}

    def page(self) -> Page:
        """The verdict and the changes; or the changed file."""
        if self.text:
            yield Verbatim(self.text.removesuffix("\n"))
            return
        yield from verdict_page(self)
        yield from changes_page(self)


def verdict_page(checked: FileChecked) -> Page:
    """What was read, whether it fits, how long a step takes, what bounds it, what was not read."""
    answer = checked.best
    rows = {**SOFTWARE, **dialects()}
    title = rows[checked.program].title if checked.program in rows else checked.program
    name, _, built = answer.cfg.name.partition("(")
    shape = f" of {answer.cfg.layers} layers, D={answer.cfg.d_model:,}," if built else ""
    yield wrapped(
        f"{checked.file}: {title} trains {name}{shape} on {checked.slice} "
        f"({answer.piece.chips_text}), {checked.global_batch_sequences:,} sequences of "
        f"{checked.sequence_length:,} tokens a step",
        hanging=2,
    )
    yield wrapped(plan_text(answer.plan, checked), 2, 4)
    failed = failure_facts(checked.failed) if checked.failed else []
    yield Facts([_fits(checked), *failed, _step(checked), _bound(checked), *_unread(checked)])


def _fits(checked: FileChecked) -> Fact:
    need, usable = checked.peak_bytes_per_chip, checked.usable_bytes_per_chip
    fact = memory_fact(need, usable)
    left, kept = usable - need, checked.margin * usable
    if checked.failed and left >= 0:
        said = f"{memory_of(need, usable)} a chip"
        return Fact("fits", f"no: it failed; {said} were predicted", "bad")
    if left < 0:
        most = max(checked.memory_by_kind.items(), key=lambda item: item[1])
        over = f"{gib(-left)} too much; the largest part is {most[0]}"
        return Fact("fits", f"no: {fact.text}, {over} ({gib(most[1])})", "bad")
    share = f"{percent(checked.margin)} ({gib(kept)})"
    if left < kept:
        why = f"less than the {share} by which predictions may be short"
        return Fact(
            "fits",
            f"barely: {memory_of(need, usable)} a chip; {gib(left)} stay free, {why}",
            "tight",
        )
    return Fact(
        "fits",
        f"yes: {memory_of(need, usable)} a chip; {gib(left)} stay free, "
        f"more than the {share} by which predictions may be short",
        "good",
    )


def _step(checked: FileChecked) -> Fact:
    found, expected = checked.expected_80, format_seconds(checked.step_seconds.expected)
    between = f" (8 of 10 runs: {format_seconds_between(found.low, found.high)})" if found else ""
    rate = format_count(checked.tokens_per_second)
    mfu = f"MFU {100 * checked.mfu:.1f} % of the {checked.mfu_dtype} peak"
    return Fact("step", f"{expected}{between}; {rate} tokens/s, {mfu}")


def _bound(checked: FileChecked) -> Fact:
    return Fact("bound by", f"{checked.bound_by}: {shares_text(checked.where_it_goes, 0.05)}")


def _unread(checked: FileChecked) -> list[Fact]:
    lines = list(checked.not_understood)
    more = len(lines) - _SHOWN
    said = "; ".join(lines[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return [Fact("unclear", said, "tight")] if lines else []


def changes_page(checked: FileChecked) -> Page:
    """Each change: what it does, what it gives, what it may cost, and where it stands."""
    if not checked.changes:
        yield ""
        yield wrapped(_no_change(checked), 2)
    elif checked.fits and all(change.gain < 0.01 for change in checked.changes):
        yield ""
        yield wrapped(
            "no change of one or two choices makes a step 1 % shorter; these free memory", 2
        )
    for number, change in enumerate(checked.changes, 1):
        yield ""
        yield wrapped(f"{number}. {change.says}: {gain_text(checked, change)}", 0, 3)
        yield wrapped(f"risk: {'; '.join(change.risks)}", 3, 5)
        yield _shown_diff(change.short_diff)


def _no_change(checked: FileChecked) -> str:
    target = TRAINERS[0] if checked.program in dialects() else checked.program
    if why := unwritten(target, checked.best):
        return f"no change can be written for {checked.program}: {why}"
    fits = "makes a step shorter or frees memory" if checked.fits else "makes it fit"
    return (
        f"no change of one or two choices that {checked.program} runs {fits}, or none could be "
        "written into this file"
    )


def detail_page(checked: FileChecked) -> Page:
    """The diffs whole, and the keys without effect."""
    for change in checked.changes:
        yield change.diff
    for line in checked.without_effect:
        yield wrapped(line, 0, 2)


def _shown_diff(diff: str) -> str:
    lines = diff.splitlines()
    many = sum(line.startswith("--- a/") for line in lines) > 1
    shown = lines if many else lines[2:]
    return "\n".join(f"   {line}" for line in shown)


def gain_text(checked: FileChecked, change: FileChange) -> str:
    """What a change gives."""
    longer = "shorter" if change.gain_seconds > 0 else "longer"
    by = f" ({percent(abs(change.gain))} {longer})" if abs(change.gain) >= 0.001 else ", as before"
    step = f"{format_seconds(change.step_seconds.expected)} a step{by}"
    saved = change.saved_bytes_per_chip
    less = f"{gib(abs(saved))} {'less' if saved > 0 else 'more'}"
    memory = f"{gib(change.peak_bytes_per_chip)} a chip"
    memory += f" ({less})" if abs(saved) >= 0.05 * 2**30 else ""
    return f"{'fits: ' if not checked.fits and change.fits else ''}{step}, {memory}"

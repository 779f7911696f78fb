"""What a few runs of one's own tell: the spread behind `--evidence`, and the section of
docs/lab/fit.md that says how well it holds. Made of the left-out predictions that the fit has
written before."""

import re
from collections.abc import Sequence
from pathlib import Path

from fit.outputs import PAGE
from fit.spread import (
    BIASED,
    DRAWS,
    ROWS,
    RUNS,
    Groups,
    GroupScore,
    by_group,
    coverage,
    fewer,
    score_groups,
    write_spread,
)
from shardwise.evidence.training.table import read_table
from shardwise.evidence.training.validate import validate
from shardwise.roofline.evidence import APART, DATA, Spread

TITLE = "## What a few runs of one's own tell\n"


def write_few_runs(table: Path, date: str) -> None:
    """Find the spread, score every group by one without it, and write both."""
    rows = validate(read_table(table).rows, folder=table.parent).rows
    spread = Groups(by_group(rows)).spread()
    of = f"scripts/fit_efficiency.py on {date}: {len(rows)} published runs, docs/lab/fit.md"
    write_spread(DATA, spread, of)
    text = section(score_groups(rows, nested=True), spread)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(placed(page, text), encoding="utf-8")
    print(text)


def placed(page: str, text: str) -> str:
    """The page with the section in its place, before what terms and constants are worth."""
    rest = re.sub(rf"{re.escape(TITLE)}.*?(?=^## )", "", page, flags=re.S | re.M)
    before, worth, after = rest.partition("## What each term and constant is worth\n")
    return f"{before}{text}\n{worth}{after}"


def section(scores: Sequence[GroupScore], spread: Spread) -> str:
    """The scores and the spread, as a section."""
    off, others = ([s for s in scores if s.biased is biased] for biased in (True, False))
    third = sum(s.after <= 2 / 3 * s.before for s in off)
    worst = max(others, key=lambda s: s.after - s.before)
    about = (
        f"`--evidence RUNS.csv` moves a prediction by the user's own runs. Of every group with "
        f"{ROWS} runs {RUNS} are drawn, {DRAWS} times, as evidence, and the others predicted: by "
        "constants and ranges without the group, and by a spread (`roofline/evidence.py`) that is "
        f"found without it. Of the {len(off)} groups whose median error was {BIASED:.0%} or more, "
        f"early or late, {third} come out a third lower or better, {1 - fewer(off):.0%} lower in "
        f"the geometric mean; of the other {len(others)} the error is {1 - fewer(others):.0%} "
        f"lower in the mean, and worst by {100 * (worst.after - worst.before):.1f} points "
        f"({worst.group}). {coverage(scores):.0%} of the runs so predicted are in their ranges.\n"
    )
    carried = ", ".join(f"{name} {part:.2f}" for name, part in spread.carried.items())
    found = (
        f"In units of their ranges the levels of {spread.groups} groups deviate by "
        f"{spread.between:.2f} and {spread.runs} configurations by {spread.within:.2f} from "
        f"theirs. Of a level a run shares nothing with one on chips of another {APART}, and "
        f"otherwise the product over the features that differ of: {carried}.\n"
    )
    header = "| runs | n | signed | median | with three | points | in range | with three | width |"
    rows = map(_row, sorted(scores, key=lambda s: s.group))
    return "\n".join(
        [TITLE, about, header, "|---|---|---|---|---|---|---|---|---|", *rows, "", found]
    )


def _row(s: GroupScore) -> str:
    points = 100 * (s.after - s.before)
    return (
        f"| {s.group} | {s.n} | {s.bias:+.1%} | {s.before:.1%} | {s.after:.1%} | {points:+.1f} "
        f"| {s.inside_before:.0%} | {s.inside:.0%} | {s.narrowed:.2f} |"
    )

"""docs/fit.md: how well the model predicts runs that nobody fitted, and what that rests on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fit.baseline import mfus_text
from fit.cases import Case
from fit.constants import GENERATIONS
from fit.explain import Explained
from fit.folds import Fold
from fit.hierarchy import Levels
from fit.ranges import BOUNDS, Range, by_class
from fit.worth import Worth
from shardwise.evidence.training.residuals import MIN_ROWS, RangeRule
from shardwise.roofline import stack_names
from shardwise.roofline.stacks import CONSTANTS

INTRODUCTION = """# The fit of the pricing constants

Made by `scripts/fit_efficiency.py` on {date} from {n} published training runs of {groups} groups
(publisher and software); do not edit by hand.

Each run's own plan is counted once. The constants below, and nothing else, turn counts into the
expected time; they belong to a chip generation or to a software stack, never to a pair of them, a
source, a model or a run. `matmul`, `hbm`, `network` and `outer_network` of a chip are measured by
benchmarks of kernels and links and are not fitted (docs/rates.md).

Every error here but the one called in-sample is of runs left out with their whole group: the
sigmas of the hierarchy, the constants and the ranges are found without it. Beside it stands one
constant MFU per compute dtype, fitted and left out in the same way; over all groups it is
{mfu}.
"""

CONSTANTS_TEXT = """A constant is its prior, plus what all owners are off by (common), plus what a
vendor's generations are (vendor), plus what it is itself (own), in units of a fixed scale. A group
of runs has an effect of its own on log seconds, so that many rows of one publisher are not as many
looks at a machine. The sigmas of the four are the same for all constants; the left-out error of
the other groups among themselves chooses them in each fold. Over all groups: {levels}.

"Expected" is the prior with what common and vendor say; "told" is the information of the runs over
that of what the constant is drawn from: below 1 the expectation speaks louder. "Runs" counts those
whose time moves at least 1 % with a tenth of the constant, by group, largest information first.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All that the page shows; logs are of predicted over measured seconds, per run."""

    date: str
    cases: Sequence[Case]
    fitted: np.ndarray
    left: np.ndarray
    baseline: np.ndarray
    roofline: np.ndarray
    mfu: Mapping[str, float]
    levels: Levels
    folds: Sequence[Fold]
    found: Mapping[str, Explained]
    rule: RangeRule
    ranges: Sequence[Range]
    worths: Sequence[Worth]
    single: Mapping[str, Worth]


Chosen = Callable[[Case], bool]
ERRORS = "| runs | n | groups | median | 90th | signed | in range | constant MFU | times as good |"


def report(r: Results) -> str:
    """The whole page."""
    groups = len({c.run.group for c in r.cases})
    parts = [
        INTRODUCTION.format(date=r.date, n=len(r.cases), groups=groups, mfu=mfus_text(r.mfu)),
        "## How well it predicts runs that it has not seen\n",
        _headline(r),
        "## By group\n",
        _errors(r, {g: lambda c, g=g: c.run.group == g for g in _names(r, lambda c: c.run.group)}),
        "## By software and chip\n\nWhere one group alone has runs, nobody else tells of them.\n",
        _errors(r, _owners(r)),
        "## By kind of run\n",
        _errors(r, KINDS),
        "## 80 % ranges\n",
        _ranges(r),
        "## What each term and constant is worth\n",
        _worth(r),
        "## Constants\n",
        CONSTANTS_TEXT.format(levels=_levels(r.levels)),
        "### Of chip generations\n",
        _constants(r, GENERATIONS),
        "### Of software stacks\n",
        "\n".join(f"- `{name}`: {about}." for name, about in CONSTANTS.items()) + "\n",
        _constants(r, stack_names()),
        "### Sigmas of each fold\n",
        _folds(r),
        "## Rows that it misses by a quarter or more, left out\n",
        _worst(r),
    ]
    return "\n".join(parts).replace("\n\n\n", "\n\n")


KINDS: Mapping[str, Chosen] = {
    "grade A": lambda c: c.run.grade == "A",
    "grade B": lambda c: c.run.grade == "B",
    "mixtures of experts": lambda c: c.run.moe,
    "dense": lambda c: not c.run.moe,
    "pipelined": lambda c: c.run.plan.degree("stage") > 1,
    "one stage": lambda c: c.run.plan.degree("stage") == 1,
}


def _names(r: Results, key: Callable[[Case], str]) -> list[str]:
    return sorted({key(c) for c in r.cases})


def _owners(r: Results) -> dict[str, Chosen]:
    chosen: dict[str, Chosen] = {}
    for name in _names(r, lambda c: c.run.stack):
        chosen[name] = lambda c, name=name: c.run.stack == name
    for name in _names(r, lambda c: c.owners[0]):
        chosen[name] = lambda c, name=name: c.owners[0] == name
    for name in _names(r, lambda c: c.pair):
        chosen[name] = lambda c, name=name: c.pair == name
    return chosen


def _headline(r: Results) -> str:
    rows = {
        "**left out with their group**": r.left,
        "a constant MFU per dtype, left out likewise": r.baseline,
        "rooflines alone, nothing fitted": r.roofline,
        "in-sample: of the runs that were fitted on": r.fitted,
    }
    lines = ["| error | n | median | 90th percentile | signed median |", "|---|---|---|---|---|"]
    for name, logs in rows.items():
        lines.append(f"| {name} | {len(logs)} | {' | '.join(_figures(logs))} |")
    return "\n".join(lines) + "\n"


def _figures(logs: np.ndarray) -> tuple[str, str, str]:
    errors = np.expm1(logs)
    sizes = np.abs(errors)
    return f"{np.median(sizes):.1%}", f"{np.quantile(sizes, 0.9):.1%}", f"{np.median(errors):+.1%}"


def _errors(r: Results, kinds: Mapping[str, Chosen]) -> str:
    lines = [ERRORS, "|---" * ERRORS.count(" |") + "|"]
    for name, among in kinds.items():
        at = [i for i, c in enumerate(r.cases) if among(c)]
        if at:
            lines.append(_error_row(r, name, at))
    return "\n".join(lines) + "\n"


def _error_row(r: Results, name: str, at: Sequence[int]) -> str:
    groups = len({r.cases[i].run.group for i in at})
    ours = _median(r.left[at])
    theirs = _median(r.baseline[at])
    cells = [
        name,
        str(len(at)),
        str(groups),
        *_figures(r.left[at]),
        f"{_inside([r.ranges[i] for i in at]):.0%}",
        f"{theirs:.1%}",
        f"{theirs / max(ours, 1e-9):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _median(logs: np.ndarray) -> float:
    return float(np.median(np.abs(np.expm1(logs))))


def _inside(ranges: Iterable[Range]) -> float:
    return float(np.mean([one.inside for one in ranges]))


def _ranges(r: Results) -> str:
    counted = "group" if r.rule.even_groups else "run"
    signs = "either sign" if r.rule.both_signs else "its own sign"
    rule = (
        f"A run's range is from the residuals of other groups. A class has {MIN_ROWS} runs or more "
        f"of {r.rule.least_groups} groups or more; in it each {counted} counts the same, and a "
        f"residual with {signs}. The aim: {_shares(BOUNDS[0])} of all runs inside, "
        f"{_shares(BOUNDS[1])} of every class.\n"
    )
    lines = [
        rule,
        "| class | runs whose range it is | inside | from runs | of groups | range |",
        "|---|---|---|---|---|---|",
    ]
    for name, some in by_class(r.ranges).items():
        sizes = sorted({x.residual.n for x in some})
        groups = sorted({x.residual.groups for x in some})
        low = float(np.median([x.residual.q10 for x in some]))
        high = float(np.median([x.residual.q90 for x in some]))
        lines.append(
            f"| {name} | {len(some)} | {_inside(some):.0%} | {_span(sizes)} | {_span(groups)} | "
            f"{np.expm1(low):+.0%} to {np.expm1(high):+.0%} |"
        )
    lines.append(f"| all together | {len(r.ranges)} | {_inside(r.ranges):.0%} | | | |")
    return "\n".join(lines) + "\n"


def _shares(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.0%} to {bounds[1]:.0%}"


def _span(sizes: Sequence[int]) -> str:
    return str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"


def _worth(r: Results) -> str:
    if not r.worths:
        return "Not run.\n"
    whole = r.worths[0]
    lines = [
        "Left-out errors to first order around the fit, with the sigmas of all groups. A constant",
        "is held at its prior, or at the value at which it changes nothing; a term of plans is",
        "switched off; the rest is fitted anew. The score is the mean log error up to 0.5, a group",
        "counting as the root of its runs; where it falls, what is left out is worth nothing.\n",
        "| without | median | 90th percentile | score | worse by | runs touched |",
        "|---|---|---|---|---|---|",
    ]
    for w in r.worths:
        touched = "" if w.touched is None else str(w.touched)
        lines.append(
            f"| {'nothing' if w is whole else w.name} | {w.median:.1%} | {w.p90:.1%} | "
            f"{w.score:.4f} | {w.score - whole.score:+.4f} | {touched} |"
        )
    return "\n".join(lines) + "\n"


def _levels(levels: Levels) -> str:
    return (
        f"common {levels.common:g}, vendor {levels.vendor:g}, own {levels.own:g} scales, group "
        f"{levels.group:g} in log"
    )


def _constants(r: Results, owners: Sequence[str] | Mapping) -> str:
    lines = [
        "| constant | value | prior | expected | told | left out, without it | runs | rests on |",
        "|---|---|---|---|---|---|---|---|",
    ]
    whole = r.worths[0].score if r.worths else 0.0
    for owner in owners:
        for name, e in r.found.items():
            if not name.startswith(f"{owner}."):
                continue
            ranked = sorted(e.by_group, key=lambda g: -e.by_group[g])
            runs = ", ".join(f"{g} {e.runs[g]}" for g in ranked if g in e.runs)
            worth = f"{r.single[name].score - whole:+.4f}" if name in r.single else ""
            lines.append(
                f"| {name} | {e.value:.3g} | {e.prior.value:.3g} | {e.expected:.3g} | "
                f"{e.information:.1f} | {worth} | {runs or 'none'} | {e.single} |"
            )
    return "\n".join(lines) + "\n"


def _folds(r: Results) -> str:
    lines = ["| left out | common | vendor | own | group |", "|---|---|---|---|---|"]
    for fold in r.folds:
        s = fold.levels
        lines.append(f"| {fold.group} | {s.common:g} | {s.vendor:g} | {s.own:g} | {s.group:g} |")
    return "\n".join(lines) + "\n"


def _worst(r: Results) -> str:
    errors = np.expm1(r.left)
    order = [i for i in np.argsort(-np.abs(errors), kind="stable") if abs(errors[i]) >= 0.25]
    lines = [
        "| run | grade | chip | software | left out | in-sample |",
        "|---|---|---|---|---|---|",
    ]
    for i in order:
        run = r.cases[i].run
        lines.append(
            f"| {run.id} | {run.grade} | {run.chip} | {run.stack} | {errors[i]:+.0%} | "
            f"{np.expm1(r.fitted[i]):+.0%} |"
        )
    return "\n".join(lines) + "\n"

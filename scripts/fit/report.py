"""docs/lab/fit.md: how well the model predicts runs that nobody fitted, and what that rests on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fit.baseline import mfus_text
from fit.cases import Case
from fit.constants import GENERATIONS
from fit.explain import Explained
from fit.folds import Fold
from fit.hierarchy import Levels
from fit.kin import shares
from fit.ranges import BOUNDS, Held, in_hindsight, share_inside
from fit.regressions import Regression
from fit.residuals import weighted_quantile
from shardwise.evidence.training.validate import CLASS_GROUPS, CLASS_RUNS
from shardwise.planner.features import FEATURES
from shardwise.roofline import stack_names
from shardwise.roofline.residuals import RangeTable
from shardwise.roofline.stacks import BEGIN_SECONDS, CONSTANTS, OP_SECONDS

INTRODUCTION = """# The fit of the pricing constants

Made by `scripts/fit_efficiency.py` on {date}; do not edit by hand. Constants are fitted on {fitted}
published training runs of {own} groups (publisher and software); errors and ranges are of {n} runs
of {groups} groups, the further ones being judges alone.

Each run's own plan is counted once. The constants below, and nothing else, turn counts into the
expected time; they belong to a chip generation or to a software stack, never to a pair of them, a
source, a model or a run. `matmul`, `hbm`, `network` and `outer_network` of a chip are measured by
benchmarks of kernels and links and are not fitted (docs/lab/rates.md).

Every error here but the one called in-sample is of runs left out with their whole group, routed
ones with all routed runs of their publisher: the sigmas of the hierarchy, the constants and the
ranges are found without them. Rows of one configuration (model, chip, devices, dtype, batch and
length) share weight 1 in the fit; in the tables every row counts. Beside it stands one
constant MFU per compute dtype, fitted and left out in the same way; over all groups it is
{mfu}.
"""

HOST_TEXT = f"""Not fitted is what PyTorch's host works, whose sources `roofline/stacks.py` names:
{OP_SECONDS[False] * 1e6:.0f} us for a counted op, {OP_SECONDS[True] * 1e6:.0f} with a compiler,
of which a step feels what exceeds the device's work; and {BEGIN_SECONDS * 1e3:.0f} ms of every step
that the device waits for it, but where a graph is the whole step.
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
    table: RangeTable
    ranges: Sequence[Held]
    common: Sequence[Held]
    unseen: Mapping[tuple[str, str], Sequence[Held]]
    regressions: Sequence[Regression]
    worths: str


Chosen = Callable[[Case], bool]
ERRORS = "| runs | n | groups | median | 90th | signed | in range | constant MFU | times as good |"


def report(r: Results) -> str:
    """The whole page."""
    fitted = [c for c in r.cases if c.run.fitted]
    counts = {"fitted": len(fitted), "own": _groups(fitted), "groups": _groups(r.cases)}
    parts = [
        INTRODUCTION.format(date=r.date, n=len(r.cases), mfu=mfus_text(r.mfu), **counts),
        "## How well it predicts runs that it has not seen\n",
        _headline(r),
        "## By group\n",
        _errors(r, {g: lambda c, g=g: c.run.group == g for g in _names(r, lambda c: c.run.group)}),
        "## By software and chip\n\nNo other publisher confirms a row of a single group.\n",
        _errors(r, _owners(r)),
        "## By kind of run\n",
        _errors(r, KINDS),
        "## 80 % ranges\n",
        _ranges(r),
        "### With all runs of a value left out\n",
        _unseen(r),
        "### What widens a range\n",
        _features(r),
        "## What each term and constant is worth\n",
        _worth(r),
        "## Constants\n",
        CONSTANTS_TEXT.format(levels=_levels(r.levels)),
        "### Of chip generations\n",
        _constants(r, GENERATIONS),
        "### Of software stacks\n",
        "\n".join(f"- `{name}`: {about}." for name, about in CONSTANTS.items()) + "\n",
        _constants(r, stack_names()),
        HOST_TEXT,
        "### Sigmas of each fold\n",
        _folds(r),
        "## Rows that it misses by a quarter or more, left out\n",
        _worst(r),
        "## Releases that got slower\n",
        _regressions(r),
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


def _groups(cases: Iterable[Case]) -> int:
    return len({c.run.group for c in cases})


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
        "left out, of the runs that were fitted on": r.left[[c.run.fitted for c in r.cases]],
        "left out, of the others": r.left[[not c.run.fitted for c in r.cases]],
    }
    lines = ["| error | n | median | 90th percentile | signed median |", "|---|---|---|---|---|"]
    for name, logs in ((name, logs) for name, logs in rows.items() if len(logs)):
        lines.append(f"| {name} | {len(logs)} | {' | '.join(_figures(logs))} |")
    errors, weights = np.expm1(r.left), shares([c.run for c in r.cases])
    ends = [weighted_quantile(np.abs(errors), weights, share) for share in (0.5, 0.9)]
    signed = weighted_quantile(errors, weights, 0.5)
    lines.append(
        f"| left out, configurations once | {weights.sum():.0f} | {ends[0]:.1%} | {ends[1]:.1%} | "
        f"{signed:+.1%} |"
    )
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
        f"{share_inside([r.ranges[i] for i in at]):.0%}",
        f"{theirs:.1%}",
        f"{theirs / max(ours, 1e-9):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _median(logs: np.ndarray) -> float:
    return float(np.median(np.abs(np.expm1(logs))))


def _ranges(r: Results) -> str:
    """Coverage of all runs and of every feature's values, and the interval score."""
    about = (
        "A run's range is from a table that its fold had no part in (`roofline/residuals.py`). The "
        f"aim: {_shares(BOUNDS[0])} of all runs inside, {_shares(BOUNDS[1])} of every value of a "
        f"feature with {CLASS_RUNS} runs of {CLASS_GROUPS} groups or more. The interval score is "
        f"the mean width and ten times what lies outside, in log: {_score(r.ranges):.3f}, where "
        f"one 80 % range for all runs has {_score(r.common):.3f} (inside: "
        f"{share_inside(r.common):.0%}).\n\n{_bound(r)}"
    )
    lines = [
        about,
        "| feature | value | runs | groups | inside | median width |",
        "|---|---|---|---|---|---|",
    ]
    for name, value, at in _values(r):
        held = [r.ranges[i] for i in at]
        width = np.median([one.width for one in held])
        groups = _groups(r.cases[i] for i in at)
        lines.append(
            f"| {name} | {value} | {len(at)} | {groups} | {share_inside(held):.0%} | {width:.2f} |"
        )
    every = np.median([one.width for one in r.ranges])
    inside = share_inside(r.ranges)
    lines.append(f"| all | | {len(r.ranges)} | {_groups(r.cases)} | {inside:.0%} | {every:.2f} |")
    return "\n".join(lines) + "\n"


def _bound(r: Results) -> str:
    """What no range of these features can reach: scores of ranges that know the runs they hold."""
    features = [case.features for case in r.cases]
    inside = [
        replace(h, range_=r.table.range_of(f)) for f, h in zip(features, r.ranges, strict=True)
    ]
    kinds = [(f["generation"], f["mlp"]) for f in features]
    groups = [(case.run.group, case.run.moe) for case in r.cases]
    own = {even: _score(in_hindsight(r.ranges, groups, even=even)) for even in (True, False)}
    scores = sorted(one.score for one in r.common)
    return (
        f"A fifth less than one range would be {0.8 * _score(r.common):.3f}, and the table of all "
        f"runs has {_score(inside):.3f} on the very runs that it is made of: it may lose nothing "
        f"on runs left out. Quantiles by generation and MLP, in hindsight of the runs that they "
        f"hold, have {_score(in_hindsight(r.ranges, kinds)):.3f}, and a width of its own for every "
        f"publisher {own[True]:.3f}. Only a publisher's own quantiles have less, {own[False]:.3f}; "
        f"ten of {len(scores)} runs are {sum(scores[-10:]) / sum(scores):.0%} of the score of one "
        "range.\n"
    )


def _values(r: Results) -> Iterable[tuple[str, str, list[int]]]:
    """Every value of a feature with its runs, of those with runs enough to judge."""
    for name in FEATURES:
        for value in sorted({c.features[name] for c in r.cases}):
            at = [i for i, c in enumerate(r.cases) if c.features[name] == value]
            enough = len(at) >= CLASS_RUNS and _groups(r.cases[i] for i in at) >= CLASS_GROUPS
            if enough:
                yield name, value, at
    dense = [i for i, c in enumerate(r.cases) if c.owners[0] == "hopper" and not c.run.moe]
    if dense:
        yield "dense", "hopper", dense


def _score(ranges: Sequence[Held]) -> float:
    return float(np.mean([one.score for one in ranges]))


def _unseen(r: Results) -> str:
    """Coverage where nobody has run a value: its runs are in neither constants nor table."""
    lines = ["| feature | value | runs | inside | median width |", "|---|---|---|---|---|"]
    every = []
    for (name, value), held in r.unseen.items():
        every += held
        width = np.median([one.width for one in held])
        inside = f"{share_inside(held):.0%}"
        lines.append(f"| {name} | {value} | {len(held)} | {inside} | {width:.2f} |")
    if every:
        width = np.median([one.width for one in every])
        lines.append(f"| all | | {len(every)} | {share_inside(every):.0%} | {width:.2f} |")
    return "\n".join(lines) + "\n"


def _features(r: Results) -> str:
    """The table of all runs."""
    table = r.table
    about = (
        "Of a plan whose features neither widen nor narrow it, measured over predicted lies from "
        f"{np.expm1(table.low):+.0%} to {np.expm1(table.high):+.0%}; every value multiplies both "
        "ends.\n"
    )
    lines = [
        about,
        "| feature | value | times wider | later | runs | groups |",
        "|---|---|---|---|---|---|",
    ]
    for name, feature in table.features.items():
        lines.append(f"| {name} | one that nobody has run | {feature.unseen:.2f} | 1.00 | 0 | 0 |")
        for value, e in feature.values.items():
            lines.append(
                f"| {name} | {value} | {e.wider:.2f} | {e.later:.2f} | {e.runs} | {e.groups} |"
            )
    return "\n".join(lines) + "\n"


def _regressions(r: Results) -> str:
    """Plans that a later release ran slower."""
    lines = ["| run | release | slower than | release | times |", "|---|---|---|---|---|"]
    for one in r.regressions:
        lines.append(
            f"| {one.after.id} | {one.after.release} | {one.before.id} | {one.before.release} | "
            f"{one.times:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _shares(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.0%} to {bounds[1]:.0%}"


def _worth(r: Results) -> str:
    """What `scripts/fit_worth.py` found, between its marks."""
    begin, end = "<!-- scripts/fit_worth.py -->", "<!-- end: fit worth -->"
    return f"{begin}\n{r.worths}\n{end}\n"


def _levels(levels: Levels) -> str:
    return (
        f"common {levels.common:g}, vendor {levels.vendor:g}, own {levels.own:g} scales, group "
        f"{levels.group:g} in log"
    )


def _constants(r: Results, owners: Sequence[str] | Mapping) -> str:
    lines = [
        "| constant | value | prior | expected | told | runs | rests on |",
        "|---|---|---|---|---|---|---|",
    ]
    for owner in owners:
        for name, e in r.found.items():
            if not name.startswith(f"{owner}."):
                continue
            ranked = sorted(e.by_group, key=lambda g: -e.by_group[g])
            runs = ", ".join(f"{g} {e.runs[g]}" for g in ranked if g in e.runs)
            lines.append(
                f"| {name} | {e.value:.3g} | {e.prior.value:.3g} | {e.expected:.3g} | "
                f"{e.information:.1f} | {runs or 'none'} | {e.single} |"
            )
    return "\n".join(lines) + "\n"


def _folds(r: Results) -> str:
    lines = ["| left out | common | vendor | own | group |", "|---|---|---|---|---|"]
    for fold in r.folds:
        s = fold.levels
        kind = "routed" if fold.routed else "dense"
        lines.append(
            f"| {fold.group}, {kind} | {s.common:g} | {s.vendor:g} | {s.own:g} | {s.group:g} |"
        )
    return "\n".join(lines) + "\n"


def _worst(r: Results) -> str:
    errors, fitted = np.expm1(r.left), np.full(len(r.left), np.nan)
    fitted[[c.run.fitted for c in r.cases]] = r.fitted
    order = [i for i in np.argsort(-np.abs(errors), kind="stable") if abs(errors[i]) >= 0.25]
    lines = [
        "| run | grade | chip | software | left out | in-sample |",
        "|---|---|---|---|---|---|",
    ]
    for i in order:
        run = r.cases[i].run
        lines.append(
            f"| {run.id} | {run.grade} | {run.chip} | {run.stack} | {errors[i]:+.0%} | "
            f"{'' if np.isnan(fitted[i]) else f'{np.expm1(fitted[i]):+.0%}'} |"
        )
    return "\n".join(lines) + "\n"

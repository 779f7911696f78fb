"""docs/fit.md: the constants with what determines them, and how well they predict."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fit.constants import GENERATIONS
from fit.explain import Explained
from fit.leave_out import LeftOutSource
from fit.solve import Case
from shardwise.roofline import stack_names
from shardwise.roofline.residuals import Residual, groups_of, residual_of
from shardwise.roofline.stacks import CONSTANTS

INTRODUCTION = """# The fit of the pricing constants

Made by `scripts/fit_efficiency.py` on {date} from {n} published training runs; do not edit by hand.

Each run's own plan is counted once. The constants below, and nothing else, turn counts into the
expected time; they belong to a chip generation or to a software stack, never to a pair of them, a
source, a model or a run. They minimise Huber's loss of log(predicted / measured), a tenth counting
as one sigma, plus the squared sigmas by which they leave their priors. `matmul`, `hbm` and
`network` of a chip are measured by kernel and link benchmarks and are not fitted.

"Loss" is the rise of the loss when the constant alone moves a tenth down / up. "Runs" counts those
whose time moves at least 1 % with a tenth of the constant, by source, largest information first.
"Told" is the runs' information over the prior's: below 1 the prior speaks louder.
"""

TARGETS: Mapping[str, Callable[[Case], bool]] = {
    "grade A": lambda c: c.run.grade == "A",
    "all": lambda c: True,
    "mixtures of experts": lambda c: c.run.moe,
    "TPU v4": lambda c: c.run.chip == "v4",
    "TPU v5e": lambda c: c.run.chip == "v5e",
    "TPU v5p": lambda c: c.run.chip == "v5p",
    "TPU v7x": lambda c: c.run.chip == "tpu7x",
}


def report(
    date: str,
    cases: Sequence[Case],
    residuals: np.ndarray,
    roofline: np.ndarray,
    found: Mapping[str, Explained],
    left: Sequence[LeftOutSource],
    table: Mapping[str, Residual],
) -> str:
    """The whole page. `residuals` and `roofline` are log(predicted / measured) per run."""
    parts = [
        INTRODUCTION.format(date=date, n=len(cases)),
        "## How well it predicts\n",
        _errors(cases, residuals, roofline, table),
        "## One source left out\n",
        _left_out(left),
        "## Constants of chip generations\n",
        _constants(found, GENERATIONS),
        "## Constants of software stacks\n",
        "\n".join(f"- `{name}`: {about}." for name, about in CONSTANTS.items()) + "\n",
        _constants(found, stack_names()),
        "## Rows that it misses by a quarter or more\n",
        _worst(cases, residuals),
    ]
    return "\n".join(parts).replace("\n\n\n", "\n\n")


def _errors(
    cases: Sequence[Case], logs: np.ndarray, plain: np.ndarray, table: Mapping[str, Residual]
) -> str:
    lines = [
        "| runs | n | median error | 90th percentile | bias | in 80 % range | rooflines alone |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = dict(TARGETS)
    for source in dict.fromkeys(c.run.source for c in cases):
        groups[source] = lambda c, s=source: c.run.source == s
    for name, among in groups.items():
        at = [i for i, c in enumerate(cases) if among(c)]
        if not at:
            continue
        error, bound = np.expm1(logs[at]), np.expm1(plain[at])
        inside = np.mean([_inside(cases[i], logs[i], table) for i in at])
        lines.append(
            f"| {name} | {len(at)} | {np.median(np.abs(error)):.1%} | "
            f"{np.quantile(np.abs(error), 0.9):.1%} | {np.median(error):+.1%} | {inside:.0%} | "
            f"{np.median(np.abs(bound)):.1%} |"
        )
    return "\n".join(lines) + "\n"


def _inside(case: Case, log: float, table: Mapping[str, Residual]) -> bool:
    r = residual_of(table, groups_of(case.run.piece.chip, case.run.stack))
    return r is not None and r.q10 <= -log <= r.q90


def _left_out(left: Sequence[LeftOutSource]) -> str:
    lines = [
        "Fitted on all other sources. `chip`, `stack`: whether those cover its chips and its",
        "software; where not, the prior alone speaks.\n",
        "| source | n | fitted | left out | ratio | chip | stack | in 80 % range |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for s in left:
        fitted = float(np.median(np.abs(np.expm1(s.fitted))))
        out = float(np.median(np.abs(np.expm1(s.left))))
        ratio = out / max(fitted, 1e-9)
        lines.append(
            f"| {s.source} | {len(s.left)} | {fitted:.1%} | {out:.1%} | {ratio:.1f} | "
            f"{'yes' if s.other_chip else 'no'} | {'yes' if s.other_stack else 'no'} | "
            f"{s.inside / len(s.left):.0%} |"
        )
    if not left:
        return "Not run.\n"
    runs = sum(len(s.left) for s in left)
    errors = np.concatenate([np.abs(np.expm1(s.left)) for s in left])
    covered = sum(s.inside for s in left) / runs
    lines.append(f"| all | {runs} | | {np.median(errors):.1%} | | | | {covered:.0%} |")
    return "\n".join(lines) + "\n"


def _constants(found: Mapping[str, Explained], owners: Sequence[str] | Mapping) -> str:
    lines = [
        "| constant | value | prior | told | loss | runs | rests on one source |",
        "|---|---|---|---|---|---|---|",
    ]
    for owner in owners:
        for name, e in found.items():
            if not name.startswith(f"{owner}."):
                continue
            ranked = sorted(e.by_source, key=lambda s: -e.by_source[s])
            runs = ", ".join(f"{s} {e.runs[s]}" for s in ranked if s in e.runs)
            lines.append(
                f"| {name} | {e.value:.3g} | {e.prior.value:.3g} ± {e.prior.sigma:.2g} | "
                f"{e.information:.1f} | {e.rises[0]:.1f} / {e.rises[1]:.1f} | {runs or 'none'} | "
                f"{e.single} |"
            )
    return "\n".join(lines) + "\n"


def _worst(cases: Sequence[Case], logs: np.ndarray) -> str:
    errors = np.expm1(logs)
    order = [i for i in np.argsort(-np.abs(errors)) if abs(errors[i]) >= 0.25]
    lines = ["| run | grade | chip | software | error |", "|---|---|---|---|---|"]
    for i in order:
        run = cases[i].run
        lines.append(f"| {run.id} | {run.grade} | {run.chip} | {run.stack} | {errors[i]:+.0%} |")
    return "\n".join(lines) + "\n"

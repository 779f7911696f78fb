"""How good the 80 % ranges of left-out runs are, into docs/accuracy.md.

The interval score of a range is its width and 10 times what the run lies outside of it, in log:
less is better. Beside our ranges stand one 80 % range for all runs, made without each run's fold,
and the one that a fold's own runs would have, which nobody knows before they ran.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path

import numpy as np
from fit.kin import left_with
from fit.ranges import Held
from fit.residuals import INSIDE
from made import put, table

from shardwise.evidence.training.runs import PublishedRun, read_runs
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.evidence.training.unseen import UnseenPrediction, read_unseen
from shardwise.roofline.residuals import LogRange

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
KINDS: dict[str, Callable[[PublishedRun], bool]] = {
    "all": lambda run: True,
    "dense": lambda run: not run.moe,
    "routed": lambda run: run.moe,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A run, and what was predicted of it without its fold."""

    run: PublishedRun
    unseen: UnseenPrediction

    @property
    def log_ratio(self) -> float:
        """log(measured / predicted)."""
        return log(self.run.measured_seconds / self.unseen.predicted)

    def held(self, low: float, high: float) -> Held:
        """The run beside a range, in log, that holds the prediction itself."""
        ends = LogRange(low=min(low, 0.0), high=max(high, 0.0))
        return Held(range_=ends, log_ratio=self.log_ratio)


@cache
def left_out() -> tuple[LeftOut, ...]:
    """Every published run with a left-out prediction."""
    runs, known = read_runs(read_table(PUBLISHED).rows, PUBLISHED.parent)[0], read_unseen()
    return tuple(
        LeftOut(run=run, unseen=known[run.fingerprint]) for run in runs if run.fingerprint in known
    )


def ours(one: LeftOut, others: Sequence[float], own: Sequence[float]) -> Held:
    said = one.unseen
    return one.held(log(said.low / said.predicted), log(said.high / said.predicted))


def common(one: LeftOut, others: Sequence[float], own: Sequence[float]) -> Held:
    return one.held(*_ends(others))


def its_own(one: LeftOut, others: Sequence[float], own: Sequence[float]) -> Held:
    return one.held(*_ends(own))


def _ends(logs: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(logs, [(1 - INSIDE) / 2, (1 + INSIDE) / 2])
    return float(low), float(high)


WAYS = {
    "by features of the plan (ours)": ours,
    "one range for all runs": common,
    "of the publisher's own runs": its_own,
}


def scored(rows: Sequence[LeftOut]) -> dict[str, list[Held]]:
    """Of every way to make a range those of the runs."""
    logs = np.array([row.log_ratio for row in rows])
    first = {(row.run.group, row.run.moe): row.run for row in rows}
    known = {}
    for fold, run in first.items():
        left = np.array([left_with(run, row.run) for row in rows])
        own = np.array([(row.run.group, row.run.moe) == fold for row in rows])
        known[fold] = logs[~left].tolist(), logs[own].tolist()
    return {
        name: [make(row, *known[row.run.group, row.run.moe]) for row in rows]
        for name, make in WAYS.items()
    }


def told() -> str:
    """The part of the page."""
    rows = left_out()
    found = scored(rows)
    header = ["80 % ranges", *(f"score, {kind}" for kind in KINDS), "inside", "median width"]
    cells = []
    for name, held in found.items():
        scores = []
        for has in KINDS.values():
            some = [one.score for row, one in zip(rows, held, strict=True) if has(row.run)]
            scores.append(f"{np.mean(some):.3f}")
        inside, width = np.mean([h.inside for h in held]), np.median([h.width for h in held])
        cells.append([name, *scores, f"{inside:.0%}", f"{width:.2f}"])
    return table(header, cells)


if __name__ == "__main__":
    put(PAGE, __file__, told())
    print(told())

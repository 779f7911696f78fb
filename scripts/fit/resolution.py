"""The table of what predictions of training plans cannot know (`roofline/resolution.py`).

Predicted seconds are those of constants without a run's group (`unseen.py`); predicted bytes are of
rules that no run was fitted on. Of our own trainer the compiler's figures stand for measured ones.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.boundary import write_text
from shardwise.evidence.training.own import configuration
from shardwise.evidence.training.runs import PublishedRun
from shardwise.evidence.training.unseen import UnseenPrediction
from shardwise.hardware import parse_slice
from shardwise.planner.evaluate import plan_shape
from shardwise.planner.price.memory import train_memory
from shardwise.plans.software import JAX
from shardwise.roofline.resolution import ALL, LEAST, ClassShare, class_of, read_resolution

CERTAIN = 0.95
"""Share of the runs of a class that fit where its margin is kept."""
NEAR = 1.25
"""Times the predicted seconds of one plan up to which another is a question of telling them apart:
no class is off by so much more on one than on the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPlan:
    """A plan predicted, and measured or compiled: seconds of a step and peak bytes of a device,
    where they are known. Plans of one `job` (publisher or compiler, model, cluster, batch, release)
    may be compared; `public` ones are of a published run."""

    kind: str
    group: str
    job: Hashable
    plan: Hashable
    public: bool
    seconds: tuple[float, float] | None
    memory: tuple[float, float] | None


def published_looks(
    runs: Iterable[PublishedRun], unseen: Mapping[str, UnseenPrediction]
) -> list[SeenPlan]:
    """Published runs as they were predicted without their group."""
    return [
        SeenPlan(
            kind=class_of(run.stack, run.piece.chip.vendor),
            group=run.group,
            job=(configuration(run), run.release),
            plan=repr(run.plan),
            public=True,
            seconds=(unseen[run.fingerprint].predicted, run.measured_seconds),
            memory=(run.as_reported(peak_bytes(run)), run.peak_mem_bytes)
            if run.peak_mem_bytes
            else None,
        )
        for run in runs
        if run.fingerprint in unseen
    ]


def peak_bytes(run: PublishedRun) -> float:
    """Peak bytes of the fullest device, as counted."""
    shape = plan_shape(run.plan, run.cfg, run.piece.chip)
    return float(train_memory(run.cfg, shape).peak())


def compiled_looks(rows: Iterable[Mapping[str, Any]]) -> list[SeenPlan]:
    """Plans of our own trainer as compiled, from the rows of docs/lab/compiled.json and of
    docs/lab/compiled_drawn.json. The seconds of a program that does not fit are no step's."""
    found = []
    for row in rows:
        memory = row.get("memory") or {}
        if row.get("phase") != "train" or not memory.get("compiled"):
            continue
        seconds = (row.get("step_seconds") or {}) if memory["fits_compiled"] else {}
        found.append(
            SeenPlan(
                kind=class_of(JAX.name, parse_slice(row["slice"]).chip.vendor),
                group=row["model"],
                job=(row["model"], row["slice"], row["sequences"], row["tokens"]),
                plan=repr((row["mesh"], row["choices"])),
                public=False,
                seconds=_both(seconds),
                memory=_both(memory),
            )
        )
    return found


def _both(row: Mapping[str, Any]) -> tuple[float, float] | None:
    known = row.get("predicted"), row.get("compiled")
    return (float(known[0]), float(known[1])) if known[0] and known[1] else None


def margins(looks: Sequence[SeenPlan]) -> dict[str, ClassShare]:
    """Of every class with `LEAST` runs, and of all published ones, the share of memory that 19 of
    20 runs would have left free: the `CERTAIN` quantile of 1 - predicted / measured peak."""
    missed = [
        (look, 1 - look.memory[0] / look.memory[1]) for look in looks if look.memory is not None
    ]
    return _by_class(missed, lambda values: max(float(np.quantile(values, CERTAIN)), 0.0))


def told_apart(looks: Sequence[SeenPlan]) -> dict[str, ClassShare]:
    """Of every class with `LEAST` pairs, and of all published ones, the median of

        |(predicted / measured of one plan) / (predicted / measured of the other) - 1|

    over pairs of different plans of one job that are predicted within `NEAR` of each other."""
    jobs: dict[Hashable, list[SeenPlan]] = defaultdict(list)
    for look in looks:
        if look.seconds is not None:
            jobs[look.job].append(look)
    pairs = [
        (one, abs(_log(one) - _log(other)))
        for job in jobs.values()
        for one, other in combinations(job, 2)
        if one.plan != other.plan and _near(one, other)
    ]
    return _by_class(pairs, lambda logs: math.expm1(float(np.median(logs))))


def _near(one: SeenPlan, other: SeenPlan) -> bool:
    assert one.seconds is not None
    assert other.seconds is not None
    low, high = sorted((one.seconds[0], other.seconds[0]))
    return high <= NEAR * low


def _log(look: SeenPlan) -> float:
    assert look.seconds is not None
    return math.log(look.seconds[0] / look.seconds[1])


def _by_class(
    values: Sequence[tuple[SeenPlan, float]], of: Callable[[list[float]], float]
) -> dict[str, ClassShare]:
    """A figure of all published values, and of each class and each vendor that has enough."""
    classes: dict[str, list[tuple[SeenPlan, float]]] = {ALL: [v for v in values if v[0].public]}
    for look, value in values:
        for name in (look.kind, look.kind.partition("/")[2]):
            classes.setdefault(name, []).append((look, value))
    return {
        name: ClassShare(
            value=of([value for _, value in some]),
            count=len(some),
            groups=len({look.group for look, _ in some}),
        )
        for name, some in sorted(classes.items())
        if name == ALL or len(some) >= LEAST
    }


def write_resolution(path: Path, looks: Sequence[SeenPlan], source: str) -> None:
    """Write the table of some looks; `source` says where they come from."""
    lines = [
        "# What predictions of training plans cannot know, by stack of software and vendor of the",
        "# chip; a class that is not here has too few runs, and takes what all of its vendor say,",
        "# or else all published runs.",
        f'source = "{source}"',
        "",
        "# The share of usable memory that a plan leaves free to fit in 19 of 20 cases.",
        "[margin]",
        *_rows(margins(looks)),
        "",
        "# By how much two predicted times must differ to be told apart, as a share.",
        "[apart]",
        *_rows(told_apart(looks)),
    ]
    write_text(path, "\n".join(lines) + "\n")
    read_resolution.cache_clear()


def _rows(figures: Mapping[str, ClassShare]) -> list[str]:
    return [
        f'"{name}" = {{ value = {f.value:.4f}, count = {f.count}, groups = {f.groups} }}'
        for name, f in figures.items()
    ]

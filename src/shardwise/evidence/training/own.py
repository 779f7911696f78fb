"""A table of one's own runs as evidence: each priced by the model as it is (`--evidence`)."""

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardwise.errors import BadRequest
from shardwise.evidence.training.runs import PublishedRun, read_runs
from shardwise.evidence.training.table import read_table
from shardwise.evidence.training.validate import ScoredRun, score
from shardwise.models import params_total
from shardwise.roofline.evidence import OwnRun, OwnRuns
from shardwise.roofline.residuals import LogRange

MOST_ROWS = 200
"""Rows that are read: each is priced, and a plan is held against all of them."""


def own_run(row: ScoredRun) -> OwnRun:
    """A priced run with a range, as evidence."""
    assert row.interval is not None
    low, high = (math.log(end / row.predicted) for end in row.interval)
    return OwnRun(
        features=row.features,
        log_ratio=row.log_ratio,
        range_=LogRange(low=low, high=high),
        marks=(row.run.fingerprint,),
    )


def configuration(run: PublishedRun) -> Hashable:
    """What was run: model by its shape, chip, devices, dtype, batch and length, of one group. Its
    rows (meshes, releases, repeats) are one look at it."""
    cfg, plan = run.cfg, run.plan
    shape = (cfg.layers, cfg.d_model, float(params_total(cfg)))
    batch = (plan.global_batch_sequences, plan.sequence_length)
    return (run.group, *shape, run.chip, run.piece.chips, plan.dtypes.compute, *batch)


def looks(rows: Sequence[ScoredRun]) -> list[OwnRun]:
    """Runs as evidence, those of a configuration as one with the middle of their residuals."""
    same: dict[object, list[OwnRun]] = defaultdict(list)
    for row in rows:
        same[configuration(row.run)].append(own_run(row))
    return [_one_look(some) for some in same.values()]


def _one_look(some: Sequence[OwnRun]) -> OwnRun:
    middle = float(np.median([run.log_ratio for run in some]))
    return replace(some[0], log_ratio=middle, marks=tuple(m for run in some for m in run.marks))


def read_own_runs(path: str | Path | OwnRuns | None) -> OwnRuns | None:
    """The runs of a table, each with its features and how it was missed; what was read already, and
    None, as they are.

    Raises BadRequest for a table that cannot be read, and for a row that cannot be priced, with its
    line: what is left out in silence would not be evidence.
    """
    if path is None or isinstance(path, OwnRuns):
        return path
    table = read_table(Path(path))
    if not table.rows:
        raise BadRequest(f"{table.what} has no run; --evidence takes one a line (docs/runs.md)")
    if len(table.rows) > MOST_ROWS:
        raise BadRequest(
            f"{table.what} has {len(table.rows)} runs, and --evidence takes at most {MOST_ROWS}; "
            "keep those that are most like what you ask for"
        )
    runs, left_out = read_runs(table.rows, Path(path).parent, table.lines)
    # A published run, too, is priced as the model is now.
    found = score(runs, left_out, unseen={})
    for row in found.left_out:
        raise BadRequest(
            f"{table.what}, {row.place}: {row.reason}; correct the row or leave it out, --evidence "
            "takes no run that it cannot price (docs/runs.md has the format)"
        )
    return OwnRuns(name=Path(path).name, runs=looks(found.rows))

"""Measured training runs: a row of a table -> the plan that was run, and its time.

`table.py` is the format, `models.py` reads the shape, `plans.py` the slice and the plan, `remat.py`
what is recomputed; each lists what it infers where a row leaves something open. A row that cannot
be expressed has a reason, and is never dropped in silence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path

from shardwise.boundary.records import Record
from shardwise.boundary.tables import WrongCell, place_of_row
from shardwise.errors import ShardwiseError
from shardwise.evidence.training.models import model_of, vocabulary_inferred
from shardwise.evidence.training.plans import inferences, plan_of, slice_of
from shardwise.evidence.training.table import PUBLISHED, RunRow, row_of
from shardwise.evidence.training.unseen import fingerprint
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.flops import model_flops_per_token
from shardwise.planner.checks import check_plan
from shardwise.planner.price.memory import RESERVED
from shardwise.plans import TrainPlan
from shardwise.plans.stacks import StackName


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One measured run as a plan on a slice; seconds per step, bytes per chip. `group` is whose
    runs a fit leaves out together; constants are fitted on it where it is `fitted`;
    `release` is the year of its software, with the month where it is known. `reserved`: its peak
    bytes are those that an allocator had taken, not those that tensors lay in. `inferred` says what
    the row leaves open or a plan cannot say, and what was taken. `fingerprint` stands for the row's
    facts (`unseen.py`). `line` is the row's, where the table is a file."""

    id: str
    source: str
    group: str
    chip: str
    grade: str
    model: str
    cfg: ModelConfig
    piece: Slice
    plan: TrainPlan
    measured_seconds: float
    peak_mem_bytes: float | None
    moe: bool
    reserved: bool = False
    fitted: bool = True
    release: str = ""
    inferred: tuple[str, ...] = ()
    fingerprint: str = ""
    line: int | None = None

    @property
    def stack(self) -> StackName:
        """The software that ran it."""
        return self.plan.stack

    def as_reported(self, peak_bytes: float) -> float:
        """Predicted peak bytes of tensors as the run counted them."""
        return peak_bytes * (RESERVED if self.reserved else 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Record):
    """A row that no plan can express, and why."""

    id: str
    """Its name."""
    source: str
    """Where it was published."""
    reason: str
    """Why."""
    line: int | None = None
    """Its line in the file; null where it is of none."""

    @property
    def place(self) -> str:
        """How a message names it."""
        return self.id if self.line is None else place_of_row(f"line {self.line}", self.id)


def read_runs(
    rows: Iterable[Mapping[str, str]],
    folder: Path = PUBLISHED.parent,
    lines: Iterable[int] = (),
) -> tuple[tuple[PublishedRun, ...], tuple[LeftOut, ...]]:
    """Every row as a run, or with the reason why not; `lines` are theirs in a file."""
    runs: list[PublishedRun] = []
    left_out: list[LeftOut] = []
    for cells, line in zip(rows, chain(lines, repeat(None)), strict=False):
        try:
            runs.append(replace(read_run(cells, folder), line=line))
        except ShardwiseError as error:
            name, source = cells.get("id") or "", cells.get("source") or ""
            left_out.append(LeftOut(id=name, source=source, reason=str(error), line=line))
    return tuple(runs), tuple(left_out)


def read_run(cells: Mapping[str, str], folder: Path = PUBLISHED.parent) -> PublishedRun:
    """One row as a run; paths in it are relative to `folder`. Raises BadRequest where a value is
    none that the column takes, or a plan cannot say the row."""
    row = row_of(cells)
    cfg, piece = model_of(row, folder), slice_of(row, folder)
    plan = plan_of(row, cfg, piece)
    check_plan(plan, cfg, piece)
    return PublishedRun(
        id=row.id,
        source=row.source,
        group=row.group or row.source,
        chip=piece.chip.id,
        grade=row.grade,
        model=row.model,
        cfg=cfg,
        piece=piece,
        plan=plan,
        measured_seconds=measured_seconds(row, cfg),
        peak_mem_bytes=None if row.memory_gib is None else row.memory_gib * 2**30,
        moe=cfg.has_experts,
        reserved=row.memory_kind == "reserved",
        fitted=row.fitted,
        release=row.release,
        inferred=(*vocabulary_inferred(row, cfg), *inferences(row, plan, piece)),
        fingerprint=fingerprint(row),
    )


def measured_seconds(row: RunRow, cfg: ModelConfig) -> float:
    """Seconds per step: as stated, or from the published figure.

    FLOP/s count as this project's own `mfu` does, causal-half attention included and the lookup
    left out: where a source counts otherwise, convert by hand and give `step_seconds`.
    """
    if row.step_seconds is not None:
        return row.step_seconds
    if row.metric is None or row.value is None:
        raise WrongCell("step_seconds", "", "state it, or a metric with its value")
    tokens, devices = row.global_batch_seqs * row.seq_len, row.num_devices
    match row.metric:
        case "step_time":
            return row.value / 1e3 if row.unit == "ms" else row.value
        case "sequences_per_sec":
            return row.global_batch_seqs / row.value
        case "tokens_per_sec":
            return tokens / row.value
        case "tokens_per_sec_per_device":
            return tokens / (row.value * devices)
        case "device_hours_per_trillion_tokens":
            return tokens * row.value * 3600 / 1e12 / devices
        case "tflops_per_device":
            each = float(model_flops_per_token(cfg, row.seq_len, causal=True))
            return each * tokens / (devices * row.value * 1e12)

"""Published training runs: a row of a table of measurements -> the plan that was run, and its
time.

The table has one run a row: shape of the model, chips, degrees, microbatch, recompute, dtype and
one metric with its value; columns `notes`, `flops_convention_note` and `extra_metrics` (JSON) say
the rest. `models.py` reads the shape, `plans.py` the slice and the plan, `remat.py` the recompute
text; each lists what it infers where a source is silent.
A row that cannot be expressed has a reason, and is never dropped in silence.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise import boundary
from shardwise.boundary import number, parse_json
from shardwise.errors import BadRequest, ShardwiseError, shown
from shardwise.evidence.training.models import Row, model_of, said, whole
from shardwise.evidence.training.plans import inferences, plan_of, slice_of
from shardwise.hardware import Slice
from shardwise.models import ModelConfig
from shardwise.models.counts import params_total
from shardwise.models.flops import flops_by_op, model_flops_per_token
from shardwise.planner.checks import check_plan
from shardwise.plans import TrainPlan

COLUMNS = (
    *("id", "source", "model", "layers", "d_model", "d_ff", "heads", "hardware", "num_devices"),
    *("global_batch_seqs", "seq_len", "metric", "value"),
)
"""Columns that no row can do without."""

PUBLISHED = Path(__file__).parent / "data" / "training_runs.csv"
"""276 published runs, each with its source, citation and FLOP convention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One measured run as a plan on a slice; seconds per step, bytes per chip. `inferred` says what
    the source leaves open or a plan cannot say, and what was taken."""

    id: str
    source: str
    chip: str
    grade: str
    model: str
    cfg: ModelConfig
    piece: Slice
    plan: TrainPlan
    measured_seconds: float
    peak_mem_bytes: float | None
    moe: bool
    inferred: tuple[str, ...] = ()

    @property
    def stack(self) -> str:
        """The software that ran it."""
        return self.plan.stack


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A row that no plan can express, and why."""

    id: str
    source: str
    reason: str


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV table. Raises BadRequest where it cannot be read, lacks a column, or has a
    value that no run can have: such a table is damaged."""
    table = boundary.read_table(path, "the table", needed=COLUMNS, remedy="give a CSV file")
    for index, row in enumerate(table.rows):
        try:
            measured(row)
        except BadRequest as error:
            raise BadRequest(f"{table.at(index)}: {error}") from None
    return list(table.rows)


def measured(row: Row) -> float:
    """The number in the column `value`."""
    return number(row["value"].strip(), "value", above=0, most=1e18)


def read_runs(rows: Iterable[Row]) -> tuple[tuple[PublishedRun, ...], tuple[LeftOut, ...]]:
    """Every row as a run, or with the reason why not."""
    runs: list[PublishedRun] = []
    left_out: list[LeftOut] = []
    for row in rows:
        try:
            runs.append(read_run(row))
        except ShardwiseError as error:
            left_out.append(LeftOut(id=row["id"], source=row["source"], reason=str(error)))
    return tuple(runs), tuple(left_out)


def read_run(row: Row) -> PublishedRun:
    """One row as a run. Raises BadRequest where a plan cannot say it."""
    cfg, piece = model_of(row), slice_of(row)
    plan = plan_of(row, cfg, piece)
    check_plan(plan, cfg, piece)
    peak = extra(row).get("peak_mem_gb")
    return PublishedRun(
        id=row["id"],
        source=row["source"],
        chip=piece.chip.id,
        grade=row.get("grade") or "",
        model=row["model"],
        cfg=cfg,
        piece=piece,
        plan=plan,
        measured_seconds=measured_seconds(row, cfg),
        peak_mem_bytes=None
        if peak is None
        else number(peak, "peak_mem_gb", above=0, most=1e9) * 1e9,
        moe=cfg.has_experts,
        inferred=inferences(row, plan, piece),
    )


def extra(row: Row) -> dict[str, Any]:
    """The further metrics of a row."""
    text = row.get("extra_metrics") or "{}"
    held = parse_json(text, "extra_metrics")
    if not isinstance(held, dict):
        raise BadRequest(f"extra_metrics {shown(text)} is no JSON object")
    return held


def measured_seconds(row: Row, cfg: ModelConfig) -> float:
    """Seconds per step, from whichever metric the source gives.

    FLOP/s become seconds by the source's own convention (`stated_flops_per_token`).
    """
    value = measured(row)
    devices, sequences = whole(row, "num_devices"), whole(row, "global_batch_seqs")
    tokens = sequences * whole(row, "seq_len")
    match row["metric"]:
        case "step_time":
            return value / 1e3 if row.get("unit") == "ms" else value
        case "sequences_per_sec":
            return sequences / value
        case "tokens_per_sec":
            return tokens / value
        case "tokens_per_sec_per_device":
            return tokens / (value * devices)
        case "device_hours_per_trillion_tokens":
            return tokens * value * 3600 / 1e12 / devices
        case "tflops_per_device":
            return stated_flops_per_token(row, cfg) * tokens / (devices * value * 1e12)
    raise BadRequest(f"there is no rule for the metric '{row['metric']}'")


def stated_flops_per_token(row: Row, cfg: ModelConfig) -> float:
    """FLOPs of one trained token as the source counts them, by its `flops_convention_note`.

    "hardware FLOPs incl. recompute" (SC21): four forwards of the layers, three of the head, full
    attention. "6*N_all": every stored parameter, the lookup of the embedding included; else the
    parameters that multiply. Attention is halved where the note says causal, else full.
    """
    note, context = said(row), whole(row, "seq_len")
    causal = "causal" in note.replace("non-causal", "full")
    if "hardware flops" in note:
        ops = flops_by_op(cfg, context, causal=False)
        return sum(float(op.forward) * (3 if op.group is None else 4) for op in ops)
    counted = float(model_flops_per_token(cfg, context, causal=causal))
    if "n_all" not in note:
        return counted
    core = counted - float(model_flops_per_token(cfg, 0, causal=causal))
    return 6.0 * params_total(cfg) + core

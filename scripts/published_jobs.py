"""How often a published plan beats the one that `plan train` answers: docs/lab/published_jobs.json,
and its table in docs/accuracy.md.

    python scripts/published_jobs.py

Of every publisher and chip two published runs are taken, of a dense and of a routed model: those
that reached the largest share of the chip's peak. The plan is priced, and the same job is searched
as `plan train --for any` does, with its precision, kernels and optimizer, batch and length. Both
are priced by the same constants, so that only choices differ. A job that stands in the JSON is not
made again: delete the file to make all anew (half an hour of a core, or less by `--jobs N`).
"""

import argparse
import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from made import made, put, table

from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.evidence.training.runs import PublishedRun, read_runs
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.models.flops import model_flops_per_token
from shardwise.planner.evaluate import evaluate_train
from shardwise.planner.search.request import SEARCHED, TrainRequest
from shardwise.planner.training import plan_train
from shardwise.plans.train import CHOICES, Structure

ROOT = Path(__file__).resolve().parent.parent
OUT, PAGE = ROOT / "docs" / "lab" / "published_jobs.json", ROOT / "docs" / "accuracy.md"
BEATS = 0.05
"""The share of its seconds by which a published plan has to be faster to count."""
OF_THE_SEARCH = {*SEARCHED, "remat_kinds", "virtual_stages"}
"""Choices of a plan that a search makes."""


def jobs() -> list[PublishedRun]:
    """Of every publisher and chip the dense and the routed run of the largest share of peak;
    without adapters, which no search adds."""
    runs, _ = read_runs(read_table(PUBLISHED).rows, PUBLISHED.parent)
    best: dict[Any, PublishedRun] = {}
    for run in runs:
        key = (run.group, run.chip, run.moe)
        known = best.get(key)
        if not run.plan.lora_rank and (known is None or _rate(run) > _rate(known)):
            best[key] = run
    return list(best.values())


def _rate(run: PublishedRun) -> float:
    """Model FLOPs a second and chip, of the chip's peak."""
    plan, peak = run.plan, run.piece.chip.peak(run.plan.dtypes.compute)
    flops = float(model_flops_per_token(run.cfg, plan.sequence_length, causal=True))
    tokens = plan.global_batch_sequences * plan.sequence_length
    return flops * tokens / run.measured_seconds / run.piece.chips / peak


def searched(run: PublishedRun) -> TrainRequest:
    """What `plan train` looks for, with what the run's own plan leaves to no search."""
    chip, plan = run.piece.chip, run.plan
    fixed = {name: getattr(plan, name) for name in CHOICES if name not in OF_THE_SEARCH}
    return TrainRequest(
        cfg=run.cfg,
        model=run.model,
        piece=run.piece,
        sequences=plan.global_batch_sequences,
        sequence_length=plan.sequence_length,
        pins={},
        max_hbm_bytes=chip.require("hbm_usable_bytes") / chip.jax_devices_per_chip,
        structure=Structure(**fixed),
    ).as_told_apart


def compared(run: PublishedRun) -> dict[str, Any]:
    """Both plans of a job, in seconds and shares of usable memory."""
    row: dict[str, Any] = {"id": run.id, "stack": run.stack, "chip": run.chip}
    row |= {"theirs": None, "ours": None, "why": None}
    try:
        theirs = evaluate_train(run.plan, run.cfg, run.piece)
        found = plan_train(searched(run), top=0)
    except (BadRequest, NoFeasiblePlan) as error:
        return row | {"why": str(error)}
    usable = run.piece.chip.require("hbm_usable_bytes") / run.piece.chip.jax_devices_per_chip
    for name, one in (("theirs", theirs), ("ours", found.best)):
        row[name] = {
            "mesh": dict(one.plan.mesh),
            "seconds": float(one.estimate.expected),
            "memory": float(one.memory.peak()) / usable,
        }
    return row | {"fastest_seconds": found.fastest_rank, "margin_kept": found.margin_kept}


def beaten(row: dict[str, Any], seconds: float) -> bool:
    """Whether the published plan takes less time, by more than `BEATS`."""
    return row["theirs"]["seconds"] < seconds * (1 - BEATS)


def summary(rows: list[dict[str, Any]]) -> str:
    """The table, by stack of software."""
    known = [row for row in rows if row["ours"]]
    names = sorted({row["stack"] for row in known})
    groups = [(name, [row for row in known if row["stack"] == name]) for name in names]
    cells = [_cells(name, group) for name, group in [*groups, ("all", known)]]
    header = ("stack", "jobs", "published plan more than 5 % faster", "than the fastest found")
    unplanned = len(rows) - len(known)
    return "\n".join([table(header, cells), "", f"Without a plan of ours: {unplanned} jobs."])


def _cells(name: str, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    beats = sum(beaten(row, row["ours"]["seconds"]) for row in rows)
    fastest = sum(beaten(row, row["fastest_seconds"]) for row in rows)
    return name, str(len(rows)), f"{beats} ({beats / len(rows):.0%})", str(fastest)


def kept() -> Iterator[dict[str, Any]]:
    if OUT.exists():
        yield from json.loads(OUT.read_text())["rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    processes = parser.parse_args().jobs
    rows = {row["id"]: row for row in kept()}
    open_ = [run for run in jobs() if run.id not in rows]
    print(f"{len(rows)} of {len(rows) + len(open_)} jobs stand in {OUT.name}")
    with ProcessPoolExecutor(processes) as pool:
        asked = [pool.submit(compared, run) for run in open_]
        for done, future in enumerate(as_completed(asked), 1):
            rows[future.result()["id"]] = future.result()
            write(rows)
            if done % 10 == 0 or done == len(asked):
                print(f"{done} of {len(asked)}", flush=True)
    put(PAGE, __file__, summary(list(rows.values())))
    print(summary(list(rows.values())))


def write(rows: dict[str, dict[str, Any]]) -> None:
    made_rows = [rows[name] for name in sorted(rows)]
    OUT.write_text(json.dumps(made() | {"rows": made_rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

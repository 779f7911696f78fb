"""docs/lab/compiled_drawn.md and .json: plans drawn by a seed, predicted and compiled."""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from made import made, table

from compiled.drawn import SEED, load_drawn
from compiled.plans import Serve, Train
from compiled.programs import compiled_case, kept_case, predicted_memory, predicted_seconds
from compiled.table import GOALS, NEAR, ratio, row_of, seconds_of
from shardwise.commands.base.inputs import Hardware
from shardwise.errors import ShardwiseError
from shardwise.plans import ServePlan, TrainPlan
from shardwise.units import format_seconds

PAGE = """# Plans drawn by a seed, through the real compiler

Made by `python scripts/compiled_plans.py --drawn` on {date} at {commit} with {versions}, at
the compiler's own effort: {count} plans of `scripts/compiled/drawn.json` (seed {seed}; the list was
written and committed before any of them was compiled, and nothing is fitted on them){renewed}.
Models, slices, batches and lengths are drawn from all that our runtime computes, so this page shows
what a first answer is worth on a model that nobody here has looked at. `cycles` is the share of the
schedule that the compiler has estimated itself; shardwise prices the rest.

"""


def write_drawn(docs: Path, cache: Path, renew: Sequence[str] = (), kept: bool = False) -> None:
    """Compile what the cache lacks, then write both files. Where phases or names of rows to `renew`
    are given, the others stay as they are; with `kept` nothing is compiled: a row whose program is
    in the cache is read again, another keeps what was compiled before beside what is predicted
    today."""
    before = json.loads((docs / "compiled_drawn.json").read_text(encoding="utf-8"))
    known = {row["name"]: {"made": _head(before), **row} for row in before["rows"]}
    rows = []
    for name, (phase, plan) in load_drawn().items():
        if renew and phase not in renew and name not in renew:
            rows.append(known[name])
        elif kept:
            rows.append(read_again(known[name], _of(plan, phase), plan, cache))
        else:
            rows.append({**_row(name, phase, plan, cache), "made": _head(made())})
    doc = {"schema_version": 1, **made(), "seed": SEED, "summary": summary_of(rows), "rows": rows}
    (docs / "compiled_drawn.json").write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")
    (docs / "compiled_drawn.md").write_text(page(doc), encoding="utf-8")


def _head(doc: Mapping[str, Any]) -> str:
    return f"{doc['date']} at {doc['commit']}"


def with_predictions(row: Mapping[str, Any], plan: TrainPlan | ServePlan) -> dict[str, Any]:
    """A row with the seconds and the memory that are predicted today."""
    if "failure" in row:
        return dict(row)
    phase, memory = row["phase"], row["memory"]
    return {
        **row,
        "step_seconds": {**row["step_seconds"], **predicted_seconds(plan, phase)},
        "memory": memory | predicted_memory(plan, phase, memory["compiled"], memory["usable"]),
    }


def read_again(
    row: Mapping[str, Any], of: Train | Serve, plan: TrainPlan | ServePlan, cache: Path
) -> dict[str, Any]:
    """A row by its program, where the cache has it, as it is read and predicted today."""
    case = None
    if "failure" not in row:
        case = kept_case(plan, row["phase"], Hardware(), cache, key=row["key"])
    again = with_predictions(row, plan) if case is None else row_of(row["name"], of, case)
    return {**row, **again}


def _row(name: str, phase: str, plan: TrainPlan | ServePlan, cache: Path) -> dict[str, Any]:
    try:
        case = compiled_case(plan, phase, Hardware(), cache)
        row = row_of(name, _of(plan, phase), case)
    except ShardwiseError as error:
        row = {"name": name, "phase": phase, "failure": str(error)}
    print(name, file=sys.stderr, flush=True)
    return row


def _of(plan: TrainPlan | ServePlan, phase: str) -> Train | Serve:
    """The plan as a row of the other table."""
    if isinstance(plan, TrainPlan):
        choices = {"remat": plan.remat, "zero": plan.zero, "microbatches": plan.microbatches}
        sizes = (plan.global_batch_sequences, plan.sequence_length)
        return Train(plan.model, plan.slice, plan.mesh, *sizes, choices)
    tokens = plan.input_length + plan.output_length
    return Serve(plan.model, plan.slice, plan.mesh, plan.batch, tokens, plan.dtypes.weights, phase)


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each phase: plans, those within the goal, the median of compiled over predicted, those
    whose memory is within 10 %, and those whose collectives are as planned after rewrites."""
    found = {}
    for phase in GOALS:
        done = [row for row in rows if row["phase"] == phase and "failure" not in row]
        timed = seconds_of(done, phase)
        moved = [row["collectives"] for row in done if row["collectives"]]
        found[phase] = {
            "plans": len(done),
            "refused": sum(row["phase"] == phase and "failure" in row for row in rows),
            "within": timed["within"],
            "timed": timed["plans"],
            "median": timed["median"],
            "memory_near": sum(abs(row["memory"]["error"]) <= NEAR for row in done),
            "fits": sum(row["memory"]["fits_compiled"] for row in done),
            "collectives_equal": sum(one["equal"] for one in moved),
            "collectives": len(moved),
        }
    return found


def page(doc: Mapping[str, Any]) -> str:
    """docs/lab/compiled_drawn.md of its JSON."""
    head = PAGE.format(
        date=doc["date"],
        commit=doc["commit"],
        versions=", ".join(f"{name} {version}" for name, version in doc["versions"].items()),
        count=len(doc["rows"]),
        seed=doc["seed"],
        renewed=_renewed(doc["rows"]),
    )
    names = ("phase", "plans", "median", "within the goal", "memory within 10 %", "collectives")
    said = [_summary(phase, one) for phase, one in doc["summary"].items()]
    parts = [head + table(names, said)]
    for phase in GOALS:
        rows = [row for row in doc["rows"] if row["phase"] == phase]
        parts += [f"## {phase.capitalize()}", _table(rows)]
    return "\n\n".join(parts) + "\n"


def _renewed(rows: Sequence[Mapping[str, Any]]) -> str:
    """When the programs of the rows were compiled, where not all were at once; rows of an earlier
    day have a star."""
    days = Counter(row["made"] for row in rows)
    if len(days) == 1:
        return ""
    told = ", ".join(f"{n} on {day}" for day, n in sorted(days.items()))
    return f";\nprograms compiled: {told}, those before the newest day with a star"


def _summary(phase: str, one: Mapping[str, Any]) -> list[str]:
    low, high = GOALS[phase]
    return [
        phase,
        str(one["plans"]),
        f"{one['median']:.2f}",
        f"{one['within']} of {one['timed']} ({low:.2f} to {high:.2f})",
        f"{one['memory_near']} of {one['plans']}",
        f"{one['collectives_equal']} of {one['collectives']}",
    ]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = ("plan", "predicted", "compiled", "ratio", "cycles", "memory", "fits", "left")
    order = sorted(rows, key=lambda row: -ratio(row) if _timed(row) else -1e9)
    newest = max(row["made"] for row in rows)[: len("2026-11-25")]
    return table(names, (_cells(row, row["made"].startswith(newest)) for row in order))


def _timed(row: Mapping[str, Any]) -> bool:
    return "failure" not in row and bool(row["step_seconds"]["compiled"])


def _cells(row: Mapping[str, Any], new: bool) -> list[str]:
    plan = row["name"].partition(": ")[2]
    kind = " (best)" if row["name"].partition(":")[0].endswith("best") else ""
    kind += "" if new else " *"
    if "failure" in row:
        return [plan + kind, row["failure"], *[""] * 6]
    seconds, memory, moved = row["step_seconds"], row["memory"], row["collectives"]
    planned = sum(line["planned"] for line in moved["rows"]) if moved else 0.0
    timed = _timed(row)
    return [
        plan + kind,
        format_seconds(seconds["predicted"]),
        format_seconds(seconds["compiled"]) if timed else "",
        f"{ratio(row):.2f}" if timed else "",
        f"{seconds['cycles']:.0%}" if timed and seconds["cycles"] is not None else "",
        f"{memory['error']:+.1%}",
        "yes" if memory["fits_compiled"] else "no",
        f"{moved['left'] / planned:.1%}" if planned else "",
    ]

"""A profile as plain values: measured beside compiled and predicted, by class, line and scope."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from shardwise.boundary import finite, to_json, write_table, write_text
from shardwise.errors import BadRequest
from shardwise.profiler.explain.evidence import source_of
from shardwise.profiler.hlo.scopes import scope_of
from shardwise.profiler.hlo.work import HloOp
from shardwise.profiler.trace.events import Trace, TraceOp, opcode_of
from shardwise.profiler.trace.match import MeasuredOp
from shardwise.workflows.profile import Profiled

SHOWN = 100
"""Lines of each table of a document."""


def profile_result(p: Profiled) -> dict[str, Any]:
    """One profile. `seconds` of rows are own seconds per step and device, means over devices and
    captured runs; those of `compiled` are one device's on its timeline, collectives and copies as
    if nothing hid them; `predicted` is the planner's."""
    m, t = p.measured, p.timeline
    return {
        "phase": p.phase,
        "devices": m.devices,
        "kind": p.kind,
        "step_seconds": {
            "measured": p.step_seconds,
            "least": min(p.seconds, default=None),
            "most": max(p.seconds, default=None),
            "traced": m.step_seconds,
            "compiled": t and {"lower": t.lower, "expected": t.expected, "upper": t.upper},
            "predicted": p.predicted and p.predicted["seconds"],
        },
        "steps": len(p.seconds),
        "captured_steps": m.runs,
        "matched_seconds": m.matched_seconds,
        "unmatched_seconds": m.unmatched_seconds,
        "unmatched": [
            {"name": name, "seconds": spent} for name, spent in list(m.unmatched.items())[:SHOWN]
        ],
        "silent_ops": list(m.silent),
        "by_class": _by_class(p),
        "by_line": _grouped(p, source_of),
        "by_scope": _grouped(p, lambda item: item.scope.split("/")[0] or "(no scope)"),
        "compile_seconds": p.compile_seconds,
    }


def _grouped(p: Profiled, place: Callable[[HloOp], str]) -> list[dict[str, Any]]:
    """Rows of one table, most measured seconds first."""
    compiled = {row.op.op.id: row.per_step for row in p.timeline.rows} if p.timeline else None
    rows: dict[str, dict[str, Any]] = {}
    for found in p.measured.ops:
        op = found.op.op
        row = rows.setdefault(
            place(found.op),
            {"measured": 0.0, "compiled": None, "flops": 0.0, "hbm_bytes": 0.0, "ops": 0},
        )
        row["measured"] += found.seconds
        row["flops"] += float(sum(map(float, op.flops.values()))) * float(op.count)
        row["hbm_bytes"] += float(op.hbm_bytes) * float(op.count)
        row["ops"] += 1
        if compiled is not None:
            row["compiled"] = (row["compiled"] or 0.0) + compiled[op.id]
    order = sorted(rows.items(), key=lambda pair: -pair[1]["measured"])
    return [{"where": where, **row} for where, row in order[:SHOWN]]


def _by_class(p: Profiled) -> list[dict[str, Any]]:
    """By op class, with what the planner says; a class that only the planner has comes last."""
    rows = _grouped(p, lambda item: item.op.op_class)
    said = dict(p.predicted["by_class"]) if p.predicted else {}
    for row in rows:
        row["predicted"] = said.pop(row["where"], 0.0) if p.predicted else None
    empty = {"measured": 0.0, "compiled": 0.0 if p.timeline else None}
    more = {"flops": 0.0, "hbm_bytes": 0.0, "ops": 0}
    rows += [{"where": k, **empty, **more, "predicted": s} for k, s in said.items() if s]
    return rows


def trace_result(trace: Trace) -> dict[str, Any]:
    """A capture alone: what its own events say of the module of most seconds."""
    name = next(iter(trace.modules))
    found = trace.of(name)
    runs = len(found.spans)

    def rows(place: Callable[[TraceOp], str]) -> list[dict[str, Any]]:
        spent = _sums((place(op), op.own / runs) for op in found.ops)
        return [{"where": where, "measured": s} for where, s in list(spent.items())[:SHOWN]]

    return {
        "module": name,
        "modules": trace.modules,
        "devices": found.devices,
        "runs": runs / found.devices,
        "step_seconds": {"traced": median(found.spans.values())},
        "by_class": rows(lambda op: op.category or opcode_of(op.name)),
        "by_line": rows(lambda op: op.source or "(not in the capture)"),
        "by_scope": rows(lambda op: scope_of(op.op_name).split("/")[0] or "(no scope)"),
        "by_op": rows(lambda op: op.name),
    }


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, seconds in pairs:
        found[name] = found.get(name, 0.0) + seconds
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def _op_row(m: MeasuredOp) -> list[Any]:
    item = m.op
    where = (item.op.op_class, item.scope, source_of(item), item.op.count)
    return [item.name, *where, m.events, m.seconds]


OPS = ("op", "class", "scope", "source", "count", "events", "seconds")


def write_profile(folder: Path, p: Profiled, doc: Mapping[str, Any]) -> list[str]:
    """Keep the document, a table of all ops and the compiled text beside the capture's files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadRequest(f"cannot write '{folder}': {error.strerror}; give another --out") from None
    write_text(folder / "profile.json", to_json(finite(doc)[0]), option="--out")
    write_text(folder / "program.hlo.txt", p.hlo, option="--out")
    write_table(folder / "ops.csv", OPS, map(_op_row, p.measured.ops), option="--out")
    return ["profile.json", "program.hlo.txt", "ops.csv"]

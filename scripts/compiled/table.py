"""The rows of docs/lab/compiled.json and the page made of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from made import made, table

from compiled.plans import Serve, Train
from compiled.programs import Case, predicted_memory, predicted_seconds
from shardwise.commands.program.compiling import planned_lines
from shardwise.models import load_model
from shardwise.plans.train import mesh_text
from shardwise.profiler.collectives.added import ADDED
from shardwise.profiler.collectives.lines import read_lines
from shardwise.profiler.collectives.rules import RULES, compare
from shardwise.profiler.collectives.served import SERVED
from shardwise.profiler.timeline import HloTimeline
from shardwise.units import format_seconds

EQUAL = 0.01
"""Bytes that no rule explains, over those that the plan has, up to which its list is the program's:
shards that padding makes uneven."""
NEAR = 0.1
AROUND = (0.85, 1.15)
"""A compiled peak over the usable HBM, from and to which "fits" is put to the test."""
CLOSE = 0.05
"""From the usable HBM, of a peak that is nearly it."""
GOALS: Mapping[str, tuple[float, float]] = {
    "train": (0.85, 1.20),
    "decode": (0.80, 1.30),
    "prefill": (0.80, 1.30),
}
"""Compiled over predicted seconds that 80 % of the plans of a phase are to be within."""
SLOWER = 0.02
"""Of the seconds of a plan's program at the commit before, by which today's is named slower."""

PAGE = """# Plans through the real compiler

Made by `python scripts/compiled_plans.py` on {date} at {commit} with {versions}:
{plans} plans of published models at full depth, compiled for TPUs that are not here, at the
compiler's own effort. All figures are of one device and one step; `compiled.json` has them all. The
plans were chosen by hand, to cover every strategy; those of [compiled_drawn.md](compiled_drawn.md)
were drawn by a seed.{renewed}

- **Collectives** (kind, axes, bytes per step) of {listed} plans: as written {raw},
  {raw_rate:.0%}, are as planned for our software and XLA (with what our runtime moves beside the
  plan's list, below), after the compiler's rewrites {equal}, {equal_rate:.0%}, each with at most
  {least:.0%} of the bytes otherwise. By bytes {raw_bytes:.0%} are as written (median).
  Of the {roomy} that take at most {roomy_share:.0%} of the HBM {roomy_equal} are, {roomy_rate:.0%}.
- **Peak memory** of {fitting} plans that fit as compiled: {near} predicted within 10 %,
  {near_rate:.0%}; error from {lowest:+.1%} to {highest:+.1%}, median of its size {error:.1%};
  {below} below by more than 10 %.
- **"Fits"**: of {around} plans whose compiled peak is 85 to 115 % of the usable HBM ({under} below
  it, {over} above; {close} within 5 % of it) the plan says as the compiler does in {same}.
- **Seconds**, compiled over predicted: {seconds}.
- **Since {commit_before}**, whose programs of {plans_before} of these plans take {before} a step
  in sum: they take {now}, {change:+.0%}; {slower}.{uncounted}
"""


MOVED = """Lines that follow from the model and the mesh; they are added to the list, and the
program must have them."""
SECONDS = """As the prices of our own software predict (docs/lab/fit_jax.md and
docs/lab/fit_jax_serving.md), and by the compiler's schedule (`shardwise compile`); `cycles` is the
share of the schedule that the compiler itself has estimated, the rest (collectives, copies, kernels
of Pallas) is priced by shardwise. Before: of the program that commit {commit} had for the plan,
compiled on {date} with the same compiler and read by the same reader."""
HEADER = ("plan", "model", "slice", "mesh", "sequences x tokens", "peak predicted", "compiled")
MORE = ("error", "of usable HBM", "fits: plan / compiler", "collectives as written", "left")


def row_of(name: str, row: Train | Serve, case: Case) -> dict[str, Any]:
    """What the table holds of one plan; bytes and seconds."""
    compiled, phase = case.program.compiled, case.program.phase
    usable, needed = compiled.capacity_bytes, compiled.needed_bytes
    return {
        "name": name,
        "model": row.model,
        "slice": compiled.slice,
        "mesh": dict(row.mesh),
        "phase": phase,
        "sequences": row.sequences,
        "tokens": row.tokens,
        "choices": dict(row.choices) if isinstance(row, Train) else {"weights": row.weights},
        "key": compiled.key,
        "memory": {
            **predicted_memory(case.plan, phase, needed, usable),
            "compiled": needed,
            "usable": usable,
            "fits_compiled": compiled.fits,
            "refused": bool(compiled.refusal),
        },
        "collectives": _collectives(case),
        "step_seconds": {
            **predicted_seconds(case.plan, phase),
            "compiled": case.program.timeline and case.program.timeline.expected,
            "cycles": _cycles(case.program.timeline),
        },
        "compile_cpu_seconds": compiled.seconds.get("cpu", 0.0),
    }


def _cycles(line: HloTimeline | None) -> float | None:
    """The share of a step's seconds that are the compiler's own estimate."""
    if line is None:
        return None
    own = sum(row.per_step for row in line.rows if row.op.cycles and row.op.op.stream == "compute")
    return own / line.expected


def _collectives(case: Case) -> dict[str, Any] | None:
    """Both lists by kind and axes, and what is left; None for a program that was refused, whose
    loops may not be as they would run."""
    compiled = case.program.compiled
    if compiled.refusal:
        return None
    cfg = load_model(case.plan.model)
    lists = planned_lines(case.priced, case.program.phase), read_lines(compiled.hlo, case.plan)
    found = compare(case.plan, cfg, *lists)
    planned = sum(row.planned[1] for row in found.rows)
    return {
        "rows": [
            {
                "kind": row.kind,
                "axes": list(row.axes),
                "planned": row.planned[1],
                "compiled": row.compiled[1],
                "planned_left": row.planned_left,
                "compiled_left": row.compiled_left,
            }
            for row in found.rows
        ],
        "rules": sorted({note.rule for note in found.explained if note.rule in RULES}),
        "raw_bytes": found.raw_match,
        "raw_equal": found.raw_match >= 1 - EQUAL,
        "left": found.left,
        "equal": found.left <= EQUAL * planned,
    }


def ratio(row: Mapping[str, Any]) -> float:
    """Compiled over predicted seconds."""
    return row["step_seconds"]["compiled"] / row["step_seconds"]["predicted"]


def seconds_of(rows: Sequence[Mapping[str, Any]], phase: str) -> dict[str, Any]:
    """Of a phase's programs: how many have seconds, how many of them are within the goal, and the
    median of compiled over predicted."""
    low, high = GOALS[phase]
    found = [
        ratio(r)
        for r in rows
        if r["phase"] == phase and r["step_seconds"]["compiled"] and r["memory"]["fits_compiled"]
    ]
    within = sum(low <= one <= high for one in found)
    return {"plans": len(found), "within": within, "median": median(found) if found else None}


def summary_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measures over all rows."""
    moved = [row["collectives"] for row in rows if row["collectives"] is not None]
    roomy = [
        row["collectives"]
        for row in rows
        if row["collectives"] is not None
        and row["memory"]["compiled"] <= (1 - CLOSE) * row["memory"]["usable"]
    ]
    fitting = [row["memory"] for row in rows if row["memory"]["fits_compiled"]]
    errors = [memory["error"] for memory in fitting]
    low, high = AROUND
    around = [
        m for m in (row["memory"] for row in rows) if low <= m["compiled"] / m["usable"] <= high
    ]
    return {
        "collectives": {
            "plans": len(moved),
            "raw_equal": sum(one["raw_equal"] for one in moved),
            "equal": sum(one["equal"] for one in moved),
            "raw_bytes_median": median(one["raw_bytes"] for one in moved),
            "roomy": len(roomy),
            "roomy_equal": sum(one["equal"] for one in roomy),
        },
        "memory": {
            "plans": len(errors),
            "near": sum(abs(error) <= NEAR for error in errors),
            "below": sum(error < -NEAR for error in errors),
            "lowest": min(errors),
            "highest": max(errors),
            "median": median(map(abs, errors)),
        },
        "fits": {
            "plans": len(around),
            "under": sum(m["fits_compiled"] for m in around),
            "over": sum(not m["fits_compiled"] for m in around),
            "close": sum(abs(m["compiled"] / m["usable"] - 1) <= CLOSE for m in around),
            "same": sum(m["fits_compiled"] == m["fits_predicted"] for m in around),
        },
        "seconds": {phase: seconds_of(rows, phase) for phase in GOALS},
    }


def page(doc: Mapping[str, Any], *more: str) -> str:
    """docs/lab/compiled.md of docs/lab/compiled.json, with more sections below."""
    moved, memory, fits = (doc["summary"][name] for name in ("collectives", "memory", "fits"))
    parts = [
        PAGE.format(
            plans=len(doc["rows"]),
            date=doc["date"],
            commit=doc["commit"],
            versions=", ".join(f"{name} {version}" for name, version in doc["versions"].items()),
            renewed=_renewed(doc["renewed"]),
            listed=moved["plans"],
            raw=moved["raw_equal"],
            raw_rate=moved["raw_equal"] / moved["plans"],
            equal=moved["equal"],
            equal_rate=moved["equal"] / moved["plans"],
            least=EQUAL,
            raw_bytes=moved["raw_bytes_median"],
            roomy=moved["roomy"],
            roomy_share=1 - CLOSE,
            roomy_equal=moved["roomy_equal"],
            roomy_rate=moved["roomy_equal"] / moved["roomy"],
            fitting=memory["plans"],
            near=memory["near"],
            near_rate=memory["near"] / memory["plans"],
            lowest=memory["lowest"],
            highest=memory["highest"],
            error=memory["median"],
            below=memory["below"],
            around=fits["plans"],
            under=fits["under"],
            over=fits["over"],
            same=fits["same"],
            close=fits["close"],
            seconds="; ".join(_within(p, one) for p, one in doc["summary"]["seconds"].items()),
            **_since(doc["rows"], doc["base"]),
        ),
        "## Plans",
        _table(doc["rows"]),
        "## Seconds",
        SECONDS.format(**doc["base"]),
        _seconds(doc["rows"], doc["base"]["seconds"]),
        "## The compiler's rewrites",
        "\n".join(
            f"- **{rule}** ({_used(doc['rows'], rule)} plans): {text}."
            for rule, text in RULES.items()
        ),
        "## What our runtime moves beside the plan's list",
        MOVED,
        "\n".join(f"- **{name}**: {text}." for name, text in {**ADDED, **SERVED}.items()),
        "## What is left",
        _left(doc["rows"]) or "Nothing.",
        *more,
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _renewed(later: Sequence[Mapping[str, Any]]) -> str:
    """Which rows are of a later commit than the others."""
    return "".join(
        f"\nMade later, on {one['date']} at {one['commit']}, without making the others anew: "
        f"{'; '.join(one['rows'])}."
        for one in later
    )


def _used(rows: Sequence[Mapping[str, Any]], rule: str) -> int:
    found = Counter(
        rule for row in rows if row["collectives"] for rule in row["collectives"]["rules"]
    )
    return found[rule]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = (*HEADER, *MORE)
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        m, moved = row["memory"], row["collectives"]
        said, got = ("yes" if m[name] else "no" for name in ("fits_predicted", "fits_compiled"))
        both = (f"{moved['raw_bytes']:.0%}", _share(moved)) if moved else ("", "")
        cells = (
            *(row["name"], row["model"], row["slice"], mesh_text(row["mesh"])),
            f"{row['sequences']:,} x {row['tokens']:,}",
            *(f"{m[name] / 2**30:.2f} GiB" for name in ("predicted", "compiled")),
            *(f"{m['error']:+.1%}", f"{m['compiled'] / m['usable']:.0%}", f"{said} / {got}", *both),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _within(phase: str, one: Mapping[str, Any]) -> str:
    low, high = GOALS[phase]
    return (
        f"{phase} within {low:.2f} to {high:.2f} in {one['within']} of {one['plans']} "
        f"(median {one['median']:.2f})"
    )


def _since(rows: Sequence[Mapping[str, Any]], base: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of the programs that both commits have, and which of today's are slower."""
    before = base["seconds"]
    both = {
        row["name"]: (before[row["name"]], row["step_seconds"]["compiled"])
        for row in rows
        if row["name"] in before and row["memory"]["fits_compiled"]
    }
    old, new = (sum(pair[i] for pair in both.values()) for i in (0, 1))
    slower = [f"{name} {b / a - 1:+.0%}" for name, (a, b) in both.items() if b > (1 + SLOWER) * a]
    return {
        "commit_before": base["commit"],
        "plans_before": len(both),
        "before": format_seconds(old),
        "now": format_seconds(new),
        "change": new / old - 1 if old else 0.0,
        "slower": f"slower by more than {SLOWER:.0%}: {', '.join(slower) or 'none'}",
        "uncounted": _uncounted(base.get("uncounted", {})),
    }


def _uncounted(shares: Mapping[str, float]) -> str:
    """Programs of before that cannot be compared."""
    said = ", ".join(f"{name} ({share:.0%})" for name, share in shares.items())
    text = f"""
  Left out, since the text of its program does not say how often a loop runs, so that it lacks
  planned FLOPs (the share that is there): {said}."""
    return text if shares else ""


def _seconds(rows: Sequence[Mapping[str, Any]], before: Mapping[str, float]) -> str:
    """Predicted and compiled seconds of every program."""
    names = ("plan", "slice", "chip's rates", "predicted", "compiled", "compiled / predicted")
    return table(
        (*names, "cycles", "before"),
        (
            (
                *(row["name"], row["slice"]),
                *(_said(row["step_seconds"].get(n)) for n in ("roofline", "predicted", "compiled")),
                *(f"{ratio(row):.2f}", f"{row['step_seconds']['cycles']:.0%}"),
                _said(before.get(row["name"])),
            )
            for row in rows
            if row["step_seconds"]["compiled"] and row["memory"]["fits_compiled"]
        ),
    )


def _said(seconds: float | None) -> str:
    return format_seconds(seconds) if seconds else ""


def _share(moved: Mapping[str, Any]) -> str:
    planned = sum(row["planned"] for row in moved["rows"])
    return f"{moved['left'] / planned:.2%}" if planned else "0"


def _left(rows: Sequence[Mapping[str, Any]]) -> str:
    """Kind and axes of what no rule explains, where it is more than may be."""
    lines = []
    for row in rows:
        moved = row["collectives"]
        if moved is None or moved["equal"]:
            continue
        for one in moved["rows"]:
            planned, compiled = one["planned_left"], one["compiled_left"]
            if max(planned, compiled) > 1e6:
                lines.append(
                    f"- {row['name']}: {one['kind']} over {'+'.join(one['axes'])}, planned "
                    f"{planned / 1e6:,.1f} MB, compiled {compiled / 1e6:,.1f} MB"
                )
    return "\n".join(lines)


def later(before: list[dict], names: list[str]) -> list[dict]:
    """What was made after the table, each row once."""
    kept = [{**one, "rows": [n for n in one["rows"] if n not in names]} for one in before]
    return [*(one for one in kept if one["rows"]), {**made(), "rows": names}]

"""The rows of docs/lab/planned.json, and docs/lab/planned.md made of them and of what is planned
now.

A row holds one plan's compiled step as it was read: every array of its collectives in order. Lines
that are the same are written once, and `order` says where each stands.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from planned_steps.changes import noticed
from planned_steps.plans import small_plans
from planned_steps.steps import CompiledStep, planned_lines, planned_state

from shardwise.plans.files import plan_dict
from shardwise.plans.train import TrainPlan, mesh_text
from shardwise.profiler.collectives.added import ADDED
from shardwise.profiler.collectives.lines import Line
from shardwise.profiler.collectives.rules import RULES, Comparison, compare, is_counted

SCHEMA = 1
FIELDS = tuple(field.name for field in fields(Line))
SHORT = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR", "all_to_all": "A2A",
         "ragged_all_to_all": "ragged A2A", "permute": "permute"}  # fmt: skip


ABOUT = """Made by `python scripts/planned.py` on {date} at {commit} with
{versions}: the runtime's own `train_step`, compiled for {topology} (8 devices) at low
effort without windowed einsums; `planned.json` has every array of it. State counts the
bytes of parameters and optimizer per device. In a pipeline, the state and both lists are those of
the last rank, which holds the head. V is that of `work.Collective`, added up by kind and axes over
a step. Raw is the share of bytes that both lists have for the same kind and axes, with the
program's collectives as written. Left counts the bytes of either list that no rule explains; the
plan's list includes what our runtime adds to it.

Noticed counts the single changes that this check detects, out of all that were tried. A change
removes an array of the program's collectives, runs it once less or doubles it, or removes a line of
the plan. Integers and sums of one number are left out, because the compiler chooses how many it
has. They are set aside up to a bound (below); the last column has their bytes. Everything here
holds for these plans. Some other plans leave bytes (docs/lab/log.md)."""


BESIDE = """Not the compiler's doing but our layouts': bytes that follow from the model and the mesh
and are added to the plan's list, so that the program must have exactly these."""


# Rows ---------------------------------------------------------------------------------------------


def row_of(name: str, plan: TrainPlan, got: CompiledStep) -> dict[str, Any]:
    """One plan's step as plain values; bytes per device, and V in bytes of each array."""
    lines = list(dict.fromkeys(got.lines))
    at = {line: i for i, line in enumerate(lines)}
    return {
        "name": name,
        "plan": plan_hash(plan),
        "state": dict(got.state),
        "beside": dict(got.beside),
        "lines": [[getattr(line, field) for field in FIELDS] for line in lines],
        "order": [at[line] for line in got.lines],
    }


def step_of(row: Mapping[str, Any]) -> CompiledStep:
    """A row as `compiled_steps` gave it."""
    lines = [_line(dict(zip(FIELDS, values, strict=True))) for values in row["lines"]]
    return CompiledStep(
        lines=tuple(lines[i] for i in row["order"]), state=row["state"], beside=row["beside"]
    )


def _line(values: dict[str, Any]) -> Line:
    return Line(**{**values, "axes": tuple(values["axes"])})


def plan_hash(plan: TrainPlan) -> str:
    """Of all that the plan says, the hash of its model too."""
    text = json.dumps(plan_dict(plan), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def document(doc: Mapping[str, Any]) -> str:
    """The text of docs/lab/planned.json: a line of text for each line of a program."""
    head = json.dumps({key: value for key, value in doc.items() if key != "rows"}, indent=1)
    rows = ",\n".join(_row_text(row) for row in doc["rows"])
    return f'{head.removesuffix("}").rstrip()},\n "rows": [\n{rows}\n ]\n}}\n'


def _row_text(row: Mapping[str, Any]) -> str:
    parts = [f"  {json.dumps(key)}: {json.dumps(row[key])}" for key in row if key != "lines"]
    lines = ",\n".join(f"   {json.dumps(line)}" for line in row["lines"])
    return "  {\n" + ",\n".join([*parts, f'  "lines": [\n{lines}\n  ]']) + "\n  }"


# The page -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One plan's step beside the plan: `same`, its state to the byte; `noticed`, of the single
    changes how many are, and how many were tried."""

    name: str
    plan: TrainPlan
    got: CompiledStep
    same: bool
    compared: Comparison
    noticed: tuple[int, int]


def found_of(row: Mapping[str, Any]) -> Found:
    """A committed step beside what the plan of its name says now."""
    name, got = row["name"], step_of(row)
    plan, cfg = small_plans()[name]
    lists = planned_lines(plan, cfg), got.lines
    return Found(
        name=name,
        plan=plan,
        got=got,
        same=got.state == planned_state(plan, cfg, plan.degree("stage") - 1),
        compared=compare(plan, cfg, *lists),
        noticed=noticed(plan, cfg, *lists),
    )


def page(doc: Mapping[str, Any], beside: Callable[[Mapping[str, Any]], Found] = found_of) -> str:
    """The whole page; `beside` puts a row beside its plan."""
    found = [beside(row) for row in doc["rows"]]
    versions = ", ".join(f"{name} {number}" for name, number in doc["versions"].items())
    parts = [
        "# What is planned and what runs",
        ABOUT.format(**{**doc, "versions": versions}),
        summary(found),
        "## Rules",
        "\n".join(f"- **{rule}**: {text}." for rule, text in RULES.items()),
        "## What our runtime adds",
        BESIDE,
        "\n".join(f"- **{name}**: {text}." for name, text in ADDED.items()),
    ]
    for one in found:
        compared = one.compared
        parts += [f"## {one.name}", mesh_text(one.plan.mesh), lists(compared), notes(compared)]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(found: list[Found]) -> str:
    """One line per plan."""
    rows = [
        "| plan | mesh | state | as planned | raw | left after rules | noticed | set aside |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        size = sum(one.got.state.values())
        aside = sum(line.total for line in one.got.lines if not is_counted(line))
        rows.append(
            f"| {one.name} | {mesh_text(one.plan.mesh)} | {size:,.0f} | "
            f"{'yes' if one.same else 'NO'} | {one.compared.raw_match:.0%} | "
            f"{one.compared.left:,.0f} | {one.noticed[0]} of {one.noticed[1]} | {aside:,.0f} |"
        )
    return "\n".join(rows)


def lists(compared: Comparison) -> str:
    """Both lists by kind and axes."""
    rows = ["| kind | axes | planned | compiled | left |", "|---|---|---|---|---|"]
    for row in compared.rows:
        planned, compiled = (
            f"{size:,.0f} in {count:g}" if size else "-"
            for count, size in (row.planned, row.compiled)
        )
        left = " / ".join(f"{x:,.0f}" for x in (row.planned_left, row.compiled_left))
        left = "" if max(row.planned_left, row.compiled_left) <= 0.5 else left
        axes = ", ".join(row.axes)
        rows.append(f"| {SHORT[row.kind]} | {axes} | {planned} | {compiled} | {left} |")
    return "\n".join(rows)


def notes(compared: Comparison) -> str:
    """What the rules explained."""
    rows = [
        f"- {note.rule}: {', '.join(SHORT[k] for k in note.kinds)} over {', '.join(note.axes)}, "
        f"planned {note.planned:,.0f}, compiled {note.compiled:,.0f}"
        for note in compared.explained
    ]
    return "\n".join(rows)

"""docs/planned.md: what plans predict beside what their compiled steps have.

    python scripts/planned.py

Compiles the step of every plan of `workflows/planned_plans.py` for v5e:2x4 by libtpu (about ten
CPU seconds each; no TPU is needed) and writes the tables.
"""

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from shardwise.plans.train import TrainPlan, mesh_text
from shardwise.workflows.planned import Compiled, compiled_steps, planned_lines, planned_state
from shardwise.workflows.planned_plans import small_plans
from shardwise.workflows.planned_rules import RULES, Comparison, compare, is_counted, noticed
from shardwise.workflows.planned_runtime import ADDED

TOPOLOGY = "v5e:2x4"
PAGE = Path(__file__).parents[1] / "docs" / "planned.md"
SHORT = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR", "all_to_all": "A2A",
         "ragged_all_to_all": "ragged A2A", "permute": "permute"}  # fmt: skip


ABOUT = """Made by `python scripts/planned.py` on {date} with {versions}: the runtime's own
`train_step`, compiled for {topology} (8 devices) at low effort without windowed einsums. State is
bytes per device of parameters and optimizer. Of a pipeline both lists and the state are those of
the last rank, which holds the head. V is as in `work.Collective`, added up by kind and
axes over a step. Raw: bytes that both lists have for the same kind and axes, over those that either
has, with the program's collectives as they are written. Left: bytes of either list that no rule
explains, of the plan's with what our runtime adds to it.

Noticed: single changes after which something else is left, of all that were tried: every array of
the program's collectives gone, run once less, and there twice, and every line of the plan gone.
Integers and sums of one number are not among them: the compiler chooses how many it has. They are
set aside up to a bound (below), with the bytes here. All this is of these plans: of others
that were tried, some leave bytes (docs/log.md)."""


BESIDE = """Not the compiler's doing but our layouts': bytes that follow from the model and the mesh
and are added to the plan's list, so that the program must have exactly these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One plan's step beside the plan: `same`, its state to the byte; `noticed`, of the single
    changes how many are, and how many were tried."""

    name: str
    plan: TrainPlan
    got: Compiled
    same: bool
    compared: Comparison
    noticed: tuple[int, int]


def main() -> None:
    """Compile one plan after the other, then write the page."""
    found = []
    for name, (plan, cfg) in small_plans().items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        (got,) = compiled_steps([(plan, cfg)], TOPOLOGY)
        lists = planned_lines(plan, cfg), got.lines
        same = got.state == planned_state(plan, cfg, plan.degree("stage") - 1)
        made = Found(
            name=name,
            plan=plan,
            got=got,
            same=same,
            compared=compare(plan, cfg, *lists),
            noticed=noticed(plan, cfg, *lists),
        )
        found.append(made)
    PAGE.write_text(page(found), encoding="utf-8")


def page(found: list[Found]) -> str:
    """The whole page."""
    names = ("jax", "libtpu")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    parts = [
        "# What is planned and what runs",
        ABOUT.format(date=datetime.now(UTC).date(), versions=versions, topology=TOPOLOGY),
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


if __name__ == "__main__":
    main()

"""docs/planned.md: what plans predict beside what their compiled steps have.

    python scripts/planned.py

Compiles the step of every plan of `workflows/planned_plans.py` for v5e:2x4 by libtpu (about ten
CPU seconds each; no TPU is needed) and writes the tables.
"""

import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from shardwise.plans.train import TrainPlan, mesh_text
from shardwise.workflows.planned import Compiled, compiled_steps, planned_lines, planned_state
from shardwise.workflows.planned_plans import small_plans
from shardwise.workflows.planned_rules import RULES, Comparison, compare

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
explains."""


def main() -> None:
    """Compile one plan after the other, then write the page."""
    found = []
    for name, (plan, cfg) in small_plans().items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        (got,) = compiled_steps([(plan, cfg)], TOPOLOGY)
        compared = compare(plan, cfg, planned_lines(plan, cfg), got.lines)
        same = got.state == planned_state(plan, cfg, plan.degree("stage") - 1)
        found.append((name, plan, got, same, compared))
    PAGE.write_text(page(found), encoding="utf-8")


def page(found: list[tuple[str, TrainPlan, Compiled, bool, Comparison]]) -> str:
    """The whole page."""
    names = ("jax", "libtpu")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    parts = [
        "# What is planned and what runs",
        ABOUT.format(date=datetime.now(UTC).date(), versions=versions, topology=TOPOLOGY),
        summary(found),
        "## Rules",
        "\n".join(f"- **{rule}**: {text}." for rule, text in RULES.items()),
    ]
    for name, plan, _, _, compared in found:
        parts += [f"## {name}", mesh_text(plan.mesh), lists(compared), notes(compared)]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(found: list[tuple[str, TrainPlan, Compiled, bool, Comparison]]) -> str:
    """One line per plan."""
    rows = [
        "| plan | mesh | state | as planned | raw | left after rules |",
        "|---|---|---|---|---|---|",
    ]
    for name, plan, got, same, compared in found:
        size = sum(got.state.values())
        rows.append(
            f"| {name} | {mesh_text(plan.mesh)} | {size:,.0f} | {'yes' if same else 'NO'} | "
            f"{compared.raw_match:.0%} | {compared.left:,.0f} |"
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

"""Published plans beside those that shardwise finds for the same job: docs/lab/published_plans.md.

    python scripts/published_plans.py

Each plan of `audit:NAME` is priced on the slice named here and held against the best plan that
`plan train` finds there, both with the same software's constants.
"""

from datetime import date
from pathlib import Path

from made import table

from shardwise.commands.plan_train.against import (
    Against,
    against_plan,
    gain_text,
    published_plan,
    set_against,
)
from shardwise.commands.plan_train.against_page import figures, shown
from shardwise.commands.pricing.predict import plan_training, slower_text
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.plans.named import audit_about
from shardwise.plans.train import mesh_text
from shardwise.results.train import PricedPlan, priced_plan
from shardwise.units import format_seconds

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "lab" / "published_plans.md"
STACK = "megatron"
CASES = (("deepseek-v3-2048", "256*h100:8"), ("llama-3-405b-16k", "2048*h100:8"))

INTRO = """# Published plans beside shardwise's

Made by `scripts/published_plans.py` on {day}; do not edit by hand.

Each published plan is priced on the slice of the heading, and `shardwise plan train` searches the
same job: model, slice, batch and length. Both are priced with the constants fitted for {stack}
(docs/lab/fit.md), so that only choices differ; these are expected times, not measurements, and
their 80 % ranges are wider than many of the differences. "Theirs with ours" changes that one choice
of the published plan. A memory figure is the model's: that a plan fits says nothing about
fragmentation.
"""


def section(name: str, on: str) -> str:
    """One published plan on one slice."""
    plan = published_plan(f"audit:{name}")
    planning = plan_training(
        plan.model,
        on,
        batch=f"{plan.global_batch_sequences}seq",
        seq=plan.sequence_length,
        choices=TrainChoices(software="any", sets={"stack": STACK}),
    )
    found = set_against(planning, plan, f"audit:{name}")
    ours, theirs = priced_plan(planning.best), against_plan(found)
    command = (
        f"shardwise plan train --model {plan.model} --on '{on}' "
        f"--batch {plan.global_batch_sequences}seq --seq {plan.sequence_length} --for any "
        f"--set stack={STACK} --against audit:{name}"
    )
    lines = [f"## {plan.model} on {on}", "", f"`{command}`", "", audit_about(name), ""]
    lines += [headline(found), "", *(f"- {note}" for note in found.notes), ""]
    ranges = [span(ours), span(priced_plan(found.theirs))]
    meshes = [mesh_text(p.mesh) for p in (planning.best.plan, found.theirs.plan)]
    rows = [["mesh", *meshes], *figures(ours, theirs), ["80 % range of the step", *ranges]]
    lines += [table(["predicted", "shardwise", "published"], rows), ""]
    rows = [[r.field, shown(r.ours), shown(r.theirs), gain_text(r)] for r in found.differences]
    lines += [table(["choice", "shardwise", "published", "theirs with ours"], rows), ""]
    return "\n".join([*lines, *(f"- {reason}" for reason in found.reasons), ""])


def headline(found: Against) -> str:
    """How far apart they are."""
    slower = found.times_slower
    told = slower_text(slower) if slower >= 1 else f"{1 - slower:.1%} faster"
    return f"The published plan is {told} than the best one found."


def span(result: PricedPlan) -> str:
    """The 80 % range of the expected step, where there is one."""
    found = result.expected_80
    if found is None:
        return "unknown"
    return f"{format_seconds(found.low)} to {format_seconds(found.high)}"


def main() -> None:
    intro = INTRO.format(day=date.today(), stack=STACK)
    OUT.write_text("\n".join([intro, *(section(*case) for case in CASES)]), encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""docs/legality.md, from the tables that the search, exports and servers apply.

python scripts/legality.py > docs/legality.md
"""

import sys

from shardwise.planner.search.legality import COLUMN_RULES, MESH_RULES, STRUCTURE_RULES, Rule
from shardwise.plans.paged_kernel import KERNEL_LAWS
from shardwise.plans.software import SOFTWARE, SoftwareRow

PLACEMENT_RULES: tuple[Rule, ...] = (
    Rule(
        name="devices",
        kind="law",
        rule="the degrees multiply to the devices of the part of the slice in use",
        reason="every device has one place in the mesh; a part is the whole slice, or the slice "
        "rounded down to multiples of 2, 4, 8 and so on along each physical axis",
    ),
    Rule(
        name="placement",
        kind="law",
        rule="some placement puts every axis on whole factors of the physical axes",
        reason="a mesh axis must have links to run its collectives on",
    ),
    Rule(
        name="distinct_placement",
        kind="scope",
        rule="a second placement is tried if it gives some axis other links",
        reason="otherwise it is the same plan",
    ),
    Rule(
        name="offload",
        kind="scope",
        rule="remat 'offload' is tried if the catalogue has the host link",
        reason="without its bandwidth the time of copies is unknown; a request for it alone is an "
        "error",
    ),
)
"""Rules that the search keeps by what it looks at, without a mask."""


def table() -> tuple[Rule, ...]:
    """All rules in the order in which the search applies them."""
    return (*PLACEMENT_RULES[:1], *MESH_RULES, *COLUMN_RULES, *PLACEMENT_RULES[1:],
            *STRUCTURE_RULES)  # fmt: skip


def document() -> str:
    """The table as docs/legality.md."""
    rows = "\n".join(
        f"| `{r.name}` | {r.kind} | {r.rule} | {r.reason}{f' ({r.source})' if r.source else ''} |"
        for r in table()
    )
    return DOCUMENT.format(
        rows=rows,
        software="\n".join(map(_software, SOFTWARE.values())),
        kernel="\n".join(f"| `{law.name}` | {law.rule} | {law.reason} |" for law in KERNEL_LAWS),
    )


def _software(row: SoftwareRow) -> str:
    """What one program cannot run, a line for each limit."""
    lines = [f"| `{limit.field}` | {limit.rule} |" for limit in row.limits]
    return "\n".join([f"| **{row.title}** (`--for {row.name}`) | |", *lines])


DOCUMENT = """# Which training plans the search tries

Made by `python scripts/legality.py > docs/legality.md` from the table that the
search itself applies (`src/shardwise/planner/search/legality.py`). A *law* comes from the model,
the hardware or the schedule: a plan that breaks it cannot run, or is the same as another plan.
A *scope* rule bounds the search. A plan file may break it, and `plan show` still prices the plan.

| rule | kind | the search tries a plan if | because |
|---|---|---|---|
{rows}

A plan that breaks no rule is *legal*. A *candidate* is a legal plan with computed memory and all
three bounds of its step time. Memory is not a rule: a plan that does not fit is still a candidate.

## What each program runs

A search `--for` a program tries only plans that the program runs. `shardwise export` refuses plans
by the same limits (`src/shardwise/plans/software/`). A choice without effect breaks no limit.

| choice | limit |
|---|---|
{software}

## Where a server's attention is JAX's kernel

If all of these hold, JAX's Pallas kernel of ragged pages computes the layer's attention
(`src/shardwise/plans/paged_kernel.py`). Otherwise our own kernel reads the pages on TPUs
(`src/shardwise/runtime/attention/paged_softmax.py`), another one on GPUs (`paged_triton.py`), and
XLA gathers them elsewhere. `shardwise compile` of a serving plan says which one runs.

| rule | holds where | because |
|---|---|---|
{kernel}
"""


if __name__ == "__main__":
    sys.stdout.write(document())

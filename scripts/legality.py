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
        reason="every device of it has one place in the mesh; parts are the whole slice, and it "
        "rounded down to multiples of 2, 4, 8 and so on along each physical axis",
    ),
    Rule(
        name="placement",
        kind="law",
        rule="some way of placing lays every axis on whole factors of the physical axes",
        reason="a mesh axis must have links to run its collectives on",
    ),
    Rule(
        name="distinct_placement",
        kind="scope",
        rule="a second way of placing is looked at where it gives some axis other links",
        reason="else it is the same plan under another name",
    ),
    Rule(
        name="offload",
        kind="scope",
        rule="remat 'offload' is looked at where the catalogue knows the host link",
        reason="without its bandwidth the copies have no time; asked for alone it is an error",
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


DOCUMENT = """# Which training plans the search looks at

Made by `python scripts/legality.py > docs/legality.md` from the table that the
search itself applies (`src/shardwise/planner/search/legality.py`). A *law* is one of the model, the
hardware or the schedule: a plan that breaks it is refused, or is another plan under a second name.
A *scope* rule bounds the search; a plan file may go beyond it, and `shardwise plan show` prices it.

| rule | kind | a plan is looked at if | because |
|---|---|---|---|
{rows}

A plan that breaks none is *legal*; a legal plan with memory and all three bounds of its step time
computed is a *candidate*. Memory is no rule: a candidate that does not fit is one all the same.

## What each program runs

A search `--for` a program looks at what it runs alone, by the same limits as `shardwise export`
refuses a plan (`src/shardwise/plans/software/`); a choice that makes no difference breaks none.

| choice | limit |
|---|---|
{software}

## Where a server's attention is JAX's kernel

Where all of this holds, a layer is served by JAX's Pallas kernel of ragged pages
(`src/shardwise/plans/paged_kernel.py`). Pages of others are read by our own kernel on TPUs
(`src/shardwise/runtime/attention/paged_softmax.py`), by another on GPUs (`paged_triton.py`), and
gathered by XLA elsewhere. `shardwise compile` of a serving plan says which.

| rule | holds where | because |
|---|---|---|
{kernel}
"""


if __name__ == "__main__":
    sys.stdout.write(document())

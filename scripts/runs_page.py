#!/usr/bin/env python3
"""docs/runs.md: the format of a table of measured training runs, from its columns.

python scripts/runs_page.py > docs/runs.md
"""

import sys

from shardwise.evidence.training.table import NEEDED, RunRow

SECTIONS = {
    "id": "Name, source and fit",
    "model": "The model",
    "hardware": "The machine",
    "dp": "The plan",
    "stack": "The software",
    "step_seconds": "What was measured",
}
"""The first column of each part of the page."""


def page() -> str:
    """The format as docs/runs.md."""
    required = ", ".join(f"`{name}`" for name in NEEDED)
    lines = [PAGE.format(required=required).rstrip()]
    for name, field in RunRow.model_fields.items():
        if name in SECTIONS:
            lines += ["", f"## {SECTIONS[name]}", "", "| column | meaning |", "|---|---|"]
        lines.append(f"| `{name}` | {field.description} |")
    return "\n".join(lines) + "\n"


PAGE = """# The table of measured training runs

Made by `python scripts/runs_page.py > docs/runs.md`; the JSON Schema of a row is
`docs/runs.schema.json`. `shardwise validate FILE.csv` predicts every run of a table on its own plan
and compares the step times. Use it with the logs of your own cluster. The 772 published runs that
ship with shardwise have this format (`src/shardwise/evidence/training/data/training_runs.csv`).

One row is one run. Leave a cell empty if you do not know the fact. A rule then fills it, the same
for every row, and `validate --json` lists it under `inferred`. A warning names columns that are not
in this list. A row with an invalid value is left out, with its line and the reason. Two rows with
one `id` are an error. Every table needs either `step_seconds` or `metric` with `value`, and
{required}.

## A few runs of your own as evidence

`--evidence RUNS.csv` takes a few rows of your own cluster (`plan train`, `plan show`, `plan sweep`,
`validate`). shardwise predicts each row as it ran. The error corrects every answer about similar
plans and narrows their range. The correction is the mean error of similar rows, shrunk towards
zero:

    shardwise plan train --model llama-3-8b --on 16*a100:8 --batch 1Mi --seq 4096 \\
      --for torchtitan --evidence own.csv

    step      2 s (8 of 10 runs: 1.52 to 2.53 s); 525k tokens/s, MFU 63.4 % of the bf16 peak
    evidence  from 3 runs of own.csv: 13.8 % faster than published runs suggest; range narrowed from
              (1.71 to 3.02 s) to (1.52 to 2.53 s)

The weight of a row for a plan is a product over the features that differ between them (chip,
software, kernels, year, precision, dense or routed, ...). Rows on another vendor's chips have no
weight, and the answer says so. Rows of one configuration count as one. If rows disagree, the range
is wider; an outlier has little effect.

In JSON, `expected_80.evidence` has the table, its `rows`, how many are `like` the plan, the ratio
of the step time to that without them (`times`), and the range without them (`low`, `high`). The
breakdown of the step shows the correction in a separate line ("as in your runs"), because rows
do not say which part of the step took the time.

`validate TABLE.csv --evidence RUNS.csv` corrects every run of the table. If a run is also in
RUNS.csv (`validate RUNS.csv --evidence RUNS.csv`), only the other rows there correct it, without
its own configuration. So its error is that of an unseen run. If a row cannot be priced, the command
stops and names its line (exit code 2). docs/lab/fit.md shows how much three runs of a publisher
help with its other runs."""


if __name__ == "__main__":
    sys.stdout.write(page())

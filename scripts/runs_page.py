#!/usr/bin/env python3
"""docs/runs.md: the format of a table of measured training runs, from its columns.

python scripts/runs_page.py > docs/runs.md
"""

import sys

from shardwise.evidence.training.table import NEEDED, RunRow

SECTIONS = {
    "id": "What it is, for people and for the folds of a fit",
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
            lines += ["", f"## {SECTIONS[name]}", "", "| column | what it is |", "|---|---|"]
        lines.append(f"| `{name}` | {field.description} |")
    return "\n".join(lines) + "\n"


PAGE = """# The table of measured training runs

Made by `python scripts/runs_page.py > docs/runs.md`; the JSON Schema of a row is
`docs/runs.schema.json`. `shardwise validate FILE.csv` prices every run of such a table on its own
plan and compares the step times: use it with the logs of your own cluster. The 772 published runs
that come with shardwise are one (`src/shardwise/evidence/training/data/training_runs.csv`).

One row is one run. An empty cell is a fact that the source leaves open: a rule on structure then
chooses, the same for every row, and `validate --json` lists it under `inferred`. A column that is
not listed here is named in a warning; a value that a column does not take leaves its row out, with
its line and the reason. Two rows with one `id` are refused. Every table needs either `step_seconds`
or `metric` with `value`, and {required}.

## A few runs of your own as evidence

`--evidence RUNS.csv` takes a few rows of your own cluster (`plan train`, `plan show`, `plan sweep`,
`validate`). Each is priced as it ran; the error of its prediction moves every answer about similar
plans and narrows their range. The move is the mean error of similar rows, drawn towards zero:

    shardwise plan train --model llama-3-8b --on 16*a100:8 --batch 1Mi --seq 4096 \\
      --for torchtitan --evidence own.csv

    step      2 s (8 of 10 runs: 1.52 to 2.53 s); 525k tokens/s, MFU 63.4 % of the bf16 peak
    evidence  from 3 runs of own.csv: 13.8 % faster than published runs suggest; range narrowed from
              (1.71 to 3.02 s) to (1.52 to 2.53 s)

The weight of a row for a plan is a product over the features that differ between them (chip,
software, kernels, year, precision, dense or routed, ...). Rows on another vendor's chips have no
weight, and the answer says so. Rows of one configuration are one look at it. Rows that differ among
themselves widen the range; one that lies far from the others moves little.

JSON has
`expected_80.evidence`: the table, its `rows`, how many are `like` the plan, the step over that
without them (`times`), and the range without them (`low`, `high`). The breakdown of the step has a
line of its own for it ("as your runs took"), because the rows do not show where they lost or saved
the time.

`validate TABLE.csv --evidence RUNS.csv` moves every run of the table. A run that is in
RUNS.csv, too (`validate RUNS.csv --evidence RUNS.csv`), is moved by the others there, itself and
those of its configuration left out: its error is that of a run not seen. A row that cannot be
priced ends the command with its line (exit code 2). docs/lab/fit.md has what three runs of a
publisher tell of its others, left out."""


if __name__ == "__main__":
    sys.stdout.write(page())

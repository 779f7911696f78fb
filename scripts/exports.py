#!/usr/bin/env python3
"""The default answers of `plan train` and `plan serve` as files for their programs:
docs/lab/exports.md and .json.

    scripts/exports.py [--half training|serving] [--only MODEL] [--slice SLICE] [--files] [--page]

For ten models on six slices: the default plan and what runs it, its export read back with the
comments stripped, and its price beside that of `--for any`. Whether the program's own parser took
the file is in docs/lab/exports_checked.json (`scripts/check_exports.py`); until it did, its flags
are held against plans/data/software/flags.json. The serving half (`exports_serving.py`) is kept row
by row: a run that was cut off goes on where it stood, unless --again is given.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from math import inf
from pathlib import Path
from typing import Any

import exports_serving
from exports_serving import stripped
from exports_unsaid import UNSAID, lost_on_the_way

from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.errors import BadRequest, NoFeasiblePlan
from shardwise.hardware import parse_slice
from shardwise.models import load_model
from shardwise.planner.export import export_plan, parse_export
from shardwise.planner.training import plan_train
from shardwise.plans import TrainPlan
from shardwise.plans.files import plan_dict, plan_from
from shardwise.plans.software import SOFTWARE
from shardwise.plans.train import mesh_text
from shardwise.units import format_seconds

DOCS = Path(__file__).resolve().parents[1] / "docs" / "lab"
PAGE, TABLE, CHECKED = DOCS / "exports.md", DOCS / "exports.json", DOCS / "exports_checked.json"
MODELS = (
    *("llama-3-8b", "llama-3-70b", "llama-3.1-405b", "mistral-7b-v0.3", "qwen2.5-7b"),
    *("qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3"),
)
SLICES = ("v5e:16x16", "v5p:8x8x8", "v6e:16x16", "tpu7x:4x4x8", "32*h100:8", "16*b200:8")
BATCH, LENGTH = "4Mi", 8192
ASKED_ON = "32*h100:8"


def row_of(model: str, on: str, asked: str | None = None) -> dict[str, Any]:
    """What the default answer is, or that for the program that was asked for, and how its file
    fares."""
    row: dict[str, Any] = {"model": model, "slice": on, "asked": asked}
    try:
        plan, seconds, any_seconds = planned(model, on, asked)
    except (NoFeasiblePlan, BadRequest) as error:
        return row | {"miss": str(error).split(":")[0]}
    row |= {
        "software": plan.software,
        "seconds": seconds,
        "any_seconds": any_seconds,
        "plan": plan_dict(plan),
    }
    return row | fate(plan)


def planned(model: str, on: str, software: str | None) -> tuple[TrainPlan, float, float]:
    """The plan for a program, the usual one where none is named, its expected seconds, and those of
    the best plan that the program need not run, priced with the same stack and dtypes."""
    choices = TrainChoices(software=software)
    planning = plan_training(model, on, batch=BATCH, seq=LENGTH, top=0, choices=choices)
    free = plan_train(replace(planning.request, software=None, better_than=inf), top=0)
    seconds = [p.best.step_seconds.expected for p in (planning, free)]
    return planning.best.plan, seconds[0], seconds[1]


def text_of(plan: TrainPlan) -> str:
    """A plan's file for its own program."""
    return export_plan(plan, load_model(plan.model), parse_slice(plan.slice), plan.software)


def fate(plan: TrainPlan) -> dict[str, Any]:
    """Whether a plan exports, and what its file without comments does not say."""
    cfg, piece = load_model(plan.model), parse_slice(plan.slice)
    try:
        text = text_of(plan)
        again = parse_export(stripped(text), plan.software, piece=piece)
    except BadRequest as error:
        return {"refused": str(error)}
    lost = lost_on_the_way(plan, again, cfg, piece, plan.software)
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "lost": {field: list(values) for field, values in lost.items()},
    }


def page(doc: Mapping[str, Any], checked: Mapping[str, Any]) -> str:
    """Both halves as Markdown, and what no file says."""
    rows, day = doc["rows"], doc["date"]
    usual = [r for r in rows if not r.get("asked")]
    asked = [r for r in rows if r.get("asked")]
    good = [r for r in usual if "lost" in r and not r["lost"]]
    possible = [r for r in usual if "miss" not in r]
    head = INTRO.format(day=day, good=len(good), possible=len(possible), batch=BATCH, length=LENGTH)
    lines = [head, COLUMNS, *(line(r, checked) for r in usual), ""]
    lines += [ASKED, COLUMNS, *(line(r, checked) for r in asked), "", *silences()]
    lines += ["", exports_serving.page(doc["serving"], checked)]
    return "\n".join(lines)


INTRO = """# Default plans as files for the programs that run them

## Default training plans

Made by `scripts/exports.py` on {day}: the answer of `shardwise plan train` without `--for`, batch
{batch} tokens in sequences of {length:,}, its export for the program it names, and that file read
back with its comments stripped. {good} of the {possible} answers come back as the same plan, but
for what no file says (below). "any" is how much faster the fastest plan is that can be priced with
the same stack and dtypes, whether the program runs it or not: the price of being runnable. "taken
by" names what took the file: the program's own parser (docs/lab/exports_checked.json), or the
snapshot of its flags (src/shardwise/plans/data/software/flags.json).
"""
ASKED = """### Asked for by name

The answer of `--for` a program that is the faster one nowhere above.
"""
COLUMNS = "| model | slice | runs in | mesh | step | any | taken by | back |\n|" + "---|" * 8


def line(row: Mapping[str, Any], checked: Mapping[str, Any]) -> str:
    """One row of the table."""
    where = f"| {row['model']} | {row['slice']} |"
    if "miss" in row:
        return f"{where} - | {row['miss']} | | | | |"
    plan = row["plan"]
    back = "refused" if "refused" in row else ", ".join(row["lost"]) or "same"
    ratio = row["seconds"] / row["any_seconds"]
    return (
        f"{where} {SOFTWARE[row['software']].title if row['software'] != 'any' else '-'} | "
        f"{mesh_text(plan['mesh'])} | {format_seconds(row['seconds'])} | {ratio:.2f}x | "
        f"{taken_by(row, checked)} | {back} |"
    )


def taken_by(row: Mapping[str, Any], checked: Mapping[str, Any]) -> str:
    """Who took the file."""
    if "refused" in row:
        return "nobody"
    record = checked.get(row["software"], {}).get("files", {})
    return "parser" if row["sha256"] in record and record[row["sha256"]]["accepted"] else "flags"


def silences() -> Iterator[str]:
    """What no file says, by program."""
    yield "### What a file without comments does not say\n"
    yield "| field | " + " | ".join(SOFTWARE[name].title for name in UNSAID) + " |"
    yield "|" + "---|" * (len(UNSAID) + 1)
    for field in dict.fromkeys(f for fields in UNSAID.values() for f in fields):
        yield f"| `{field}` | " + " | ".join(UNSAID[n].get(field, "") for n in UNSAID) + " |"


def read_plan(row: Mapping[str, Any]) -> TrainPlan:
    """The plan of a row of the table."""
    plan = plan_from(row["plan"], "docs/lab/exports.json")
    assert isinstance(plan, TrainPlan)
    return plan


def main() -> int:
    """Plan, export, read back, write."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--half", choices=("training", "serving"), help="instead of both")
    parser.add_argument("--only", action="append", help="models, instead of all")
    parser.add_argument("--slice", action="append", help="slices, instead of all")
    parser.add_argument("--again", action="store_true", help="serving rows that are there, too")
    parser.add_argument("--page", action="store_true", help="the page again, from the table")
    parser.add_argument(
        "--files", action="store_true", help="the files again, planned anew where one is refused"
    )
    asked = parser.parse_args()
    doc = json.loads(TABLE.read_text())
    if not asked.page and asked.half != "serving":
        train(doc, asked)
    if not asked.page and asked.half != "training":
        serve(doc, asked)
    PAGE.write_text(page(doc, recorded()))
    return 0


def recorded() -> dict[str, Any]:
    """What the programs' own parsers said."""
    return json.loads(CHECKED.read_text()) if CHECKED.exists() else {}


def train(doc: dict[str, Any], asked: argparse.Namespace) -> None:
    """The rows of the training half, written where all of them were made."""
    if asked.files:
        rows = [again(row | {"asked": row.get("asked")}) for row in doc["rows"]]
    else:
        rows = []
        for model in asked.only or MODELS:
            for on in asked.slice or SLICES:
                rows.append(row_of(model, on))
                print(line(rows[-1], recorded()), rows[-1].get("refused", ""), flush=True)
    if asked.files or not (asked.only or asked.slice):
        keep(doc, rows=[*rows, *others(rows)])


def serve(doc: dict[str, Any], asked: argparse.Namespace) -> None:
    """The rows of the serving half, each written when it is made."""
    rows = doc.setdefault("serving", [])
    if asked.files:
        keep(doc, serving=[exports_serving.again(row) for row in rows])
        return
    for request in exports_serving.asked(SLICES):
        if request["model"] not in (asked.only or [request["model"]]):
            continue
        if request["slice"] not in (asked.slice or [request["slice"]]):
            continue
        there = [row for row in rows if request.items() <= row.items()]
        if there and not asked.again:
            continue
        made = exports_serving.row_of(request)
        rows[:] = [row for row in rows if row not in there] + [made]
        keep(doc, serving=rows)
        print(exports_serving.line(made, recorded()), made.get("refused", ""), flush=True)


def again(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its file written anew, planned anew where that is refused."""
    if "miss" in row:
        return row
    row = {k: v for k, v in row.items() if k not in ("refused", "sha256", "lost")}
    found = row | fate(read_plan(row))
    return row_of(row["model"], row["slice"], row["asked"]) if "refused" in found else found


def others(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of programs that no default answer is for."""
    for name in UNSAID:
        if not any(r.get("software") == name for r in rows):
            yield from (row_of(model, ASKED_ON, name) for model in MODELS)


def keep(doc: dict[str, Any], **halves: list[dict[str, Any]]) -> None:
    """Write the table with a half in place of that before."""
    doc |= {"date": date.today().isoformat(), **halves}
    TABLE.write_text(json.dumps(doc, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())

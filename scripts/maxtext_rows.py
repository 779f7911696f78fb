"""docs/lab/maxtext.md: compiled timelines beside published step times of training runs on TPUs.

    python scripts/maxtext_rows.py [--rows ID ...] [--most-devices N] [--fresh] [--no-compile]

Compiles the step of every published TPU run that our runtime can build, for its slice, by libtpu
(no TPU is needed; one to eight CPU minutes each, 12 to 19 on v6e), reads the schedule into a
timeline and writes docs/lab/maxtext.json and docs/lab/maxtext.md after each row. What was compiled
is kept in the cache of `shardwise compile`; a row whose program is there is only read again, unless
--fresh asks for it.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from made import commit, table
from row_programs import before_fit, compile_row, options_on, row_result

from shardwise.errors import ShardwiseError
from shardwise.evidence.training.runs import PublishedRun, read_run
from shardwise.evidence.training.table import PUBLISHED, read_table
from shardwise.evidence.training.validate import priced
from shardwise.plans.train import mesh_text
from shardwise.profiler.ahead import CompileCache, Limits, default_root
from shardwise.profiler.hlo.door import read_module
from shardwise.profiler.hlo.work import module_work
from shardwise.profiler.timeline import schedule
from shardwise.sharding import Mesh

ROOT = Path(__file__).resolve().parent.parent
JSON, PAGE = ROOT / "docs" / "lab" / "maxtext.json", ROOT / "docs" / "lab" / "maxtext.md"
LIMITS = Limits(seconds=3600.0, memory_bytes=9 * 2**30, cache=CompileCache(root=default_root()))

ABOUT = """Made by `python scripts/maxtext_rows.py`; newest row of {date}. Each row is a published
training run on TPUs (`src/shardwise/evidence/training/data/training_runs.csv`, with its citation):
our runtime's step of the run's shape, mesh, batch and recompute, compiled for its slice with
{versions}, and the schedule laid out by `profiler/timeline.py`. Published TFLOP/s became seconds by
the row's own convention.

The compiler's flags are the same for all rows of a chip, those of MaxText's scripts
(`scripts/row_programs.py`). Nothing is fitted on these rows: constants of the catalogue
that published runs had a part in stand at their values from before (`before_fit`). Only attention
kernels, collectives and copies see any of them; all else is the compiler's cycles."""

READING = """## Reading

What makes these programs slower than the published ones, as far as the schedules show:

- The compiler of 2026 leaves most exchanges over `tensor` synchronous on v5p, so they are exposed.
  Windowed einsums instead of them cost more (chains of one-way permutes, none of which it overlaps
  where memory is short), so the flags turn those off.
- On v4, v5e and v5p gradients over all devices of a slice are summed by an all-reduce of the whole
  matrix and then cut, though nothing else reads the sum: twice the bytes of a reduce-scatter, and
  synchronous. No form of the exchange and no flag was found that changes it (docs/lab/log.md).
- Where a device's piece of a matrix is no whole number of tiles (20 rows of D on 256 chips of the
  16B model), the gathered matrix arrives in another layout: copies of 13 ms, and matmuls at 60 to
  70 % of the peak that read it as it is.
- Attention kernels carry no cycles; they count at the share of the peak that was assumed before any
  run was fitted.
- On v6e fusions may take 96 MiB of VMEM (`xla_tpu_scoped_vmem_limit_kib`), as the recipes of these
  runs have it: 0.77 of the cycles of products, and 12 to 19 minutes of one CPU to compile. So of
  each model the smallest slice was compiled first; the others, and Mixtral 8x22B, were not yet.

The published runs had the compiler of their day and are means of many steps; ours is one step of a
program that nobody ran."""

ROWS = "## Rows\n\nSeconds per step; error is compiled over published, less 1."
TIMES = """## Where the time goes

Seconds per step of the compute stream by class of op; what it waits for: networks by the axes of
the mesh, copies, the host; and how long each network is busy, hidden or not."""


def main() -> None:
    """Compile, read, write; one row after the other."""
    args = arguments()
    doc = json.loads(JSON.read_text(encoding="utf-8")) if JSON.is_file() else {}
    held = {row["id"]: row for row in doc.get("rows", ())}
    left = {row["id"]: row["reason"] for row in doc.get("left_out", ())}
    for row, run in wanted(args, left):
        print(f"{run.id} on {run.piece} ...", file=sys.stderr, flush=True)
        try:
            found = one(row, run, {} if args.fresh else held.get(run.id, {}), args.no_compile)
        except ShardwiseError as error:
            left[run.id] = str(error).splitlines()[0]
            held.pop(run.id, None)
            print(f"  {left[run.id]}", file=sys.stderr, flush=True)
            found = None
        if found is not None:
            held[run.id] = found
            left.pop(run.id, None)
            print(f"  {found['error']:+.1%}", file=sys.stderr, flush=True)
        write(held, left)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=(), help="only these ids")
    parser.add_argument("--most-devices", type=int, default=1024, help="only slices of so many")
    parser.add_argument("--fresh", action="store_true", help="compile what is cached too")
    parser.add_argument("--no-compile", action="store_true", help="only read what is cached")
    return parser.parse_args()


def wanted(
    args: argparse.Namespace, left: dict[str, str]
) -> list[tuple[Mapping[str, str], PublishedRun]]:
    """The TPU rows that were asked for, smallest slices first; those no plan can say are left."""
    found = []
    for row in read_table(PUBLISHED).rows:
        if "TPU" not in row["hardware"] or (args.rows and row["id"] not in args.rows):
            continue
        try:
            run = read_run(row)
        except ShardwiseError as error:
            left[row["id"]] = str(error)
            continue
        if run.piece.devices <= args.most_devices or args.rows:
            found.append((row, run))
    return sorted(found, key=lambda pair: pair[1].piece.devices)


def one(
    row: Mapping[str, str], run: PublishedRun, held: dict[str, Any], cached_only: bool
) -> dict[str, Any] | None:
    """A row's record, from the cache or from a compile; None where neither is to be had."""
    cache = LIMITS.cache
    assert cache is not None
    kept = cache.load(held["compiled"]["key"]) if held else None
    if kept is not None:
        about, hlo = held["compiled"], kept[1]
    elif cached_only:
        return None
    else:
        begun = time.monotonic()
        made = compile_row(row, run, limits=LIMITS)
        if made.refusal:  # nothing is generated, so there are no cycles
            raise ShardwiseError(f"refused by the compiler: {made.refusal}")
        hlo = made.hlo
        about = {
            "key": made.key,
            "peak_bytes": made.needed_bytes,
            "usable_bytes": made.capacity_bytes,
            "seconds": round(time.monotonic() - begun, 1),
            "date": datetime.now(UTC).date().isoformat(),
            "commit": commit(),
            "versions": {name: made.versions[name] for name in ("jax", "libtpu")},
        }
    work = module_work(read_module(hlo), Mesh(tuple(run.plan.mesh.items())))
    timeline = schedule(work, before_fit(run.piece))
    planned = priced(run).step_seconds.expected
    return {**row_result(run, timeline), "planned_seconds": planned, "compiled": about}


def write(held: dict[str, dict[str, Any]], left: dict[str, str]) -> None:
    """Both documents, rows in the order of the table of runs."""
    order = {row["id"]: i for i, row in enumerate(read_table(PUBLISHED).rows)}
    rows = sorted(held.values(), key=lambda row: order[row["id"]])
    if not rows:
        return
    doc = {
        "schema_version": 1,
        "date": max(row["compiled"]["date"] for row in rows),
        "commit": commit(),
        "options": {chip: options_on(chip) for chip in dict.fromkeys(row["chip"] for row in rows)},
        "summary": {
            "n": len(rows),
            "median_abs_error": median(abs(row["error"]) for row in rows),
            "median_error": median(row["error"] for row in rows),
        },
        "rows": rows,
        "left_out": [
            {"id": name, "reason": left[name]} for name in sorted(left, key=order.__getitem__)
        ],
    }
    JSON.write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(doc), encoding="utf-8")


def page(doc: dict[str, Any]) -> str:
    """The whole page."""
    rows, summary = doc["rows"], doc["summary"]
    versions = dict.fromkeys(
        ", ".join(f"{k} {v}" for k, v in row["compiled"]["versions"].items()) for row in rows
    )
    parts = [
        "# Compiled steps beside published ones",
        ABOUT.format(date=doc["date"], versions=" and ".join(versions)),
        summary_text(summary),
        by_chip(rows),
        READING,
        ROWS,
        table([*HEAD], [line(row) for row in rows]),
        TIMES,
        table([*WHERE], [where(row) for row in rows]),
    ]
    if doc["left_out"]:
        named = [f"- {row['id']}: {row['reason']}" for row in doc["left_out"]]
        parts += [
            "## Left out",
            "\n".join(named),
            "TPU rows in neither list were not compiled yet.",
        ]
    return "\n\n".join(parts) + "\n"


def summary_text(summary: dict[str, Any]) -> str:
    """The medians in one sentence."""
    size, signed = summary["median_abs_error"], summary["median_error"]
    return f"{summary['n']} rows: median error {size:.1%}, with its sign {signed:+.1%}."


def by_chip(rows: list[dict[str, Any]]) -> str:
    """Median errors by chip."""
    lines = []
    for chip in dict.fromkeys(row["chip"] for row in rows):
        errors = [row["error"] for row in rows if row["chip"] == chip]
        each = [str(len(errors)), f"{median(map(abs, errors)):.1%}", f"{median(errors):+.1%}"]
        lines.append([chip, *each])
    return table(["chip", "rows", "median error", "with its sign"], lines)


HEAD = ("row", "slice", "mesh", "published", "compiled", "error", "planned", "peak", "compiled at")
WHERE = ("row", "matmul", "attention", "elementwise", "copy", "other", "waits", "on networks")


def line(row: dict[str, Any]) -> list[str]:
    """One row of the first table."""
    made, seconds = row["compiled"], row["step_seconds"]
    return [
        row["id"],
        row["slice"],
        mesh_text(row["mesh"]),
        f"{row['published_seconds']:.2f}",
        f"{seconds['expected']:.2f}",
        f"{row['error']:+.1%}",
        f"{row['planned_seconds']:.2f}",
        f"{made['peak_bytes'] / 2**30:.1f} GiB",
        made["commit"],
    ]


def where(row: dict[str, Any]) -> list[str]:
    """One row of the second table."""
    classes = dict(row["compute_seconds"])
    shown = [f"{classes.pop(name, 0.0):.2f}" for name in WHERE[1:5]]
    waits = [f"{s:.2f} {name}" for name, s in row["exposed_seconds"].items() if s >= 0.005]
    nets = [f"{s:.2f} {name}" for name, s in row["network_seconds"].items() if s >= 0.005]
    rest = f"{sum(classes.values()):.2f}"
    return [row["id"], *shown, rest, ", ".join(waits), ", ".join(nets)]


if __name__ == "__main__":
    main()

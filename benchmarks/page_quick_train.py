"""How far `plan train --coarse` lies from `plan train`: of drawn states whether it names the same
plan, the ratio of the step's seconds, and seconds of processor time of both.

    python benchmarks/page_quick_train.py STATES.jsonl
    python benchmarks/page_quick_train.py DATED.jsonl --days

With `--days` each state has a bare chip, and a run that is to be done within so many days. States
that the file has are not made again: stopped, it goes on. Models and chips are those of an exported
site; chips, batches and lengths are drawn from seed 0.
"""

import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from shardwise.apps.page.grid import site_grid
from shardwise.apps.page.views.chips import slice_name
from shardwise.commands.plan_train.train import TrainPlanRequest
from shardwise.errors import ShardwiseError

COUNT = 50
CHIPS = (1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BATCHES, LENGTHS = (1 << 18, 1 << 20, 1 << 22, 1 << 24), (2048, 4096, 8192, 32768)
TOKENS, DAYS = ("100G", "1T", "15T"), (10, 30, 90)
SAME = ("slice", "mesh", "microbatches", "remat", "zero", "pipeline_schedule", "runs_in")
"""What the page shows of a plan."""


def states() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Drawn ones, without end."""
    drawn, grid = random.Random(0), site_grid()
    while True:
        model, chip = drawn.choice(grid.models), drawn.choice(grid.chips)
        many = drawn.choice(CHIPS)
        words: dict[str, Any] = {"batch": drawn.choice(BATCHES), "seq": drawn.choice(LENGTHS)}
        if "--days" in sys.argv:
            run = {"tokens": drawn.choice(TOKENS), "days": drawn.choice(DAYS)}
            yield model, chip, {"batch": 1 << 22, "seq": 4096, **run}
            continue
        try:
            yield model, slice_name(chip, many), words
        except ShardwiseError:
            continue


def answered(model: str, on: str, words: dict[str, Any], coarse: bool) -> dict[str, Any]:
    """The plan, its seconds and those of the search; of a refusal the latter alone."""
    since = time.process_time()
    try:
        found = TrainPlanRequest(model, on, **words, coarse=coarse).answer()
    except ShardwiseError:
        return {"plan": None, "seconds": time.process_time() - since}
    plan = {name: getattr(found, name) for name in SAME} | {"mesh": dict(found.mesh)}
    step, seconds = found.step_seconds.expected, time.process_time() - since
    return {"plan": plan, "step": step, "chips": found.chips_used, "seconds": seconds}


def main() -> None:
    """Make what is missing, then say what came out."""
    path = Path(sys.argv[1])
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for place, (model, on, words) in enumerate(states()):
        if place < len(known):
            continue
        if sum(row["fine"]["plan"] is not None for row in known) == COUNT:
            break
        coarse, fine = (answered(model, on, words, one) for one in (True, False))
        known.append({"model": model, "on": on, **words, "coarse": coarse, "fine": fine})
        with path.open("a") as file:
            file.write(json.dumps(known[-1]) + "\n")
    report([row for row in known if row["fine"]["plan"]])


def report(rows: list[dict]) -> None:
    """Shares and ratios."""
    same = [row for row in rows if row["coarse"]["plan"] == row["fine"]["plan"]]
    print(f"states {len(rows)}, the same plan: {len(same)}")
    for row in rows:
        if row not in same:
            print(row["model"], row["on"], row["coarse"]["plan"], row["fine"]["plan"], sep="\n  ")
    planned = [row for row in rows if row["coarse"]["plan"]]
    spent = (
        [row[name]["step"] * row[name]["chips"] for name in ("coarse", "fine")] for row in planned
    )
    ratios = sorted(coarse / fine for coarse, fine in spent)
    low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
    print(f"chip-seconds, coarse / full: median {median(ratios):.3f}, 9 in 10 {low:.3f} to "
          f"{high:.3f}, all {ratios[0]:.3f} to {ratios[-1]:.3f}; none by --coarse: "
          f"{len(rows) - len(planned)}")  # fmt: skip
    for name in ("coarse", "fine"):
        taken = sorted(row[name]["seconds"] for row in rows)
        print(f"{name}: {median(taken):.2f} s median, {taken[-1]:.2f} s at most")


if __name__ == "__main__":
    main()

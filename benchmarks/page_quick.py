"""How far `plan serve --coarse` lies from `plan serve`: of drawn states whether it names the same
plan, the ratio of the rates, and seconds of processor time of both.

    python benchmarks/page_quick.py STATES.jsonl
    python benchmarks/page_quick.py RATES.jsonl --rates

With `--rates` each load has a rate, and chips to choose from as many as it takes. States that the
file has are not made again: stopped, it goes on. Models and chips are those of an exported site;
lengths, targets and chips are drawn from seed 0.
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
from shardwise.commands.plan_serve.serve import ServePlanRequest
from shardwise.errors import ShardwiseError
from shardwise.planner.serve.served import cheapest_serving

COUNT = 50
CHIPS, INPUTS, OUTPUTS = (1, 2, 4, 8, 16), (256, 1024, 2048, 8192), (32, 256, 1024)
RATES = (0.5, 2, 10, 40)
TTFTS, TPOTS = ("500ms", "1s", "2s", "5s"), (None, None, "25ms", "50ms")


def states() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Drawn ones, without end."""
    drawn, grid = random.Random(0), site_grid()
    while True:
        model, chip = drawn.choice(grid.models), drawn.choice(grid.chips)
        words: dict[str, Any] = {"input": drawn.choice(INPUTS), "output": drawn.choice(OUTPUTS)}
        words |= {"ttft": drawn.choice(TTFTS), "tpot": drawn.choice(TPOTS)}
        many = drawn.choice(CHIPS)
        if "--rates" in sys.argv:
            yield model, chip, words | {"rate": drawn.choice(RATES)}
            continue
        try:
            yield model, slice_name(chip, many), words
        except ShardwiseError:
            continue


def answered(model: str, on: str, words: dict[str, Any], quick: bool) -> dict[str, Any]:
    """The plan, what it holds and the seconds of the search; of a refusal the seconds alone."""
    since = time.process_time()
    asked = ServePlanRequest(model, on, **words)
    demand, (place,) = asked.demand(), asked.places()
    try:
        found = cheapest_serving(asked.requests(place, demand), demand, quick=quick).served
    except ShardwiseError:
        return {"plan": None, "seconds": time.process_time() - since}
    plan, seconds = found.plan, time.process_time() - since
    ttft, tpot, _ = found.held.times
    named = [plan.slice, dict(plan.mesh), plan.kv_sharding, plan.replicas]
    held = {"rate": found.rate, "ttft": ttft, "tpot": tpot}
    return {"plan": named, "batch": plan.batch, **held, "seconds": seconds}


def main() -> None:
    """Make what is missing, then say what came out."""
    path = Path(sys.argv[1])
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for place, (model, on, words) in enumerate(states()):
        if place < len(known):
            continue
        if sum(row["fine"]["plan"] is not None for row in known) == COUNT:
            break
        quick = answered(model, on, words, quick=True)
        fine = answered(model, on, words, quick=False) if quick["plan"] else quick
        known.append({"model": model, "on": on, **words, "quick": quick, "fine": fine})
        with path.open("a") as file:
            file.write(json.dumps(known[-1]) + "\n")
    report([row for row in known if row["fine"]["plan"]])


def report(rows: list[dict]) -> None:
    """Shares and ratios."""
    same = sum(row["quick"]["plan"] == row["fine"]["plan"] for row in rows)
    print(f"states {len(rows)}, the same slice, mesh, layout and servers: {same / len(rows):.0%}")
    for name in ("rate", "ttft", "tpot"):
        ratios = sorted(row["quick"][name] / row["fine"][name] for row in rows)
        low, high = ratios[len(ratios) // 20], ratios[-1 - len(ratios) // 20]
        print(f"{name}: quick / full median {median(ratios):.3f}, 9 in 10 {low:.3f} to {high:.3f}")
    for name in ("quick", "fine"):
        taken = sorted(row[name]["seconds"] for row in rows)
        print(f"{name}: {median(taken):.2f} s median, {taken[-1]:.2f} s at most")


if __name__ == "__main__":
    main()

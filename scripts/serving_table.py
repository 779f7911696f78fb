"""The cheapest plans of three models on six chips at three objectives: docs/serving_plans.md.

    python scripts/serving_table.py

Every row is what `shardwise plan serve --objective cost` finds.
"""

import sys
import time
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from made import table

from shardwise.hardware import Chip
from shardwise.planner.serve.answer import mesh_text
from shardwise.planner.serve.fleet import Fleet, FleetSearch, cheapest, search_fleets
from shardwise.planner.serve.request import ServeRequest
from shardwise.planner.simulate.metrics import Objectives
from shardwise.plans.serve import CHECKPOINT
from shardwise.units import format_seconds, sig
from shardwise.workflows.inputs import Hardware
from shardwise.workflows.serve_words import ServeWords

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "serving_plans.md"
MODELS = ("llama-3-70b", "deepseek-v3", "gpt-oss-120b")
CHIPS = ("v5e", "v6e", "tpu7x", "h100", "h200", "b200")
INPUT, OUTPUT, PERCENTILE, ENGINE = 2048, 512, 0.9, "others"

GOALS = {
    "relaxed": Objectives(ttft=10.0, tpot=0.2),
    "chat": Objectives(ttft=2.0, tpot=0.05),
    "fast": Objectives(ttft=0.5, tpot=0.02),
}
"""Ours: a batch job that someone waits for, reading speed several times over, and an agent."""

COLUMNS = (
    *("model", "chip", "SLO", "$/M input", "$/M output", "chip-h/M input", "chip-h/M output"),
    *("servers", "mesh", "weights", "KV", "chunk", "running", "TTFT", "TPOT", "as stored"),
)

INTRO = """# The cheapest serving plans

Made by `python scripts/serving_table.py` on {day} in {cpu:.0f} s of CPU time ({seconds:.0f} s
on one of {cores} cores that others used); do not edit by hand.

Requests of {input:,} prompt and {output} answer tokens arrive at random, as many as the servers can
take. At the {percentile:.0f}th percentile of requests: {goals}.
Each row is the cheapest of all slices, meshes, dtypes, chunk sizes, numbers in flight and ratios
of prefill to decode servers that `shardwise plan serve --objective cost` looks at ({columns:,}
priced), with what a serving engine adds (`--engine {engine}`, docs/fit_serving.md). These are
expected values from closed forms (`planner/serve/load.py`), not measurements; docs/log.md has how
they compare with simulation.

- Dollars are the catalogue's on-demand prices: {prices}. Without a price there are chip-hours
  only.
- `servers` is the slice of one replica; `8 + 5` means 8 that decode and 5 that prefill for them,
  `1 x h100:4 + 6 x h100:1` the same with prefill servers of their own, whose mesh comes second.
- `weights` and `KV`: {stored} is as the checkpoint stores them. 8 bits change a model's answers;
  `as stored` is the cost of all tokens with stored weights and a bf16 cache over that of the row.
- `running` is the mean number of sequences that a replica decodes.
- `data` in a mesh cuts prompts by tokens and batches by sequences; experts of a layer are taken to
  be equally loaded, prompts to share nothing, and quantized layers to include the head.
- Prices of chips change faster than this page: `--price CHIP=USD` asks again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One cell of the comparison: the fleet found, and the cheapest with dtypes as stored."""

    model: str
    chip: Chip
    slo: str
    fleet: Fleet
    stored: Fleet

    def cells(self) -> list[str]:
        """As the table shows it; the nearest miss where nothing is within the objectives."""
        goal, f = GOALS[self.slo], self.fleet
        head = [self.model, self.chip.id, self.slo]
        if not f.meets(goal):
            miss = f"none; nearest {format_seconds(f.ttft)}, {format_seconds(f.tpot)}"
            return [*head, *["none"] * 4, miss, *["-"] * (len(COLUMNS) - 8)]
        usd, hours = f.usd_per_million, f.chip_hours_per_million
        more = self.stored.chip_seconds / f.chip_seconds
        servers = f"{f.piece}"
        if f.prefill_replicas:
            servers = f"{f.replicas} + {f.prefill_replicas} x {f.piece}"
        mesh = mesh_text(f.server.mesh)
        if f.prefiller is not None:
            other = f.prefiller.server
            servers = f"{f.replicas} x {f.piece} + {f.prefill_replicas} x {other.piece}"
            mesh += f" + {mesh_text(other.mesh)}"
        return [
            *head,
            *(("unknown" if usd[k] is None else f"{usd[k]:.3f}") for k in ("input", "output")),
            *(sig(hours[k]) for k in ("input", "output")),
            servers,
            mesh,
            f.server.dtypes.weights,
            f.server.dtypes.kv,
            f"{f.chunk:,}",
            f"{f.running:,.0f}",
            format_seconds(f.ttft),
            format_seconds(f.tpot),
            f"{more:.2f}x" if self.stored.meets(goal) else "none",
        ]


def request_of(model: str, chip: str) -> ServeRequest:
    """What is asked of a chip, for all objectives at once."""
    return ServeWords(
        model,
        chip,
        objective="cost",
        input=INPUT,
        output=OUTPUT,
        percentile=PERCENTILE,
        tpot=max(goal.tpot for goal in GOALS.values()),
        engine=ENGINE,
    ).request()


def rows_of(model: str, chip: str) -> tuple[FleetSearch, list[Row]]:
    """The three rows of a model on a chip."""
    looked = search_fleets(request_of(model, chip))
    kept = [g for g in looked.grids if g.server.dtypes.weights == CHECKPOINT]
    plain = tuple(g for g in kept if g.server.dtypes.kv == "bf16")
    found = [
        Row(
            model=model,
            chip=Hardware().chip(chip),
            slo=slo,
            fleet=cheapest(looked, goal),
            stored=cheapest(replace(looked, grids=plain), goal),
        )
        for slo, goal in GOALS.items()
    ]
    return looked, found


def page(cells: list[list[str]], columns: int, seconds: float, cpu: float) -> str:
    """The whole page."""
    chips = [Hardware().chip(name) for name in CHIPS]
    priced = [(c.id, c.price) for c in chips if c.price is not None]
    goals = ", ".join(
        f"{name} is TTFT {format_seconds(g.ttft)} and TPOT {format_seconds(g.tpot)}"
        for name, g in GOALS.items()
    )
    intro = INTRO.format(
        day=date.today(),
        seconds=seconds,
        cpu=cpu,
        cores=2,
        input=INPUT,
        output=OUTPUT,
        percentile=100 * PERCENTILE,
        goals=goals,
        columns=columns,
        engine=ENGINE,
        prices=", ".join(f"{id} ${p.usd_per_chip_hour:.2f} ({p.as_of})" for id, p in priced),
        stored=f"`{CHECKPOINT}`",
    )
    return "\n".join([intro, table(COLUMNS, cells), ""])


def main() -> None:
    started, busy, columns = time.perf_counter(), time.process_time(), 0
    cells: list[list[str]] = []
    for model in MODELS:
        for chip in CHIPS:
            looked, rows = rows_of(model, chip)
            columns += looked.columns
            cells += [row.cells() for row in rows]
            print(f"{model} on {chip}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    seconds, cpu = time.perf_counter() - started, time.process_time() - busy
    OUT.write_text(page(cells, columns, seconds, cpu), encoding="utf-8")
    print(f"wrote {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Do the answers of `plan serve` hold? Thirty of them, simulated again from their files.

    scripts/serving_holds.py [--traces DIR] [--only N] [--check]

Each request of REQUESTS is answered, its plan written to a file, and the file simulated with other
seeds, 2,000 requests each. Of every run the rate, the 90th percentiles of TTFT and TPOT and the
share of requests within the targets are held against what the answer printed, and chips, dollars an
hour and dollars per million tokens of `plan show` against the answer's. docs/lab/serving_holds.json
has every figure, docs/lab/serving_holds.md a row for each request; what is there is not run again,
unless its request changed or --again is given. --check runs nothing and says whether all in the
record hold. Requests with a trace need its file in DIR.

A time holds where no run's is more than 5 % above what was printed, as a target holds where it is
not exceeded: printed times are those of a slow run (`planner/simulate/steady.py`), most are faster.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import made

from shardwise.commands.plan_file.show import PlanShowRequest
from shardwise.commands.plan_serve.serve import ServePlanRequest
from shardwise.commands.plan_serve.simulate import SimulateRequest
from shardwise.plans import save_plan

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = (
    ROOT / "docs" / "lab" / "serving_holds.json",
    ROOT / "docs" / "lab" / "serving_holds.md",
)
SEEDS = (101, 102, 103, 104, 105)
COUNT = 2000
WITHIN, SHARE = 0.05, 0.95

CONV, CODE = "azure2023_conv.csv", "azure2023_code.csv"
"""Requests of two services of Azure in 2023 (Azure/AzurePublicDataset@b469a11, CC-BY 4.0)."""


def asked(model: str, on: str, prompt: int, output: int, **more: Any) -> dict[str, Any]:
    """A request of one length."""
    return {"model": model, "on": on, "input": prompt, "output": output, **more}


REQUESTS: Sequence[Mapping[str, Any]] = (
    asked("qwen3-32b", "h100:8", 4096, 1024, tpot="30ms"),
    asked("qwen3-32b", "h100", 4096, 1024, tpot="30ms", rate=20),
    asked("qwen3-32b", "b200", 4096, 1024, tpot="25ms", rate=100),
    asked("qwen3-32b", "v6e", 2048, 256, tpot="50ms", rate=10),
    asked("qwen3-32b", "h200", 8192, 512, tpot="40ms", ttft="4s", rate=5),
    asked("llama-3.1-8b", "h100", 1024, 200, tpot="30ms", rate=1),
    asked("llama-3.1-8b", "h100", 1024, 200, tpot="30ms", rate=100),
    asked("llama-3.1-8b", "h100", 1024, 200, tpot="30ms", rate=500),
    asked("llama-3.1-8b", "v5e", 1024, 200, tpot="40ms", rate=50),
    asked("llama-3.1-8b", "v6e:2x4", 512, 512, tpot="20ms"),
    asked("llama-3.1-8b", "b200:1", 4096, 256, ttft="1s"),
    asked("llama-3.1-8b", "h200", 16384, 256, ttft="3s", tpot="50ms", rate=2),
    asked("llama-3-70b", "h100:8", 2048, 256, tpot="50ms"),
    asked("llama-3-70b", "h200", 4096, 512, tpot="40ms", rate=10),
    asked("llama-3-70b", "b200", 4096, 512, tpot="30ms", rate=50),
    asked("llama-3-70b", "v5e", 2048, 256, tpot="60ms", rate=5),
    asked("llama-3-70b", "h100", 2048, 256, tpot="40ms", rate=20, weights="fp8", kv="fp8"),
    asked("qwen3-30b-a3b", "h100", 2048, 512, tpot="30ms", rate=50),
    asked("qwen3-30b-a3b", "v6e", 4096, 1024, tpot="30ms", rate=20),
    asked("qwen3-30b-a3b", "b200", 1024, 256, tpot="20ms", rate=200),
    asked("gpt-oss-120b", "h100", 2048, 512, tpot="30ms", rate=20),
    asked("gpt-oss-120b", "b200:8", 4096, 1024, tpot="20ms"),
    asked("gpt-oss-120b", "h200", 1024, 256, tpot="25ms", e2e="8s", rate=100),
    asked("deepseek-v3", "h200", 4096, 1024, tpot="60ms", rate=5),
    asked("deepseek-v3", "b200", 2048, 512, tpot="50ms", rate=20),
    {"model": "llama-3.1-8b", "on": "h100", "trace": CONV, "tpot": "40ms"},
    {"model": "llama-3.1-8b", "on": "h100", "trace": CODE, "ttft": "1s", "rate": 20},
    {"model": "qwen3-32b", "on": "h200", "trace": CONV, "tpot": "40ms", "rate": 25},
    {"model": "qwen3-32b", "on": "b200", "trace": CODE, "rate": 10},
    asked("qwen3-32b", "h100", 8192, 1024, tpot="30ms", rate=10, pools="two"),
)


def main(words: Sequence[str] | None = None) -> int:
    """Answer, simulate and write; 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traces", type=Path, default=Path())
    parser.add_argument("--only", type=int, default=len(REQUESTS), help="the first so many")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(words)
    rows = {} if options.again or not RECORD.exists() else known(json.loads(RECORD.read_text()))
    for request in REQUESTS[: 0 if options.check else options.only]:
        name = title_of(request)
        if name not in rows:
            rows[name] = answered(request, options.traces)
            print(f"{name}: {'holds' if holds(rows[name]) else 'DOES NOT HOLD'}", flush=True)
            write([rows[t] for t in map(title_of, REQUESTS) if t in rows])
    missed = [name for name, row in rows.items() if not holds(row)]
    print(f"{len(rows) - len(missed)} of {len(rows)} hold", *missed, sep="\n  ")
    return int(bool(missed))


def known(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the record has of today's requests."""
    titles = set(map(title_of, REQUESTS))
    return {row["request"]: row for row in record["rows"] if row["request"] in titles}


def title_of(request: Mapping[str, Any]) -> str:
    """The command as a person would write it."""
    words = [f"--{name} {value}" for name, value in request.items()]
    return " ".join(["plan serve", *words])


def answered(request: Mapping[str, Any], traces: Path) -> dict[str, Any]:
    """What the answer prints, what its file shows, and its runs with other seeds."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(traces):
        answer = ServePlanRequest(**request).answer()
        path = Path(folder) / "plan.yaml"
        save_plan(answer.plan, path)
        shown = PlanShowRequest(path=path).answer().result
        runs = [simulated(path, seed) for seed in SEEDS]
    return {
        "request": title_of(request),
        "servers": answer.result["instead"][0]["servers"],
        "printed": figures(answer.result),
        "shown": figures(shown),
        "runs": runs,
    }


def figures(result: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an answer that are held against others."""
    return {
        "rate": result["requests_per_second"],
        "ttft": result["ttft_seconds"]["expected"],
        "tpot": result["tpot_seconds"]["expected"],
        "chips": result["chips"],
        "usd_per_hour": result["usd_per_hour"],
        "usd_per_million": result["usd_per_million_tokens"]["all"],
    }


def simulated(path: Path, seed: int) -> dict[str, Any]:
    """One run of a plan's file under its own load."""
    result = SimulateRequest(path=path, seed=seed, requests=COUNT).answer().result
    return {
        "seed": seed,
        "rate": result["request_throughput"],
        "ttft": result["p90_ttft_ms"] / 1e3,
        "tpot": (result["p90_tpot_ms"] or 0.0) / 1e3,
        "in_target": result["good_share"],
        "usd_per_million": result["usd_per_million_tokens"]["all"],
    }


def holds(row: Mapping[str, Any]) -> bool:
    """Whether every run keeps what was printed, and the file says the same."""
    printed, runs = row["printed"], row["runs"]
    kept = all(
        run["in_target"] >= SHARE
        and run["ttft"] <= (1 + WITHIN) * printed["ttft"]
        and run["tpot"] <= (1 + WITHIN) * printed["tpot"]
        and same(run["usd_per_million"], printed["usd_per_million"])
        for run in runs
    )
    rate = sum(run["rate"] for run in runs) / len(runs)
    return (
        kept
        and same(rate, printed["rate"])
        and all(same(row["shown"][name], printed[name]) for name in printed)
    )


def same(one: float | None, other: float | None) -> bool:
    """Whether two figures are one, but for what two parts of a fleet round."""
    if one is None or other is None:
        return one is other
    return abs(one - other) <= WITHIN * abs(other)


def write(rows: Sequence[Mapping[str, Any]]) -> None:
    """The record and its page."""
    day = date.today().isoformat()
    record = {"made": day, "seeds": SEEDS, "requests": COUNT, "rows": rows}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows, day), encoding="utf-8")


ABOUT = """# Do the answers of `plan serve` hold?

Made by `scripts/serving_holds.py` on {day}; do not edit by hand.

Each request was answered, its plan saved, and the file simulated with {seeds} other seeds,
{count:,} requests each, in the steady state (`planner/simulate/steady.py`). {kept} of {all} hold:
in every run at least 95 % of the requests are within all targets and the 90th percentiles of TTFT
and TPOT are at most 5 % above those printed, and over the runs what is answered is within 5 % of
the printed rate.
Printed times are those of a slow run, two deviations above the mean of five: the columns
"runs" say from where to where the five others lie, against the printed figure. `plan show` of each
file gives the answer's rate, times, chips, dollars an hour and dollars per million tokens.
"""


def page(rows: Sequence[Mapping[str, Any]], day: str) -> str:
    """A row for each request."""
    kept = sum(map(holds, rows))
    about = ABOUT.format(day=day, seeds=len(SEEDS), count=COUNT, kept=kept, all=len(rows))
    heads = ["request", "servers", "requests/s", "in target, worst", "TTFT", "runs", "TPOT", "runs"]
    heads += ["chips", "$/h", "$/M", "holds"]
    return about + "\n" + made.table(heads, [_cells(row) for row in rows]) + "\n"


def _cells(row: Mapping[str, Any]) -> list[str]:
    printed, runs = row["printed"], row["runs"]
    usd = ["" if printed[k] is None else f"{printed[k]:.3g}" for k in _USD]
    return [
        row["request"].removeprefix("plan serve "),
        row["servers"],
        f"{printed['rate']:g}",
        f"{min(run['in_target'] for run in runs):.1%}",
        f"{printed['ttft'] * 1e3:.0f} ms",
        _apart(row, "ttft"),
        f"{printed['tpot'] * 1e3:.1f} ms",
        _apart(row, "tpot"),
        str(printed["chips"]),
        *usd,
        "yes" if holds(row) else "no",
    ]


_USD = ("usd_per_hour", "usd_per_million")


def _apart(row: Mapping[str, Any], name: str) -> str:
    """The least and the most of the runs, over the printed figure."""
    found = [run[name] / row["printed"][name] - 1 for run in row["runs"]]
    return f"{min(found):+.0%} to {max(found):+.0%}"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

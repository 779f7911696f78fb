"""How fast the planner answers: whole processes, interleaved, and candidates priced per second.

    python benchmarks/planning.py [--rounds 5]

Prints the median and the spread of each figure. The targets are `plan train` of Llama-3.1-405B on
eight v5p slices in under 2 s of wall time, start included, and `--help` in under 150 ms of CPU.
Peers, measured on one core of such a machine in 2026-11: Calculon prices 95-200 configurations/s,
SimuMax 10-17/s, GenZ 18/s, llm-analysis 3,600-5,500/s without a search.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

PLAN = "plan train --model llama-3.1-405b --on 8*v5p:16x16x16 --batch 16Mi --seq 8192 --json"
SERVE = "plan serve --model llama-3-70b --on v5e --input 8192 --output 512 --json"
COMMANDS = {"plan train": PLAN.split(), "plan serve": SERVE.split(), "--help": ["--help"]}


def run(arguments: list[str]) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds and stdout of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    code = "from shardwise.apps.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def spread(values: list[float]) -> str:
    """Median, then the range."""
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    wall: dict[str, list[float]] = {name: [] for name in COMMANDS}
    cpu: dict[str, list[float]] = {name: [] for name in COMMANDS}
    rates = []
    for arguments in COMMANDS.values():
        run(arguments)  # warm the file cache
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            seconds, used, out = run(arguments)
            wall[name].append(seconds)
            cpu[name].append(used)
            if name == "plan train":
                search = json.loads(out)["result"]["search"]
                rates.append(search["candidates"] / search["seconds"])
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {rounds} interleaved rounds")
    for name in COMMANDS:
        print(f"{name}: wall {spread(wall[name])} s, CPU {spread(cpu[name])} s")
    print(f"candidates priced per second: {statistics.median(rates):,.0f}", end=" ")
    print(f"({min(rates):,.0f}-{max(rates):,.0f}); {search['candidates']:,} in one search")


if __name__ == "__main__":
    main()

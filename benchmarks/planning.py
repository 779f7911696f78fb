"""How fast the planner answers: whole processes, interleaved, and candidates priced per second.

    python benchmarks/planning.py [--rounds 5]

Prints the median and the spread of each figure. Targets: the three training plans below in under
3 s of wall time each, start included; `--help` in under 150 ms of CPU; a million candidates per
second, a candidate being a legal plan with memory and all three bounds. That rate is measured where
every legal plan is priced (`--exhaustive`); by default floors rule most of them out for the same
answer. Peers, measured on one core of such a machine in 2026-11: Calculon prices 95-200
configurations/s, SimuMax 10-17/s, GenZ 18/s, llm-analysis 3,600-5,500/s without a search.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

LLAMA = "plan train --model llama-3.1-405b --batch 16Mi --seq 8192 --json"
DEEPSEEK = "plan train --model deepseek-v3 --batch 60Mi --seq 4096 --json"
SERVE = "plan serve --model llama-3-70b --on v5e --input 8192 --output 512 --json"
COMMANDS = {
    "deepseek-v3 on 256*h100:8": [*DEEPSEEK.split(), "--on", "256*h100:8"],
    "llama-3.1-405b on 2048*h100:8": [*LLAMA.split(), "--on", "2048*h100:8"],
    "llama-3.1-405b on v5p:16x16x16": [*LLAMA.split(), "--on", "v5p:16x16x16"],
    "the same, every legal plan priced": [*LLAMA.split(), "--on", "v5p:16x16x16", "--exhaustive"],
    "plan serve": SERVE.split(),
    "--help": ["--help"],
}


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
    rates: dict[str, list[float]] = {}
    for arguments in COMMANDS.values():
        run(arguments)  # warm the file cache
    for _ in range(rounds):
        for name, arguments in COMMANDS.items():
            seconds, used, out = run(arguments)
            wall[name].append(seconds)
            cpu[name].append(used)
            if arguments[:2] == ["plan", "train"]:
                search = json.loads(out)["result"]["search"]
                counts = f"{search['candidates']:,} of {search['legal']:,} legal plans"
                rates.setdefault(f"{name}: {counts}", []).append(
                    search["candidates"] / search["seconds"]
                )
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {rounds} interleaved rounds")
    for name in COMMANDS:
        print(f"{name}: wall {spread(wall[name])} s, CPU {spread(cpu[name])} s")
    print("priced in full per second of search:")
    for name, values in rates.items():
        print(f"  {name}: {statistics.median(values):,.0f} ", end="")
        print(f"({min(values):,.0f}-{max(values):,.0f})")


if __name__ == "__main__":
    main()

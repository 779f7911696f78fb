"""What `--help` of every command costs in CPU beyond a bare Python, in one run.

    python benchmarks/help.py [--rounds 5] [--goal 120]

Each round starts a bare `python -c pass` and then every command once with `--help`, so that a busy
machine slows all of them alike. A figure is user and system CPU of the child in milliseconds, less
the bare Python of its own round: the median over the rounds, with the least and the most. The exit
code is 1 where a median is above the goal.
"""

import argparse
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence

import click

from shardwise.apps.cli import cli

MAIN = "import sys; from shardwise.apps.cli import main; main(sys.argv[1:])"


def pages(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words before `--help` of the program, of every group and of every command."""
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from pages(found, (*path, name))
        else:
            yield (*path, name)


def milliseconds(code: str, words: Sequence[str] = ()) -> float:
    """CPU of a Python that runs the code."""
    before = spent_by_children()
    subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, check=True)
    return 1e3 * (spent_by_children() - before)


def spent_by_children() -> float:
    """Seconds of CPU of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure all, slowest first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--goal", type=float, default=120.0, help="milliseconds")
    asked = parser.parse_args()
    spent: dict[tuple[str, ...], list[float]] = {words: [] for words in pages()}
    bare = []
    for number in range(asked.rounds + 1):
        start = milliseconds("pass")
        found = {words: milliseconds(MAIN, [*words, "--help"]) for words in spent}
        if number:  # the first round writes bytecode and fills the disk's cache
            bare.append(start)
            for words, time in found.items():
                spent[words].append(time - start)
    print(f"bare Python {statistics.median(bare):.0f} ms ({min(bare):.0f} to {max(bare):.0f})")
    median = {words: statistics.median(times) for words, times in spent.items()}
    for words in sorted(median, key=lambda words: -median[words]):
        low, high = min(spent[words]), max(spent[words])
        title = " ".join(("shardwise", *words, "--help"))
        print(f"{median[words]:4.0f} ms ({low:.0f} to {high:.0f})  {title}")
    above = sum(time > asked.goal for time in median.values())
    print(f"{above} of {len(median)} above {asked.goal:.0f} ms")
    return int(above > 0)


if __name__ == "__main__":
    sys.exit(main())

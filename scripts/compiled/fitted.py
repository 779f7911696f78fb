"""What the two fits to compiled programs share: options, rows, errors of plans left out, files."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from shardwise.errors import ShardwiseError
from shardwise.profiler.ahead import default_root

LAB = Path(__file__).parents[2] / "docs" / "lab"
DATA = Path(__file__).parents[2] / "src" / "shardwise" / "roofline" / "data"
Row = TypeVar("Row")


def parser(text: str | None) -> argparse.ArgumentParser:
    """The options of both."""
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawTextHelpFormatter)
    found.add_argument("--cache", type=Path, default=default_root().parent / "table")
    found.add_argument("--kept", action="store_true", help="compile nothing, count anew")
    return found


def written(name: str) -> dict[str, Any]:
    """The document of a fit as it was written last."""
    return json.loads((LAB / f"{name}.json").read_text(encoding="utf-8"))


def rows_of(
    plans: Mapping[str, tuple[str, Any]],
    known: Mapping[str, Any],
    options: argparse.Namespace,
    read: Callable[[str, str, Any, Path, Mapping[str, Any] | None], Row | None],
) -> list[Row]:
    """Every plan (its name, phase and values) that `read` makes a row of; with --kept those of the
    document `known` alone. What fails is told."""
    before = {row["name"]: row for row in known["rows"]} if options.kept else {}
    rows = []
    for name, (phase, plan) in plans.items():
        if options.kept and name not in before:
            continue
        try:
            found = read(name, phase, plan, options.cache, before.get(name))
        except ShardwiseError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        rows += [] if found is None else [found]
    return rows


def left_out(rows: Sequence[Row], ratio: Callable[[Row, Sequence[Row]], float]) -> list[float]:
    """The ratio of every row, by what the others teach."""
    return [ratio(row, [other for other in rows if other is not row]) for row in rows]


def errors(ratios: Sequence[float], goal: tuple[float, float]) -> dict[str, Any]:
    """Median ratio, median error and plans within the goal."""
    return {
        "median": median(ratios),
        "error": exp(median(abs(log(r)) for r in ratios)) - 1,
        "within": sum(goal[0] <= r <= goal[1] for r in ratios),
    }


def cells(error: Mapping[str, Any], count: int) -> list[str]:
    """Errors of so many plans as a page has them."""
    return [f"{error['median']:.2f}", f"{error['error']:.1%}", f"{error['within']} of {count}"]


def head(doc: Mapping[str, Any], goal: tuple[float, float]) -> dict[str, Any]:
    """What both pages begin with."""
    return {
        "date": doc["date"],
        "commit": doc["commit"],
        "versions": ", ".join(f"{name} {version}" for name, version in doc["versions"].items()),
        "count": len(doc["rows"]),
        "all": doc["plans"],
        "seed": doc["seed"],
        "low": goal[0],
        "high": goal[1],
    }


def write(name: str, doc: Mapping[str, Any], page: str, table: str, toml: str) -> None:
    """The document and the page of a fit, and its `table` of constants."""
    (LAB / f"{name}.json").write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")
    (LAB / f"{name}.md").write_text(page, encoding="utf-8")
    made = f"# Made by scripts/{name}.py on {doc['date']}; docs/lab/{name}.md says how."
    (DATA / table).write_text(f"{made}\n\n{toml}\n", encoding="utf-8")

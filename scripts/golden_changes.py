#!/usr/bin/env python3
"""Which golden answers changed, and by how much: a page.

    scripts/golden_changes.py BEFORE.json.gz AFTER.json.gz REASONS.md > docs/lab/golden_changes.md

BEFORE and AFTER are files that `scripts/golden.py write` made, at two commits. Requests are
compared by their words. The page has a row per kind of request: how many there are, how many have a
number or a choice that changed, and for each headline figure the median change with the 10th and
90th percentiles. REASONS.md is put behind it: why each change is right, written by hand.
"""

import argparse
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

HEADLINES = {
    "expected": "expected seconds",
    "lower": "lower bound",
    "upper": "upper bound",
    "peak_bytes_per_chip": "peak bytes",
    "tokens_per_second": "tokens/s",
    "dollars_per_million_tokens": "dollars/token",
}
"""Names of figures that stand for an answer, and what the page calls them."""
NOISE = 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    for name in ("before", "after", "reasons"):
        parser.add_argument(name, type=Path)
    asked = parser.parse_args()
    print(page(rows_of(asked.before), rows_of(asked.after)))
    print(asked.reasons.read_text(encoding="utf-8").rstrip())


def rows_of(path: Path) -> dict[str, Mapping[str, Any]]:
    """The requests of a file, each by all that it asks."""
    doc = json.loads(gzip.decompress(path.read_bytes()))
    return {
        json.dumps({key: value for key, value in row.items() if key != "said"}, sort_keys=True): row
        for row in doc["rows"]
    }


def page(before: Mapping[str, Mapping], after: Mapping[str, Mapping]) -> str:
    """The table of all kinds of requests that both have."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in before.keys() & after.keys():
        kinds[before[name]["kind"]].append(name)
    lines = [
        "# Golden answers that changed",
        "",
        _INTRODUCTION.format(len(before), len(after), sum(map(len, kinds.values()))),
        "",
        "| kind | requests | changed | " + " | ".join(HEADLINES.values()) + " |",
        "|---" * (3 + len(HEADLINES)) + "|",
    ]
    for kind, names in sorted(kinds.items(), key=lambda item: -len(item[1])):
        pairs = [(before[n]["said"], after[n]["said"]) for n in sorted(names)]
        changed = sum(not same(old, new) for old, new in pairs)
        cells = [cell([r for old, new in pairs for r in ratios(old, new, f)]) for f in HEADLINES]
        lines.append(f"| {kind} | {len(names)} | {changed} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


_INTRODUCTION = (
    "Made by `scripts/golden_changes.py`. There were {} requests before and there are {} now; {} "
    "of them have the same answer. A cell shows the median change over all requests that have the "
    "figure, with the 10th and 90th percentiles."
)


def same(old: Any, new: Any) -> bool:
    """Whether two answers have the same numbers and words where both have any."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return all(same(old[key], new[key]) for key in old.keys() & new.keys())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
    if isinstance(old, int | float) and isinstance(new, int | float):
        return abs(old - new) <= NOISE * max(abs(old), abs(new))
    return old == new


def ratios(old: Any, new: Any, name: str) -> list[float]:
    """new / old - 1 of the first figure of a name in an answer."""
    ours, theirs = next(figures(old, name), None), next(figures(new, name), None)
    return [] if not ours or theirs is None else [theirs / ours - 1]


def figures(value: Any, name: str) -> Iterator[float]:
    """Figures of a name, from the top of an answer down."""
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping) and isinstance(value.get(name), int | float):
        yield float(value[name])
    if isinstance(value, Mapping | list):
        for each in inner:
            yield from figures(each, name)


def cell(changes: list[float]) -> str:
    """A median with its percentiles."""
    if not changes:
        return ""
    low, middle, high = np.quantile(changes, (0.1, 0.5, 0.9))
    return f"{middle:+.1%} ({low:+.0%} to {high:+.0%})"


if __name__ == "__main__":
    main()

"""Holds the files of an exported site against what its commands say, state by state.

    python -m tests.apps.page.site_states FOLDER
    python -m tests.apps.page.site_states FOLDER --sample 200 --jobs 2

Each state has the answer of the page, and each number of a line, a dot, a bar or a range in it
stands in the result of one of the commands that the state names. A sample is drawn from seed 0.
"""

import argparse
import gzip
import json
import random
import sys
from collections.abc import Iterator
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from shardwise.apps.page.controls import state_of
from shardwise.apps.page.site import INDEX
from shardwise.apps.page.views import VIEWS
from shardwise.boundary import finite
from shardwise.boundary.records import plain
from shardwise.errors import ShardwiseError


def unpacked(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


def drawn(folder: Path, sample: int | None = None) -> list[tuple[str, str, str]]:
    """View, key and file of each state of the index, or of so many drawn ones."""
    found = [
        (view, key, name)
        for view, states in unpacked(folder / INDEX)["states"].items()
        for key, name in states.items()
    ]
    return found if sample is None else random.Random(0).sample(found, min(sample, len(found)))


def faults(folder: Path, view: str, key: str, name: str) -> Iterator[str]:
    """What a state's file says otherwise than its commands."""
    stored, coarse = unpacked(folder / "grid" / view / f"{name}.json.gz"), _is_coarse(folder)
    row = VIEWS[view]
    try:
        state = state_of(row.state, dict(one.split("=", 1) for one in key.split("&") if one))
        said = finite(plain(row.settled(state, coarse)))[0]
        quick = coarse and row.quick is not None and bool(row.quick(state))
        results = [call.answer().result for call in row.made(state, not quick, quick)]
    except ShardwiseError as error:
        said, results = {"error": row.refusal(error)}, []
    if json.loads(json.dumps(said)) != stored:
        yield f"{view}?{key}: the file is not the page's answer"
    known = set(numbers(json.loads(json.dumps(finite(plain(results))[0]))))
    for figure in stored.get("figures", ()):
        for mark in figure["marks"]:
            if mark["kind"] in ("line", "dot", "bar", "range"):
                for value in {*numbers([mark["x"], mark["x2"], mark["y"]])} - known:
                    yield f"{view}?{key}: {figure['id']} draws {value}, which no command says"


@cache
def _is_coarse(folder: Path) -> bool:
    """Whether the site's answers are quick ones."""
    return unpacked(folder / INDEX)["coarse"]


def numbers(value: Any) -> Iterator[float]:
    """Every number within plain values."""
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, dict | list):
            yield from numbers(one)
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield float(one)


PART = 20
"""States that a process is given at once."""


def all_faults(folder: Path, states: list[tuple[str, str, str]]) -> tuple[int, list[str]]:
    """How many states, and their faults."""
    return len(states), [fault for one in states for fault in faults(folder, *one)]


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--sample", type=int)
    asked.add_argument("--jobs", type=int, default=1)
    said = asked.parse_args()
    states, wrong, done = drawn(said.folder, said.sample), 0, 0
    parts = [states[i : i + PART] for i in range(0, len(states), PART)]
    with get_context("spawn").Pool(said.jobs) as pool:
        for number, found in pool.imap_unordered(partial(all_faults, said.folder), parts):
            wrong, done = wrong + len(found), done + number
            print("\n".join([*found, f"{done} of {len(states)}"]), flush=True)
    print(f"{len(states)} states, {wrong} faults")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

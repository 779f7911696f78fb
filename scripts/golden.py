#!/usr/bin/env python3
"""Golden answers: what hundreds of commands say today, so that a later commit can be compared.

    scripts/golden.py check FILE [--sample 60] [--jobs 2]
    scripts/golden.py write FILE [--add MORE.json] [--jobs 2]

FILE holds requests, the answer of each, and the plan files that requests read. A request is the
words of one command; `files` maps the name of a plan file that it reads to a plan of FILE and what
is changed in it, `texts` a file's name to its text, and `program` is the kept program that stands
in for the real compiler. `check` runs the requests through the command line in this process
(`shardwise.apps.cli.main`, with --json), all or some of them evenly over the kinds, and prints one
line for each figure that differs by more than 1e-9, with exit code 1. Equals of a ranking may
change places. Figures that are new in an answer are no difference, nor are its sentences.

`write` runs them all and keeps the answers of today. MORE.json has requests and plans to add:

    {"plans": {NAME: the plan's document}, "rows": [{"kind": "train", "words": ["plan", "train"]}]}

The first requests were drawn at random from lists of choices, each value of each list once at
least: 25 models, 21 slices, every schedule, stage of ZeRO, remat policy, context method and dtype.
"""

import argparse
import contextlib
import gzip
import io
import itertools
import json
import math
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml

Row = Mapping[str, Any]
PROGRAMS = (
    Path(__file__).resolve().parents[1] / "tests" / "commands" / "program" / "data" / "compiled"
)
SCHEMA = 1
MOST_ENTRIES = 12
"""Of a list of plans: ten and one more, which tells whether the tenth has an equal."""
RELATIVE = 1e-9
ROUNDED = {"lasting": 1e-5, "starts": 1e-5}
"""Figures that were rounded before they were added up, and how far they may differ."""
ABSOLUTE = 1e-15
"""Seconds and shares below which a difference is the rounding of a difference of large numbers."""
DIGITS = 12
"""That are kept of a number."""
PROSE = frozenset(
    ("why", "text", "rule", "source", "slice_means", "about", "differences", "citation", "search")
)
"""Keys of sentences, which a better wording may change, and of how much a search looked at."""
PREDICTED = ("id", "predicted", "lower", "upper", "interval", "ttft_predicted", "bound_by")
PREDICTED += ("peak_bytes_per_chip",)
"""What is kept of a row of published runs; what was measured is in the repository."""
DERIVED = frozenset(
    (
        "times_slower",
        "mfu",
        "chips_used",
        "bound_by",
        "usd_per_chip_hour",
        "chip_hours_per_million_tokens",
        "columns",
    )
)
"""Keys that the entries of lists of plans do not keep: they follow from the others."""
RANKED = {
    "runners_up": ("step_seconds.expected", "tpot_seconds.expected", "usd_per_million_tokens.all"),
    "top_ops": ("seconds",),
    "prefill": ("seconds",),
    "decode": ("seconds",),
    "strategies": ("seconds.expected",),
}
"""Lists that are ordered by a number, whose equals may swap, and that number's path."""


# One request --------------------------------------------------------------------------------------


def title_of(row: Row) -> str:
    """The command as a person would write it, with the changes of its plans."""
    said = [" ".join(row["words"])]
    for name, (base, changes) in row.get("files", {}).items():
        said.append(f"{name}={base} {json.dumps(changes)}" if changes else f"{name}={base}")
    return " | ".join(said)


def answer(row: Row, plans: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """What the command says: `code`, and `result` or `message`, and `drawn`, a tally of the trace
    out.json.gz; and the seconds of CPU that it took. Runs in a folder of its own."""
    began = time.process_time()
    with folder_of(row, plans):
        with stand_in(row.get("program", "")):
            code, out, err = run([*row["words"], "--json"])
        chart = Path("out.json.gz")
        said: dict[str, Any] = {"code": code}
        if out.strip():
            said["result"] = kept(json.loads(out)["result"])
        if code:
            said["message"] = err.strip()
        if chart.exists():
            said["drawn"] = tally(read(chart))
    return said, time.process_time() - began


@contextlib.contextmanager
def folder_of(row: Row, plans: Mapping[str, Any]) -> Iterator[Path]:
    """Be in an empty folder with the plan files and other texts that the request reads."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, (base, changes) in row.get("files", {}).items():
            Path(name).write_text(yaml.safe_dump(varied(plans[base], changes), sort_keys=False))
        for name, text in row.get("texts", {}).items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text)
        yield Path(folder)


def answers(
    rows: Sequence[Row],
    plans: Mapping[str, Any],
    jobs: int,
    ask: Callable[[Row, Mapping[str, Any]], tuple[dict[str, Any], float]] = answer,
) -> Iterator[tuple[dict[str, Any], float]]:
    """Of each request in turn what it says and the seconds that it took, in `jobs` processes."""
    needed = [{b: plans[b] for b, _ in row.get("files", {}).values()} for row in rows]
    if jobs == 1:
        yield from map(ask, rows, needed)
        return
    with ProcessPoolExecutor(jobs, initializer=settle) as pool:
        yield from pool.map(ask, rows, needed)


def settle() -> None:
    """One thread for each process: there are as many processes as cores."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"


def tally(doc: Mapping[str, Any]) -> dict[str, Any]:
    """Of the events of a trace file how many there are and how long they last, by name."""
    found: dict[str, list[float]] = {}
    for event in doc["traceEvents"]:
        if "dur" in event:
            times = found.setdefault(str(event["name"]).rstrip("0123456789"), [0, 0.0, 0.0])
            times[0] += 1
            times[1] += event["dur"]
            times[2] += event["ts"]
    return {
        name: kept({"events": count, "lasting": lasting, "starts": starts})
        for name, (count, lasting, starts) in sorted(found.items())
    }


def run(words: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command, in this process."""
    from shardwise.apps.cli import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(list(words))
        except SystemExit as done:
            code = done.code or 0
    return int(code), out.getvalue(), unhurried(err.getvalue())


_PROGRESS = re.compile(r"^[a-z]+: \d+( of \d+)? [a-z ]+, \d+ s(, about \d+ s left)?\n", re.M)


def unhurried(err: str) -> str:
    """Stderr without the lines of progress that a command writes on a slow machine."""
    return _PROGRESS.sub("", err)


def varied(plan: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A plan with some fields changed; a dot leads into a section."""
    made = json.loads(json.dumps(plan))
    for path, value in changes.items():
        *sections, name = path.split(".")
        place = made
        for section in sections:
            place = place[section]
        place[name] = value
    return made


@contextlib.contextmanager
def stand_in(name: str) -> Iterator[None]:
    """Let a kept program be what the real compiler makes, wherever it is called from."""
    if not name:
        yield
        return
    from shardwise.profiler import ahead
    from shardwise.profiler.ahead.cache import read_entry
    from shardwise.profiler.ahead.compile import compiled_of

    compiled = compiled_of(name, *read_entry(PROGRAMS / name), cached=True)
    real, other = ahead.compile_ahead, lambda *_, **__: compiled
    rebind("compile_ahead", real, other)
    try:
        yield
    finally:
        rebind("compile_ahead", other, real)


def rebind(name: str, old: Any, new: Any) -> None:
    """Let a name mean another value in every module of the package that has it."""
    for path, module in list(sys.modules.items()):
        if path.startswith("shardwise") and getattr(module, name, None) is old:
            setattr(module, name, new)


def kept(value: Any) -> Any:
    """A result without its sentences, numbers rounded to what is compared."""
    if isinstance(value, Mapping):
        return {key: listed(key, kept(one)) for key, one in value.items() if key not in PROSE}
    if isinstance(value, list):
        return [kept(one) for one in value]
    if isinstance(value, float) and math.isfinite(value):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value


def listed(key: str, value: Any) -> Any:
    """The value under a key; of long lists of mappings what `SHORTER` keeps."""
    if key in SHORTER and isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return SHORTER[key](value)
    return value


def plans_of(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A list of plans, each without what follows from the rest."""
    return [{k: v for k, v in one.items() if k not in DERIVED} for one in entries[:MOST_ENTRIES]]


def rows_of(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A table; one of published runs without what was measured."""
    if not any("measured" in one for one in entries):
        return entries
    return [{k: v for k, v in one.items() if k in PREDICTED} for one in entries]


SHORTER = {
    **dict.fromkeys(("runners_up", "strategies", "front", "chips_compared"), plans_of),
    "rows": rows_of,
}
"""What is kept of a list of mappings, by its key."""


# Files --------------------------------------------------------------------------------------------


def write(path: Path, more: Path | None, jobs: int) -> int:
    """Run the requests of FILE, and those that are added, and write what they say."""
    doc = read(path)
    if more is not None:
        added = json.loads(more.read_text())
        doc["plans"] |= added.get("plans", {})
        doc["rows"] += added["rows"]
    spent = []
    for row, (said, seconds) in zip(
        doc["rows"], answers(doc["rows"], doc["plans"], jobs), strict=True
    ):
        row["said"] = said
        spent.append((seconds, title_of(row)))
        show(f"{len(spent)} of {len(doc['rows'])}")
    show("")
    write_gzip(path, doc)
    print_slowest(spent)
    counts = Counter(row["kind"] for row in doc["rows"])
    refused = Counter(row["kind"] for row in doc["rows"] if row["said"]["code"])
    for kind, count in counts.items():
        print(f"{kind:14s} {count:4d} requests, {refused[kind]:3d} of them refused")
    return 0


def print_slowest(spent: Sequence[tuple[float, str]]) -> None:
    """The ten requests that took longest, and the seconds of all."""
    for seconds, title in sorted(spent, reverse=True)[:10]:
        print(f"{seconds:6.1f} s  {title}")
    print(f"{len(spent)} requests, {sum(s for s, _ in spent):.0f} s of CPU")


def show(text: str) -> None:
    """One line of progress on a terminal; in a file, nothing."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def read(path: Path) -> dict[str, Any]:
    """A file of golden answers."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def write_gzip(path: Path, doc: Mapping[str, Any]) -> None:
    """The document, compressed, without the time at which it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(doc, separators=(",", ":"), ensure_ascii=False)
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(text.encode())


# Checking -----------------------------------------------------------------------------------------


def check(path: Path, sample: int | None, jobs: int) -> int:
    """Run the requests that FILE holds, print what differs, and return how many figures do."""
    doc = read(path)
    rows = doc["rows"] if sample is None else evenly(doc["rows"], sample)
    spent, found, touched = [], 0, 0
    for row, (said, seconds) in zip(rows, answers(rows, doc["plans"], jobs), strict=True):
        lines = list(differences(row["said"], said))
        for line in lines:
            print(f"{title_of(row)}: {line}")
        found, touched = found + len(lines), touched + bool(lines)
        spent.append((seconds, title_of(row)))
        show(f"{len(spent)} of {len(rows)}, {found} figures differ")
    show("")
    print_slowest(spent)
    print(f"{found} figures differ in {touched} of them")
    return found


def evenly(rows: Sequence[Row], count: int) -> list[Row]:
    """About so many rows: of each kind its share, one at least, in even steps."""
    by_kind = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["kind"])]
    picked = []
    for group in by_kind:
        share = max(1, round(count * len(group) / len(rows)))
        picked += [group[(2 * i + 1) * len(group) // (2 * share)] for i in range(share)]
    return picked


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """A line for each figure of `before` that `after` has otherwise."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key, value in before.items():
            place = f"{path}.{key}".removeprefix(".")
            if key not in after:
                yield f"{place}: {short(value)} -> none"
            elif key in RANKED and isinstance(value, list):
                yield from ranked(value, after[key], place, RANKED[key])
            else:
                yield from differences(value, after[key], place)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield f"{path}: {len(before)} entries -> {len(after)}"
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{path}[{number}]")
    elif not same(before, after, ROUNDED.get(path.rpartition(".")[2], RELATIVE)):
        ratio = ""
        if figure(before) and figure(after) and before:
            ratio = f" (x {after / before:.12g})"
        yield f"{path}: {short(before)} -> {short(after)}{ratio}"


def ranked(before: list[Any], after: Any, path: str, ranks: Sequence[str]) -> Iterator[str]:
    """Differences of two rankings, in which entries of one rank may stand in any order; of the last
    rank, others that are as good may stand there, too."""
    rank = next((r for r in ranks if before and at(before[0], r) is not None), None)
    if rank is None or not isinstance(after, list) or len(before) != len(after):
        yield from differences(before, after, path)
        return
    start = 0
    for end in range(1, len(before) + 1):
        if end < len(before) and same(at(before[end - 1], rank), at(before[end], rank)):
            continue
        left = {structure(entry): entry for entry in after[start:end]}
        for number in range(start, end):
            match = left.get(structure(before[number]))
            if match is None and end == len(before):
                match = after[number]
                yield from differences(
                    at(before[number], rank), at(match, rank), f"{path}[{number}].{rank}"
                )
            else:
                yield from differences(before[number], match or after[number], f"{path}[{number}]")
        start = end


def structure(entry: Any) -> str:
    """What an entry is apart from its figures: its choices."""
    if not isinstance(entry, Mapping):
        return json.dumps(entry)
    choices = {k: v for k, v in entry.items() if not isinstance(v, float) and not measured(v)}
    return json.dumps(choices, sort_keys=True)


def measured(value: Any) -> bool:
    """Whether it is a group of figures, such as lower, expected and upper."""
    return isinstance(value, Mapping) and any(isinstance(one, float) for one in value.values())


def at(entry: Any, path: str) -> Any:
    """The value at a path of an entry, or None."""
    for key in path.split("."):
        entry = entry.get(key) if isinstance(entry, Mapping) else None
    return entry


def figure(value: Any) -> bool:
    """Whether it is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(before: Any, after: Any, relative: float = RELATIVE) -> bool:
    """Equal, numbers to 1e-9 or as given."""
    if figure(before) and figure(after):
        return math.isclose(before, after, rel_tol=relative, abs_tol=ABSOLUTE)
    return before == after


def short(value: Any) -> str:
    """A value in a line."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("write", "check"):
        one = verbs.add_parser(verb)
        one.add_argument("file", type=Path)
        one.add_argument("--jobs", type=int, default=2)
        if verb == "check":
            one.add_argument("--sample", type=int)
        else:
            one.add_argument("--add", type=Path)
    asked = parser.parse_args()
    if asked.verb == "write":
        return write(asked.file, asked.add, asked.jobs)
    return 1 if check(asked.file, asked.sample, asked.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())

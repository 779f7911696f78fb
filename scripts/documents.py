#!/usr/bin/env python3
"""All that commands answer, in every word, so that a rebuild can be held against what was before.

    scripts/documents.py write [--kind COMMAND]
                                            runs the requests and keeps what they answer
    scripts/documents.py check [--sample N] [--part K/N] [--kind COMMAND] [--jobs 2]
                                            runs them again and prints every difference

tests/documents/requests.json has the requests. Of each the file documents.json.gz beside it keeps
the exit code, stderr and, by view,

    document   stdout with --json, and the text of every file that the command wrote
    page       stdout for people, in 100 columns without colour
    whole      the page with --detail, --why and --book where there are such, and -v

`check` is strict: a key that is new, missing or elsewhere is a difference, and so is every other
word, number (1e-9 relative) or type. It exits with 1 where there is one that `ALLOWED` does not
name. `golden.py` beside it compares figures alone, of many more requests.

What is different at each run is masked, in this order:

1. The folder of a request, the package, this repository and the test server's address are FOLDER,
   PACKAGE, ROOT and SERVER; where a kept program was compiled (`ELSEWHERE`) is /elsewhere. A
   command with PACKAGE in it is one line: where it is broken depends on the length of that path.
2. A search takes 0 seconds by its clock, prices are looked at on the day `TODAY`, and the day on
   which a load was measured (`MEASURED_ON`) is DATE.
3. Of a request with `"timed": [PATTERN, ...]`, which measures, numbers and dates at those paths of
   the document are the names of their types, and every digit of its pages and of stderr is #.

`program` names a kept program that stands in for the compiler, `child` the kept answers of what
ran in a child process; a `write` without such a file runs the child and keeps what it answered.
`server` starts an endpoint that speaks the API, `alone` runs the command in a process of its own.
"""

import argparse
import contextlib
import gzip
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import golden
from differences import differences

Row = Mapping[str, Any]
ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests" / "documents"
REQUESTS, DOCUMENTS, CHILDREN = (
    HERE / "requests.json",
    HERE / "documents.json.gz",
    HERE / "children",
)
PLANS = ROOT / "tests" / "golden_answers" / "answers.json.gz"
CORPUS = ROOT / "tests" / "profiler" / "explain" / "data"
KEPT = ROOT / "tests" / "kept"
SCHEMA = 1
VIEWS = ("document", "page", "whole")
MORE = ("--detail", "--why", "--book")
"""Options that print more of an answer."""
TODAY = date(2026, 11, 29)
ELSEWHERE = re.compile(
    r"(?<![\w.])(?:/[\w.+-]+)+(?=/(?:site-packages|src/shardwise|scripts|tests)/)"
)
MEASURED_ON = re.compile(r"(?<= on )20\d\d-\d\d-\d\d")
TEXTS = (".csv", ".yaml", ".yml", ".toml", ".txt", ".json", ".sh", ".py", ".md", "")
"""Endings of files whose text is kept; of others only the name, and of a trace a tally."""
LONG = 20_000
"""Characters of a program's text of which the hash is kept."""
ALLOWED: Mapping[str, str] = {}
"""Differences that are meant: a pattern of the line that `check` prints, and the reason."""


# Requests -----------------------------------------------------------------------------------------


@cache
def commands() -> dict[str, set[str]]:
    """The options of every command by its words."""
    from options import commands as every

    return {name: {o for p in command.params for o in p.opts} for name, command in every()}


def requests() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The requests with their words, kinds and texts, and the plans that they read."""
    doc = json.loads(REQUESTS.read_text(encoding="utf-8"))
    plans = golden.read(PLANS)["plans"] | doc["plans"]
    rows = []
    for row in doc["rows"]:
        words = shlex.split(row["words"])
        texts = {name: doc["texts"][name] for name in row.get("texts", ())}
        rows.append(row | {"words": words, "kind": kind_of(words), "texts": texts})
    return rows, plans


def kind_of(words: Sequence[str]) -> str:
    """The command of a request."""
    two = " ".join(words[:2])
    return two if two in commands() else words[0]


def name_of(row: Row) -> str:
    """A request as a key: its title, and what stands in."""
    others = [f"{k}={row[k]}" for k in ("program", "child") if k in row]
    return " | ".join([golden.title_of(row), *others])


# Answers ------------------------------------------------------------------------------------------


def answer(row: Row, plans: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """What the request answers by view, and the seconds of CPU of this process."""
    began = time.process_time()
    settle()
    said: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home, served(row) as url, played(row):
        os.environ |= {"XDG_STATE_HOME": home, "XDG_CACHE_HOME": home}
        for view in row.get("views", VIEWS):
            said[view] = answered(row, plans, view, url)
    searches().clear()
    return said, time.process_time() - began


@cache
def settle() -> None:
    """Make pages of one width, clocks that stand still, and one search for the views of a
    request."""
    os.environ |= {"COLUMNS": "100", "JAX_PLATFORMS": "cpu", "NO_COLOR": "1"}
    from shardwise.hardware import prices
    from shardwise.planner.search import loop

    loop.time = SimpleNamespace(perf_counter=lambda: 0.0)  # type: ignore[assignment]

    class Day(date):
        @classmethod
        def today(cls) -> date:
            return TODAY

    prices.date = Day  # type: ignore[misc]
    searches()


@cache
def searches() -> dict[Any, Any]:
    """The searches of this process, which are kept from now on (`tests/searched.py`)."""
    sys.path.insert(0, str(ROOT))
    from tests.searched import _KEPT, search

    from shardwise.planner import training

    training.search = search
    return _KEPT


def answered(row: Row, plans: Mapping[str, Any], view: str, url: str) -> dict[str, Any]:
    """Code, stdout, stderr and written files of one view, with what differs at each run masked."""
    words = [*(word.replace("SERVER", url) for word in row["words"]), *added(row, view)]
    with golden.folder_of(row, plans) as folder:
        there = {path for path in folder.rglob("*") if path.is_file()}
        with program_of(row.get("program", "")):
            code, out, err = run(words, row)
        err = golden.unhurried(err)
        new = sorted(p for p in folder.rglob("*") if p.is_file() and p not in there)
        files = {str(p.relative_to(folder)): content(p) for p in new if not hidden(p, folder)}
    import shardwise

    package = str(Path(shardwise.__file__).parent)
    hide = [(str(folder), "FOLDER"), (package, "PACKAGE"), (str(ROOT), "ROOT")]
    hide += [(url, "SERVER")] if url else []
    timed = row.get("timed", ())
    said: dict[str, Any] = {"code": code, "out": unmarked(out, hide), "err": unmarked(err, hide)}
    said["err"] = digits(said["err"]) if timed else said["err"]
    if view != "document":
        text = digits(said["out"]) if timed else said["out"]
        said["out"] = _WIDE.sub(r"\1\1", text) if view == "whole" else text
        return said
    with contextlib.suppress(ValueError):
        said["out"] = masked(json.loads(said["out"]), timed)
    said["files"] = {k: masked(unmarked(v, hide), timed, f"files.{k}") for k, v in files.items()}
    return said


def run(words: list[str], row: Row) -> tuple[int, str, str]:
    """Code, stdout and stderr; a traceback is what an error of our own says."""
    try:
        return alone(words) if row.get("alone") else golden.run(words)
    except Exception:
        return 1, "", traceback.format_exc()


def added(row: Row, view: str) -> list[str]:
    """The options that make a view of the request."""
    known, given = commands()[row["kind"]], set(row["words"])
    if view == "whole":
        return [option for option in (*MORE, "-v") if option in known - given]
    if view == "document":
        table = "--csv" in known - given and row.get("table", True)
        return ["--json", *(["--csv", "table.csv"] if table else [])]
    return []


def hidden(path: Path, folder: Path) -> bool:
    """Whether a file is none of the command's answer: what a run of the trainer keeps."""
    return bool({"checkpoints", "data", "tensorboard"} & set(path.relative_to(folder).parts))


def content(path: Path) -> Any:
    """Of a written file what is kept."""
    if path.name.endswith(".trace.json.gz") or path.name == "out.json.gz":
        return golden.tally(golden.read(path))
    if path.suffix not in TEXTS:
        return "(another form)"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(unmarked(text, ()))
    if len(text) > LONG and path.suffix == ".txt":
        return hashlib.sha256(text.encode()).hexdigest()
    return text


def alone(words: Sequence[str]) -> tuple[int, str, str]:
    """Code, stdout and stderr of a command in a process of its own."""
    code = "from shardwise.apps.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


# What stands in -----------------------------------------------------------------------------------


@contextlib.contextmanager
def program_of(name: str) -> Iterator[None]:
    """Let a program be what the compiler makes: of a whole plan (`golden.PROGRAMS`), of the corpus
    of `shardwise explain` or of tests/kept, which has stages. NAME:BYTES does not fit."""
    if not name or (golden.PROGRAMS / name).exists():
        with golden.stand_in(name):
            yield
        return
    from shardwise.profiler import ahead
    from shardwise.profiler.ahead.cache import read_entry
    from shardwise.profiler.ahead.compile import compiled_of

    label, _, size = name.partition(":")
    folder = CORPUS if (CORPUS / f"{label}.hlo.gz").exists() else KEPT
    row = corpus(folder)[label]
    record, _ = read_entry(golden.PROGRAMS / "zero-1")
    record |= {"slice": row.get("on") or row["slice"], "devices": 8, "mesh": row["mesh"]}
    record |= {"buffers": row.get("buffers", []), "fits": not size, "needed_bytes": 2**30}
    if size:
        record["needed_bytes"] = int(size)
    hlo = gzip.decompress((folder / f"{label}.hlo.gz").read_bytes()).decode()
    compiled = compiled_of(label, record, hlo, cached=True)

    def other(*_: Any, limits: Any = None, **__: Any) -> Any:
        if limits is not None and limits.stages is not None:
            shutil.copy(KEPT / f"{label}.json.gz", limits.stages)
        return compiled

    with rebound("compile_ahead", ahead.compile_ahead, other):
        yield


@cache
def corpus(folder: Path) -> dict[str, Any]:
    """The rows of kept programs by their names."""
    doc = json.loads((folder / "index.json").read_text())
    return {row["name"]: row for row in doc["rows"]} if "rows" in doc else doc


@contextlib.contextmanager
def rebound(name: str, real: Any, other: Any) -> Iterator[None]:
    """Let a name of the package mean another value, wherever it is imported to."""
    golden.rebind(name, real, other)
    try:
        yield
    finally:
        golden.rebind(name, other, real)


@contextlib.contextmanager
def played(row: Row) -> Iterator[None]:
    """Let child processes answer what they answered when the record was made."""
    name = row.get("child")
    if name is None:
        yield
        return
    from shardwise.profiler import child

    file, real = CHILDREN / f"{name}.json.gz", child.run_function

    def other(*asked: Any, **more: Any) -> Any:
        if not file.exists():
            env = {"PYTHONPATH": os.getcwd(), **(more.pop("environment", None) or {})}
            text = json.dumps(real(*asked, **more, environment=env))
            golden.write_gzip(file, json.loads(unmarked(text, [(os.getcwd(), "/made")])))
        return golden.read(file)

    with rebound("run_function", real, other):
        yield


class Api(BaseHTTPRequestHandler):
    """Streams as many tokens as asked for."""

    def do_GET(self) -> None:
        """The one model, and no metrics."""
        if not self.path.endswith("/models"):
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"object": "list", "data": [{"id": "tiny"}]}).encode())

    def do_POST(self) -> None:
        """A completion."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for _ in range(asked["max_tokens"]):
            time.sleep(0.002)
            self._say({"choices": [{"text": "a"}]})
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": asked["max_tokens"]}
        self._say({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _say(self, event: Mapping[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr, which is compared."""


@contextlib.contextmanager
def served(row: Row) -> Iterator[str]:
    """The address of a server that answers, where the request wants one."""
    if not row.get("server"):
        yield ""
        return
    api = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=api.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{api.server_address[1]}"
    finally:
        api.shutdown()
        api.server_close()
        thread.join()


# Masks --------------------------------------------------------------------------------------------


def unmarked(value: Any, hide: Sequence[tuple[str, str]]) -> Any:
    """Text without the places of this machine."""
    if not isinstance(value, str):
        return value
    for place, name in hide:
        value = value.replace(place, name)
    if "PACKAGE" in value:
        commands = re.split(r"(?<! \\)\n", value)
        value = "\n".join(re.sub(r" \\\n +", " ", c) if "PACKAGE" in c else c for c in commands)
    return MEASURED_ON.sub("DATE", ELSEWHERE.sub("/elsewhere", value))


def digits(text: str) -> str:
    """Text whose numbers do not matter, nor their signs, units and width."""
    return re.sub(r"[ -]{2,}", " ", re.sub("#+", "#", _MEASURED.sub("#", text)))


_MEASURED = re.compile(r"[-+]?[\d.,:]*\d(e[-+]?\d+)?( ?([mµn]?s|[kMG])\b)?")


def masked(value: Any, timed: Sequence[str], path: str = "") -> Any:
    """A document with 12 digits of a number, and the masks of the head of this file."""
    if isinstance(value, dict):
        return {k: masked(v, timed, f"{path}.{k}".removeprefix(".")) for k, v in value.items()}
    if isinstance(value, list):
        return [masked(v, timed, f"{path}[{i}]") for i, v in enumerate(value)]
    if value is not None and any(fnmatchcase(path, pattern) for pattern in timed):
        return type(value).__name__ if isinstance(value, float) else digits(str(value))
    if isinstance(value, str):
        return _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.{golden.DIGITS}g}", value)
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{golden.DIGITS}g}")
    return value


_WIDE = re.compile(r"([ -])\1{2,}")
"""Columns of a table with a path in it are as wide as the path."""
_LONG_NUMBER = re.compile(r"\d*\.\d{12,}(e[+-]?\d+)?")
"""In a text, as of a table."""


# Comparing ----------------------------------------------------------------------------------------


def allowed(line: str) -> bool:
    """Whether the difference is meant."""
    return any(fnmatchcase(line, pattern) for pattern in ALLOWED)


def sampled(rows: Sequence[Row], count: int | None) -> list[Row]:
    """So many of the requests, in even steps over all, which stand by kind."""
    if count is None or count >= len(rows):
        return list(rows)
    return [rows[(2 * i + 1) * len(rows) // (2 * count)] for i in range(count)]


# Verbs --------------------------------------------------------------------------------------------


def write(jobs: int, kinds: Sequence[str]) -> int:
    """Run the requests, all or those of some commands, and keep what they answer."""
    every, plans = requests()
    rows = [row for row in every if not kinds or row["kind"] in kinds]
    kept = golden.read(DOCUMENTS)["answers"] if kinds else {}
    spent = []
    for row, (said, seconds) in zip(rows, golden.answers(rows, plans, jobs, answer), strict=True):
        kept[name_of(row)] = said
        spent.append((seconds, name_of(row)))
        golden.show(f"{len(spent)} of {len(rows)}")
        for view, one in said.items():
            if one["code"] != row.get("code", 0):
                print(f"{name_of(row)}: {view} ends with {one['code']}: {one['err'].strip()}")
    kept = {name: kept[name] for name in map(name_of, every)}
    golden.write_gzip(DOCUMENTS, {"schema_version": SCHEMA, "answers": kept})
    golden.print_slowest(spent)
    return 0


def check(rows: Sequence[Row], plans: Mapping[str, Any], jobs: int) -> int:
    """Run the requests again, print what differs and return how much does."""
    kept = golden.read(DOCUMENTS)["answers"]
    spent, found, meant = [], 0, 0
    for row, (said, seconds) in zip(rows, golden.answers(rows, plans, jobs, answer), strict=True):
        after = json.loads(json.dumps(said))
        lines = list(differences(kept.get(name_of(row)), after, name_of(row)))
        for line in (line for line in lines if not allowed(line)):
            found += 1
            print(line)
        meant += sum(map(allowed, lines))
        spent.append((seconds, name_of(row)))
        golden.show(f"{len(spent)} of {len(rows)}, {found} differences")
    golden.show("")
    golden.print_slowest(spent)
    print(f"{found} differences, {meant} more that are meant")
    return found


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("verb", choices=("write", "check"))
    parser.add_argument("--sample", type=int, help="check so many")
    parser.add_argument("--part", default="1/1", help="check every N-th from the K-th on, as K/N")
    parser.add_argument("--kind", action="append", default=[], help="those of a command alone")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    if asked.verb == "write":
        return write(asked.jobs, asked.kind)
    rows, plans = requests()
    rows = sampled(
        [row for row in rows if not asked.kind or row["kind"] in asked.kind], asked.sample
    )
    first, parts = map(int, asked.part.split("/"))
    return 1 if check(rows[first - 1 :: parts], plans, asked.jobs) else 0


if __name__ == "__main__":
    sys.exit(main())

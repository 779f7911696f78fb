"""Ten thousand requests, many of them faulty, on the real engine: what is answered, held, leaked.

    python benchmarks/faults.py [--requests 10000] [--in-flight 64] [--shape least] [--sigterm]
                                [--folder MODEL_DIR] [--record FILE]
    python benchmarks/faults.py --hostile 1000 [--seconds 600] [--honest 8]

The load of `tests/apps/server/client.py`: oversized prompts, invalid JSON, wrong types and unknown
fields, clients that leave early or read slowly, and every other answer checked. A fifth as many
requests warm the server up; then a line says after every tenth what the server holds. With
`--sigterm` the signal comes in the middle: what was accepted must finish, and what is new gets 503
until nobody listens. The exit code is 1 where an answer is wrong or missing, or a page is held.

With `--hostile` so many clients of `hostile.py` are at it for `--seconds` beside honest ones, in
windows between others without them, server and clients on a core each. `ratio` is that of the
medians of the honest ones' times to the first token.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from environments import free_port
from hostile import TEMPLATE, figures, window
from llama_folder import SHAPES, write_llama
from made import made
from soak import MODEL_LEN, SETTLES, healthy, server_state
from tests.apps.server.client import check, load

PARTS = 10
ALL = ("--warm", "all")
FEW = ("--sequences", "8", "--prefill-chunk", "64", *ALL)
"""Of a server that is besieged: there are few programs to compile."""
WINDOWS, QUIET, SETTLE, WARM = 5, 0.2, 1.5, 5.0
"""With hostile clients; the length of those without as a share; seconds until hostile clients are
at it; and of honest ones before, again and again until no program is compiled."""
NOBODY = -1
"""The client's status where nobody listened, as after a drain."""
Answer = tuple[Any, dict[str, Any], int, bytes]


def judged(found: list[Answer], *, ending: bool) -> tuple[Counter[str], list[str]]:
    """How many requests came to what, and those whose answer is wrong or missing."""
    counts, wrong = Counter[str](), list[str]()
    for body, how, status, answer in found:
        if "leave_after" in how:
            counts["left"] += 1
            continue
        counts["nobody listens" if status == NOBODY else str(status)] += 1
        if ending and (status == NOBODY or (status == 503 and b"no new requests" in answer)):
            continue
        try:
            check(body, status, answer)
        except Exception as error:  # all of them are counted
            wrong.append(f"{status}: {error!r}"[:300])
    return counts, wrong


def resident(process: int) -> float:
    """Megabytes of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def threads(process: int) -> list[int]:
    """Of a process and of all that it started."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        found.append(int(task.name))
        for child in (task / "children").read_text().split():
            found += threads(int(child))
    return found


def held(port: int) -> dict[str, Any]:
    """Pages that cannot be given to others and requests, at once and when all has settled."""
    begun, first = time.monotonic(), None
    while True:
        state = server_state(port)
        found = {
            "pages": state["pages"]["all"] - state["pages"]["available"],
            "requests": state["requests"]["running"] + state["requests"]["waiting"],
            "answers": state["server"]["answers"],
        }
        first, seconds = first or found, time.monotonic() - begun
        if not any(found.values()) or seconds > SETTLES:
            return {"first": first, "after_s": round(seconds, 3), "settled": found}


def to_the_end(process: int, port: int, requests: int, in_flight: int) -> dict[str, Any]:
    """A load with nothing else: memory by parts of it, what is held after it."""
    found: list[Answer] = asyncio.run(load(port, Random(1), requests // 5, in_flight))
    lines, draw, since = [[0, round(resident(process), 1)]], Random(2), time.monotonic()
    for part in range(1, PARTS + 1):
        found += asyncio.run(load(port, draw, requests // PARTS, in_flight))
        lines.append([part * requests // PARTS, round(resident(process), 1)])
        print(json.dumps(lines[-1]), flush=True)
    grown = (lines[-1][1] - lines[0][1]) / lines[-1][0] * 1e3
    seconds = time.monotonic() - since
    counts, wrong = judged(found, ending=False)
    return {
        "seconds": round(seconds, 1),
        "requests_and_rss_mb": lines,
        "rss_mb_per_1000_requests": round(grown, 2),
        "statuses": counts,
        "held": held(port),
        "wrong": wrong,
    }


def with_signal(
    process: subprocess.Popen[bytes], port: int, requests: int, in_flight: int
) -> dict[str, Any]:
    """A load with SIGTERM in the middle of it."""

    def begun(count: int) -> None:
        if count == requests // 2:
            process.send_signal(signal.SIGTERM)

    found = asyncio.run(load(port, Random(3), requests, in_flight, begun))
    counts, wrong = judged(found, ending=True)
    return {"statuses": counts, "wrong": wrong}


def warmed(port: int, honest: int) -> None:
    """Honest clients until nothing is left to compile for them."""
    before, compiled = -1, 0
    while compiled > before:
        window(port, honest, WARM, compiled)
        before, compiled = compiled, server_state(port)["programs"]["compiled"]


def besieged(
    process: subprocess.Popen[bytes], port: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Windows with hostile clients and without, in turn: the ratio of their medians."""
    command = [sys.executable, str(Path(__file__).with_name("hostile.py")), str(port)]
    wrong, windows, largest = list[str](), list[dict[str, Any]](), 0.0
    warmed(port, options.honest)
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as hostile:
        assert hostile.stdin is not None
        for number in range(2 * WINDOWS):
            many = options.hostile * (number % 2)
            print(many, file=hostile.stdin, flush=True)
            time.sleep(SETTLE)
            seconds = options.seconds / WINDOWS * (1 if many else QUIET) - SETTLE * bool(many)
            found = window(port, options.honest, max(seconds, 2.0), number)
            largest = max(largest, resident(process.pid))
            windows.append({"hostile": many, **figures(found), "failed": len(found.failed)})
            wrong += found.failed
            print(json.dumps(windows[-1]), flush=True)
        print(0, file=hostile.stdin, flush=True)
    times = [[w["ttft_ms"] for w in windows if bool(w["hostile"]) == with_] for with_ in (0, 1)]
    quiet, under = map(median, times)
    found = {"windows": windows, "ttft_ms": [quiet, under], "ratio": round(under / quiet, 2)}
    return {**found, "largest_rss_mb": round(largest, 1), "held": held(port), "wrong": wrong}


def last_of(log: Path) -> dict[str, int]:
    """What the server's last line says of pages and requests."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{"]
    (ends,) = (line for line in lines if line["event"] == "ends")
    return {name: ends[name] for name in ("pages_used", "unfinished")}


def served(folder: Path, port: int, log: Path, *words: str) -> subprocess.Popen[bytes]:
    """A server of the folder, once it answers."""
    words = ("--port", str(port), "--seq", str(MODEL_LEN), *words)
    with log.open("w") as errors:
        command = [sys.executable, "-m", "shardwise", "serve", str(folder), *words]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    while process.poll() is None and not healthy(port):
        time.sleep(0.5)
    if process.poll() is not None:
        raise SystemExit(f"the server ended: {log.read_text()[-1000:]}")
    return process


def tried(options: argparse.Namespace, passing: Path) -> dict[str, Any]:
    """Start the server, load it, end it."""
    folder = options.folder or write_llama(passing / "llama", options.shape)
    if options.hostile and not options.folder:
        words = folder / "tokenizer_config.json"
        changed = {**json.loads(words.read_text()), "chat_template": TEMPLATE}
        words.write_text(json.dumps(changed))
    port, log = free_port(), passing / "log"
    cores = sorted(os.sched_getaffinity(0))
    process = served(folder, port, log, *(FEW if options.hostile else ALL))
    try:
        if options.hostile:
            for thread in threads(process.pid):
                os.sched_setaffinity(thread, cores[:1])  # what it starts later inherits it
            os.sched_setaffinity(0, cores[-1:])
            found = besieged(process, port, options)
            process.send_signal(signal.SIGTERM)
        elif options.sigterm:
            found = with_signal(process, port, options.requests, options.in_flight)
        else:
            found = to_the_end(process.pid, port, options.requests, options.in_flight)
            process.send_signal(signal.SIGTERM)
        code = process.wait(120)
    finally:
        process.kill()
    return {**found, "last_line": last_of(log), "exit_code": code}


def main() -> None:
    """One load, its figures, and whether anything was lost."""
    options = _options()
    with tempfile.TemporaryDirectory() as passing:
        found = tried(options, Path(passing))
    wrong = found.pop("wrong")
    document = {**made(("jax",)), "requests": options.requests, "sigterm": options.sigterm}
    document |= {**found, "wrong": len(wrong), "first_wrong": wrong[:10]}
    print(json.dumps(document, indent=1))
    if options.record:
        options.record.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(bool(found["exit_code"] or wrong or any(found["last_line"].values())))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A load with faults on our server.")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--shape", choices=SHAPES, default="least", help="of the Llama made here")
    parser.add_argument("--folder", type=Path, help="a checkpoint in its place")
    parser.add_argument("--sigterm", action="store_true", help="SIGTERM in the middle")
    parser.add_argument("--hostile", type=int, default=0, help="so many hostile clients instead")
    parser.add_argument("--honest", type=int, default=8, help="clients beside them")
    parser.add_argument("--seconds", type=float, default=600.0, help="that hostile clients have")
    parser.add_argument("--record", type=Path, help="a JSON file that gets the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()

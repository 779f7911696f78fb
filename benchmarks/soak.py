"""A server under a moderate load for an hour: what it holds, and whether every answer is right.

    python benchmarks/soak.py [--minutes 60] [--rate 2] [--folder MODEL_DIR] [--record FILE]

Requests come at random at `rate` per second: completions of many lengths, streamed and whole, with
`n`, stop strings and logprobs; a fifth are nonsense, a fifth leave early, a tenth read slowly
(`tests/apps/server/client.py`). Every sixth of the time a line says what the server holds. At the
end SIGTERM: no page may be held then but by the prefix cache, and none by a request.
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
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from environments import free_port
from llama_folder import write_llama
from made import made
from tests.apps.server.client import ask, check, drawn

PARTS = 6
MODEL_LEN = 1024
SETTLES = 10.0
"""Seconds in which a server must have noticed those who left."""


class Tally:
    """What came of the requests so far."""

    def __init__(self) -> None:
        self.asked = self.answered = self.refused = self.left = 0
        self.wrong: list[str] = []

    async def one(self, port: int, draw: Random) -> None:
        """A request, and whether its answer is the one that it must have."""
        body, how = drawn(draw)
        self.asked += 1
        status, answer = (await ask(port, "/v1/completions", body, **how))[:2]
        if "leave_after" in how:
            self.left += 1
            return
        self.answered += status == 200
        self.refused += 400 <= status < 500
        if status == 429:  # the queue is full
            return
        try:
            check(body, status, answer)
        except Exception as error:  # the soak goes on
            self.wrong.append(f"{status}: {error}"[:300])


def held(process: int, port: int, since: float, tally: Tally) -> dict[str, Any]:
    """One line of the record."""
    state = server_state(port)
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    tokens = sum(
        float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total")
    )
    pages = state["pages"]
    resident = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return {
        "minutes": round((time.monotonic() - since) / 60, 1),
        "rss_mb": round(resident * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
        "pages_held": pages["all"] - pages["free"] - pages["prefix_tree"],
        "requests_under_way": sum(state["requests"][k] for k in ("running", "waiting")),
        "tokens": int(tokens),
        "asked": tally.asked,
        "answered": tally.answered,
        "refused": tally.refused,
        "left": tally.left,
        "wrong": len(tally.wrong),
    }


async def soak(process: int, port: int, minutes: float, rate: float) -> tuple[list[Any], Tally]:
    """The load, and a line for each part of its time."""
    draw, tally, tasks = Random(0), Tally(), set()
    since = time.monotonic()
    lines = [held(process, port, since, tally)]
    for part in range(1, PARTS + 1):
        while time.monotonic() < since + part * minutes * 60 / PARTS:
            await asyncio.sleep(draw.expovariate(rate))
            task = asyncio.create_task(tally.one(port, draw))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        lines.append(await asyncio.to_thread(held, process, port, since, tally))
        print(json.dumps(lines[-1]), flush=True)
    await asyncio.gather(*tasks)
    return lines, tally


def settled(process: int, port: int, tally: Tally) -> dict[str, Any]:
    """A line once the server has noticed that the last clients left: what it holds until then is
    theirs."""
    since = time.monotonic()
    while True:
        line = held(process, port, since, tally)
        if not line["requests_under_way"] or time.monotonic() > since + SETTLES:
            return line


def main() -> None:
    """Start the server, load it, end it."""
    options = _options()
    os.nice(19)
    with tempfile.TemporaryDirectory() as passing:
        folder = options.folder or write_llama(Path(passing) / "llama")
        port = free_port()
        words = ["--port", str(port), "--seq", str(MODEL_LEN), "--warm", "all"]
        command = [sys.executable, "-m", "shardwise", "serve", str(folder), *words]
        command += ["--log-level", "warning"]
        process = subprocess.Popen(command)
        try:
            while process.poll() is None and not healthy(port):
                time.sleep(0.5)
            lines, tally = asyncio.run(soak(process.pid, port, options.minutes, options.rate))
            end = settled(process.pid, port, tally)
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
        finally:
            process.kill()
    first, last = lines[1], lines[-1]
    grown = (last["rss_mb"] - first["rss_mb"]) / max(last["asked"] - first["asked"], 1) * 1e3
    document = {
        **made(("jax",)),
        "lines": lines,
        "rss_mb_per_1000_requests": round(grown, 2),
        "pages_held_at_end": end["pages_held"],
        "exit_code": code,
        "wrong": tally.wrong[:10],
    }
    print(json.dumps(document, indent=1))
    if options.record:
        options.record.write_text(json.dumps(document, indent=1) + "\n")


def server_state(port: int) -> dict[str, Any]:
    """What a server says of its pages, requests and answers."""
    with urlopen(f"http://127.0.0.1:{port}/debug/state", timeout=60) as answer:
        return json.load(answer)


def healthy(port: int) -> bool:
    """Whether a server takes requests."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
            return True
    except OSError:
        return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="An hour of a moderate load on our server.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=2)
    parser.add_argument("--folder", type=Path, help="a checkpoint; default a small Llama")
    parser.add_argument("--record", type=Path, help="a JSON file that gets the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""The loop of a server: plan, serve, bench, calibrate, plan, serve; a page of what it says.

    python benchmarks/loop.py FOLDER [--page docs/lab/serving_loop.md]

In FOLDER a tiny Llama with random weights is made, and this machine is measured and served on. The
constants that are fitted under one load predict the steps of another: longer prompts, shorter
answers, half as many requests again. Every command of the page is run as it stands there.
"""

import argparse
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from llama_folder import write_llama

URL = "http://127.0.0.1:8000"
SHAPE = "--weights f32 --kv f32 --input 128 --output 64 --rate 4 --tpot 50ms"
PLAN = f"shardwise plan serve --model llama --on here:1 {SHAPE}"
CACHE = "--kv-tokens 32768"
COUNTERS = ("shardwise:step_seconds_total", "shardwise:predicted_step_seconds_total")
HEAD = """# The loop closed: plan, serve, bench, calibrate, plan again

Every command below was run as it stands, on {when}, by `python benchmarks/loop.py FOLDER --page
docs/lab/serving_loop.md` on a CPU of {cores} cores without an accelerator; on one the commands are
the same, but that a slice of the catalogue (`--on v5e:1x1`) takes the place of `here:1`. `llama` is
a folder of random weights (`scripts/llama_folder.py`, 5 million parameters): what takes time here
is software, so that there is something to learn.
"""


class LoopPage:
    """What was run and said, as a page."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lines = folder, [HEAD.format(when=date.today(), cores=os.cpu_count())]

    def say(self, text: str) -> None:
        """A paragraph."""
        self.lines.append(text + "\n")

    def show(self, command: str, output: str = "") -> None:
        """A command and what it printed."""
        block = "\n".join([f"$ {command}", *(line.rstrip() for line in output.splitlines())])
        print(block, flush=True)
        self.lines.append(f"```text\n{block.rstrip()}\n```\n")

    def run(self, command: str) -> None:
        """Run a command of shardwise in the folder; it must succeed."""
        done = subprocess.run(
            _argv(command), cwd=self.folder, text=True, capture_output=True, check=False
        )
        if done.returncode:
            sys.exit(f"$ {command}\n{done.stdout}{done.stderr}")
        self.show(command, done.stdout)

    @contextmanager
    def serving(self, command: str) -> Iterator[None]:
        """A server that runs meanwhile and ends by SIGTERM."""
        with (self.folder / "server.log").open("w") as log:
            server = subprocess.Popen(_argv(command), cwd=self.folder, stderr=log)
        try:
            _wait(server)
            self.show(f"{command} &")
            yield
        finally:
            server.terminate()
            server.wait(60)


def _argv(command: str) -> list[str]:
    return [sys.executable, "-m", *shlex.split(command)]


def _wait(server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{URL}/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    sys.exit("the server ended; see server.log")


def step_seconds() -> tuple[float, float, str]:
    """Seconds of all steps so far as measured and as predicted, and the lines that say so."""
    text = urllib.request.urlopen(f"{URL}/metrics", timeout=30).read().decode()
    lines = [line for name in COUNTERS for line in text.splitlines() if line.startswith(name)]
    measured, predicted = (float(line.split()[-1]) for line in lines)
    return measured, predicted, "\n".join(lines)


def loop(page: LoopPage) -> float:
    """Predicted over measured mean step time of the second load."""
    page.say("## The machine and a plan for it")
    page.say("What this machine multiplies and moves in a second, as the file of a chip:")
    page.run("shardwise calibrate --cpu-devices 1 --name here -o here.toml --force")
    page.say("A plan for it, with the chip's own times and nothing for software:")
    page.run(f"{PLAN} --hw here.toml --for jax -o plan.yaml --force --quiet")
    page.say("## Served and measured")
    with page.serving(f"shardwise serve plan.yaml --hw here.toml {CACHE} --warm all"):
        page.say("A load, and how far the plan is off:")
        page.run(f"shardwise bench serve --endpoint {URL} --requests 40 --rate 4")
        page.show(f"curl -s {URL}/metrics | grep step_seconds_total{{", step_seconds()[2])
        page.say(
            "Calibrating puts a load of its own on the server, around the plan's lengths and rate, "
            "and fits the shares of the machine's rates that the engine reaches and its own "
            "seconds per kernel and per sequence:"
        )
        page.run(
            f"shardwise calibrate plan.yaml --hw here.toml --endpoint {URL} --served-model llama "
            f"{CACHE} -o served.toml --force"
        )
    page.say("## Planned again, and held against another load")
    again = "--hw here.toml --hw served.toml"
    page.run(f"{PLAN} {again} --for served.engine.toml -o again.yaml --force --quiet")
    with page.serving(f"shardwise serve again.yaml {again} {CACHE} --warm all"):
        page.say("Prompts twice as long, answers half as long, half as many requests again:")
        other = "--input 256 --output 32 --seed 1"
        page.run(f"shardwise bench serve --endpoint {URL} --requests 60 --rate 6 {other}")
        measured, predicted, lines = step_seconds()
        page.show(f"curl -s {URL}/metrics | grep step_seconds_total{{", lines)
    page.say(
        f"The mean step of that load was predicted at {predicted / measured:.2f} of what it took; "
        "other work on the machine moves this figure (0.76 was seen), so measure when it is quiet. "
        "Steps are padded to a few shapes, of which a plan knows nothing: single steps are off by "
        "more."
    )
    return predicted / measured


def main() -> None:
    parser = argparse.ArgumentParser(description="plan, serve, bench, calibrate, plan, serve")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", type=Path, help="write what was run and said here")
    options = parser.parse_args()
    write_llama(options.folder / "llama")
    page = LoopPage(options.folder)
    ratio = loop(page)
    print(f"predicted / measured mean step of the second load: {ratio:.2f}")
    if options.page is not None:
        options.page.write_text("\n".join(page.lines), encoding="utf-8")


if __name__ == "__main__":
    main()

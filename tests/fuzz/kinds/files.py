"""Files that others wrote: configs, chips, tables, compiled programs, captures, weights; notation.

Notation is damaged in the command line.
"""

import gzip
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.cases import Case
from fuzz.mutate import Harm

TESTS = Path(__file__).parent.parent.parent
Files = dict[str, bytes]


@cache
def configs() -> tuple[bytes, ...]:
    """Configs of the zoo that differ in what they hold."""
    import shardwise.models

    data = Path(shardwise.models.__file__).parent / "data"
    names = (
        *("llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gemma-3-4b", "gpt-oss-20b", "falcon-7b"),
        *("qwen3-30b-a3b", "bloom-560m", "gpt2-large", "deepseek-v2-lite", "gemma-2-9b"),
    )
    held = [
        json.loads((data / f"{n}.json").read_text()) for n in names if (data / f"{n}.json").exists()
    ]
    return tuple(json.dumps(h["config"], indent=1).encode() for h in held if "runs" not in h)


def _config(random: Random, harm: Harm) -> Case:
    files = {"config.json": harm.document(random.choice(configs()))}
    words = random.choice(
        (
            "model show config.json --json",
            "model show config.json",
            "plan train --model config.json --on v5e:2x2 --batch 8seq --seq 512 --json",
            "plan serve --model config.json --on h100:8 --input 512 --output 32 --rate 2 --json",
            "model diff config.json llama-3-8b --json",
        )
    )
    return Case(files=files, run=words.split())


HARDWARE = (
    b"""id = "lab"
base = "h100"
hbm_bytes = 96e9
hbm_bandwidth = 3.9e12
[peak_flops]
bf16 = 8e14
fp8 = 1.6e15
[network]
chip_oneway = 4.0e11
""",
    b"""id: desk
base: v5e
hbm_bandwidth: 7.0e+11
peak_flops: {bf16: 1.5e+14}
network: {link_oneway: 4.0e+10, hop_seconds: 1.0e-06}
""",
    b'{"id": "lab", "base": "v5p", "hbm_bytes": 1e11, "network": {"link_oneway": 8e10}}',
)


def _hardware(random: Random, harm: Harm) -> Case:
    good = random.choice((*HARDWARE, *chip_files()))
    name = "lab.yaml" if good in HARDWARE[1:] else "lab.toml"
    chip = "desk" if good == HARDWARE[1] else "lab"
    slice_ = next(s for part, s in _SHAPES.items() if part in good)
    asked = (
        f"hw show {chip}",
        "hw list",
        f"roofline --on {chip} --matmul 512x4096x4096",
        f"plan train --model llama-3-8b --on {chip}:{slice_} --batch 8seq --seq 512",
        f"plan serve --model llama-3-8b --on {chip}:{slice_} --input 512 --output 32 --rate 2",
    )
    words = [*random.choice(asked).split(), "--hw", name, "--json"]
    return Case(files={name: harm.document(good)}, run=words)


_SHAPES = {b"v5p": "2x2x1", b"v5e": "2x4", b"h100": "2"}
"""A slice of the chips that the examples build on."""


@cache
def chip_files() -> tuple[bytes, ...]:
    """Chips of the catalogue as files of one's own."""
    import shardwise.hardware

    data = Path(shardwise.hardware.__file__).parent / "data"
    found = [(data / f"{n}.toml").read_text() for n in ("v5e", "h100", "v5p")]
    return tuple(t.replace('id = "', 'id = "lab"  # "', 1).encode() for t in found)


@cache
def tables() -> Mapping[str, bytes]:
    """The published tables, their first rows."""
    import shardwise

    package = Path(shardwise.__path__[0])
    first = {}
    for name, most in (("training_runs", 6), ("serving_runs", 8)):
        (table,) = package.rglob(f"{name}.csv")
        lines = table.read_bytes().split(b"\n")
        first[name] = b"\n".join(lines[: most + 1]) + b"\n"
    return first


def _table(random: Random, harm: Harm) -> Case:
    name = random.choice(("training_runs", "training_runs", "serving_runs"))
    serving = ["--serving"] if name == "serving_runs" else []
    files = {"t.csv": harm.document(tables()[name])}
    more = random.choice((["--json"], [], ["--check", "1%"], ["--no-fit", "--json"]))
    return Case(files=files, run=["validate", "t.csv", *serving, *more])


EXPRESSIONS = (
    ("A[I_X, J] * B[J, K_Y] -> C[I_X, K_Y]", "I=512,J=512,K=512", "X=4,Y=4"),
    ("A[I_X, J_Y] -> A[I_Y, J_X]", "I=512,J=512", "X=4,Y=4"),
    ("A[I, J_X] * B[J_X, K] -> C[I, K]{U_X}", "I=64,J=512,K=64", "X=4,Y=4"),
    ("A[I,J]{U_X} -> A[I,J_X]", "I=512,J=512", "X=4,Y=4"),
    ("A[I_{fsdp,tensor}, J] * B[J, K]", "I=64,J=64,K=64", "fsdp=4,tensor=4"),
    ("A[I_X, J] * B[J, K_Y] * D[K_Y, L]", "I=64,J=64,K=64,L=32", "X=4,Y=4"),
)


def _notation(random: Random, harm: Harm) -> Case:
    parts = list(random.choice(EXPRESSIONS))
    for _ in range(random.choice((1, 1, 2))):
        i = random.choice((0, 0, 0, 1, 2))
        parts[i] = harm.notation(parts[i])
    words = ["shard", parts[0], "--dims", parts[1], "--mesh", parts[2]]
    if "fsdp" not in parts[2]:
        words += random.choice(
            ([], ["--on", "v5e:4x4"], ["--on", "v5e:4x4", "--constants", "book"])
        )
    return Case(files={}, run=[*words, "--json"])


@cache
def programs() -> tuple[bytes, ...]:
    """Compiled programs of the explanation's corpus: small ones for eight devices."""
    files = sorted((TESTS / "profiler" / "explain" / "data").glob("*.hlo.gz"))
    texts = [gzip.decompress(path.read_bytes()) for path in files]
    small = [t for t in texts if b"num_partitions=8" in t[: t.find(b"\n")]]
    return tuple(sorted(small, key=len)[:24])


@cache
def capture(program: int) -> bytes:
    """A capture in Chrome's format whose ops are those of a program."""
    text = programs()[program]
    module = text.split(maxsplit=2)[1].rstrip(b",").decode()
    entry = text[text.rindex(b"ENTRY") :]
    names = re.findall(rb"^\s+(?:ROOT )?%([\w.-]+) = (?!.* (?:parameter|constant)\()", entry, re.M)[
        :60
    ]
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "pid": 3, "tid": 1, "name": "thread_name", "args": {"name": "XLA Modules"}},
        {"ph": "M", "pid": 3, "tid": 2, "name": "thread_name", "args": {"name": "XLA Ops"}},
        {
            "ph": "X",
            "pid": 3,
            "tid": 1,
            "ts": 0.0,
            "dur": 10.0 * len(names),
            "name": f"{module}(5)",
        },
    ]
    for i, name in enumerate(names):
        args = {"hlo_category": "fusion", "long_name": f"%{name.decode()} = ..."}
        event = {"ph": "X", "pid": 3, "tid": 2, "ts": 10.0 * i, "dur": 8.0}
        events.append({**event, "name": name.decode(), "args": args})
    return json.dumps({"traceEvents": events}).encode()


def _hlo(random: Random, harm: Harm) -> Case:
    i = random.randrange(len(programs()))
    text = harm.text(programs()[i])
    if random.random() < 0.3:
        text = harm.text(text)
    files = {"c.trace.json": capture(i), "p.hlo.txt": text}
    words = ["profile", "--capture", "c.trace.json", "--hlo", "p.hlo.txt", "--json"]
    if random.random() < 0.5:
        return Case(files=files, run=words)
    return Case(files=files, run=_explained)


def _explained(folder: Path) -> None:
    """What `explain` does with compiled text, without the compiler."""
    from shardwise.hardware import parse_slice
    from shardwise.profiler.explain import explain_program

    text = (folder / "p.hlo.txt").read_text("utf-8", "replace")
    explain_program(text, parse_slice("v5e:2x4"))


def _capture(random: Random, harm: Harm) -> Case:
    i = random.randrange(len(programs()))
    good = capture(i)
    packed = random.random() < 0.3
    name = "c.trace.json.gz" if packed else "c.trace.json"
    if packed and random.random() < 0.5:
        data = harm.text(gzip.compress(good, mtime=0))
    else:
        data = harm.document(good)
        data = gzip.compress(data, mtime=0) if packed else data
    files = {name: data, "p.hlo.txt": programs()[i]}
    words = random.choice(
        (["--json"], [], ["--hlo", "p.hlo.txt", "--json"], ["--hlo", "p.hlo.txt"])
    )
    return Case(files=files, run=["profile", "--capture", name, *words])


def _safetensors(random: Random, harm: Harm) -> Case:
    """A checkpoint of two files and an index: a damaged header, index or length."""
    files = dict(checkpoint())
    name = random.choice((*files, "model.safetensors.index.json"))
    data = files[name]
    if name.endswith(".json"):
        files[name] = harm.document(data)
    elif random.random() < 0.6:
        size = int.from_bytes(data[:8], "little")
        header = harm.document(data[8 : 8 + size].rstrip())
        files[name] = len(header).to_bytes(8, "little") + header + data[8 + size :]
    else:
        files[name] = harm.text(data)
    return Case(files=files, run=_read_weights)


@cache
def checkpoint() -> Mapping[str, bytes]:
    """Two files of tensors and their index."""

    def file(*names: str) -> bytes:
        entries = {
            n: {"dtype": "F32", "shape": [4, 2], "data_offsets": [32 * i, 32 * i + 32]}
            for i, n in enumerate(names)
        }
        header = json.dumps(entries).encode()
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header + bytes(32 * len(names))

    held = {"one.safetensors": ("a", "b"), "two.safetensors": ("c", "d", "e")}
    index = {"weight_map": {n: name for name, names in held.items() for n in names}}
    files = {name: file(*names) for name, names in held.items()}
    return {**files, "model.safetensors.index.json": json.dumps(index).encode()}


def _read_weights(folder: Path) -> None:
    from shardwise.runtime.tensor_file import read_folder

    for entry in read_folder(folder).values():
        entry.open().sum()


KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {
    "config": _config,
    "hardware": _hardware,
    "table": _table,
    "notation": _notation,
    "hlo": _hlo,
    "capture": _capture,
    "safetensors": _safetensors,
}

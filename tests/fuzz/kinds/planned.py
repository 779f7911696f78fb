"""Plans, and what is read beside one: requests, records, exports and the options themselves.

Options are damaged in the command line. Plans are written once, by the planner.
"""

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from fuzz.cases import Case
from fuzz.mutate import Harm

ASKED = {
    "dense": "plan train --model llama-3-8b --on v5e:4x4 --batch 32seq --seq 2048 -o",
    "node": "plan train --model llama-3-8b --on 2*h100:8 --batch 64seq --seq 4096 --top 1 -o",
    "sparse": "plan train --model deepseek-moe-16b --on 2*h100:8 --batch 16seq --seq 2048 -o",
    "server": "plan serve --model llama-3-8b --on v5e:2x2 --input 512 --output 32 -o",
    "big": "plan serve --model llama-3-70b --on h100:8 --input 512 --output 32 -o",
}
"""Plan files that the planner writes: three of training, two of serving."""


@cache
def plan(name: str) -> bytes:
    """One of them."""
    from shardwise.apps.cli import main

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.yaml"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main([*ASKED[name].split(), str(path)])
        found = path.read_bytes()
    if name == "node":
        # What every framework on GPUs can do: gather again for the backward pass, no ZeRO-1.
        changed = ((b"weight_gather", b"per_microbatch", b"per_pass"), (b"zero", b"1", b"0"))
        for key, old, new in changed:
            found = found.replace(key + b": " + old, key + b": " + new)
    return found


TARGETS = {
    "dense": ("maxtext", "jax", "xpk", "skypilot"),
    "node": ("torchtitan", "megatron", "skypilot"),
    "sparse": (),
    "server": ("vllm",),
    "big": ("vllm", "sglang"),
}
"""What each plan can be exported to."""


def _plan(random: Random, harm: Harm) -> Case:
    name = random.choice(("dense", "node", "sparse", "server", "big"))
    good = plan(name)
    files = {"p.yaml": harm.document(good), "good.yaml": good}
    words = ["plan show p.yaml --json", "plan show p.yaml", "plan diff p.yaml good.yaml --json"]
    if name in ("server", "big"):
        words += ["simulate p.yaml --requests 20 --rate 2 --json"] * 3
    words += [f"export p.yaml --to {target} --json" for target in TARGETS[name]]
    return Case(files=files, run=random.choice(words).split())


def _rows(**columns: Callable[[int], Any]) -> bytes:
    rows = ({name: value(i) for name, value in columns.items()} for i in range(8))
    return "\n".join(map(json.dumps, rows)).encode() + b"\n"


TRACES = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + b"".join(b"2023-11-16 18:15:4%d.6805900,%d,%d\n" % (i, 374 + i, 44 + i) for i in range(8)),
    b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,512,12\n0.5,100,30\n1.5,600,9\n",
    b"window_start_s,requests_per_s\n0,2.5\n600,1.5\n1200,0.5\n",
    _rows(
        arrival=lambda i: i * 0.2,
        prompt=lambda i: 100 + i,
        output=lambda i: 10,
        deadline=lambda i: 5,
    ),
    _rows(
        timestamp=lambda i: i * 300,
        input_length=lambda i: 900,
        output_length=lambda i: 20,
        hash_ids=lambda i: [0, i],
    ),
)


LENGTHS = (
    b"category,field,p1,p25,p50,p75,p99\n"
    b"talk,input_tokens,10,50,100,200,900\ntalk,output_tokens,1,20,40,80,300\n"
)


def _trace(random: Random, harm: Harm) -> Case:
    good = random.choice(TRACES)
    files = {"t.jsonl": harm.document(good), "p.yaml": plan("server")}
    more = random.choice(([], ["--requests", "5"], ["--requests", "40"]))
    end = random.choice((["--json"], ["--json"], []))
    if good.startswith(b"window"):
        files["l.csv"] = harm.document(LENGTHS)
        more = ["--requests", "20", "--lengths", "l.csv:talk"]
    return Case(files=files, run=["simulate", "p.yaml", "--trace", "t.jsonl", *more, *end])


RECORDS = _rows(
    request_id=lambda i: f"bench-{i}",
    input_toks=lambda i: 100,
    output_toks=lambda i: 20,
    queued_ts=lambda i: i * 0.1,
    first_token_ts=lambda i: i * 0.1 + 0.01,
    last_token_ts=lambda i: i * 0.1 + 0.06,
)


def _records(random: Random, harm: Harm) -> Case:
    files = {"r.jsonl": harm.document(RECORDS), "p.yaml": plan("server")}
    return Case(files=files, run=["calibrate", "p.yaml", "--records", "r.jsonl", "--json"])


@cache
def exported() -> Mapping[str, bytes]:
    """Each export of a plan, as text."""
    from shardwise.apps.cli import main

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, target in ((n, t) for n, targets in TARGETS.items() for t in targets):
            path = Path(folder) / "p.yaml"
            path.write_bytes(plan(name))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
                main(["export", str(path), "--to", target])
            found[target] = out.getvalue().encode()
    return found


def _export(random: Random, harm: Harm) -> Case:
    target = random.choice(list(exported()))
    files = {"e.txt": harm.document(exported()[target])}
    return Case(files=files, run=["export", "e.txt", "--from", target, "--json"])


_SERVE = "plan serve --model llama-3-8b --input 512 --output 32 --json"
OPTIONS = (
    "plan train --model llama-3-8b --on v5e:4x4 --batch 32seq --seq 2048 --tokens 1T --mfu 40%",
    "plan train --model llama-3-8b --on h100:8 --batch 1Mi --seq 4096 --top 3 --pin tensor=2",
    f"{_SERVE} --on v5e:2x2 --tpot 20ms",
    f"{_SERVE} --on h100:8 --rate 2",
    f"{_SERVE} --on v5e:2x2 --batch 8 --weights int8 --kv int8",
    "plan show p.yaml --set global_batch_sequences=64 --constants book",
    "simulate p.yaml --rate 2 --requests 20 --input 100 --output 10 --seed 3",
    "simulate p.yaml --rate 2 --requests 20 --tpot 1s --check 50%",
    "roofline --on v5e --matmul 512x4096x4096",
    "hw show v5e --set hbm_bandwidth=3e12 --price v5e=1.2",
    "hw diff v5e v5p",
    "model show llama-3-8b --seq 2048 --dtype int8",
    "validate --grade A --check 50%",
    "book figure fig.5.math_comms",
    "book show 8.step_4x2 --set B=64 --set chip=v5p --edition first",
    "book rule mixed_limit --on v5p --set axes_x=2 --sweep d_ff=8192:65536:4",
    "book quiz 5.1 --answer 1,2,3,4",
    "plan sweep --model llama-3-8b --on v5e:2x4 --batch 8seq --seq 512",
)


def _option(random: Random, harm: Harm) -> Case:
    """A command line with one or two damaged words."""
    words = [*random.choice(OPTIONS).split(), "--json"]
    good = plan("server" if words[0] == "simulate" else "dense")
    places = [i for i, w in enumerate(words) if i > 1 and w not in ("--json", "p.yaml")]
    for _ in range(random.choice((1, 1, 2))):
        i = random.choice(places)
        name, equals, value = words[i].rpartition("=")
        words[i] = name + equals + harm.word(value)
    return Case(files={"p.yaml": good}, run=words)


KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {
    "plan": _plan,
    "requests": _trace,
    "records": _records,
    "export": _export,
    "option": _option,
}

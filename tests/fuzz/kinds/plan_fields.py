"""Plans that are whole but for the values of one to three fields, each of the field's own type."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import yaml

from fuzz.cases import Case
from fuzz.kinds.planned import TARGETS, plan
from fuzz.mutate import WHOLE, Harm

WHOLES = (0, 1, 2, 3, 5, 7, 8, 12, 16, 64, 127, 255, 256, 1000, 4096, 65536, 10**6, 10**9, 2**40)
REALS = (0.0, 1e-308, 1e-9, 0.1, 0.5, 0.999, 1.0, 1.5, 7.0, 1e6, 1e15, 1e308)
WORDS = (
    *("none", "block", "matmul_outputs", "offload", "gpipe", "1f1b", "interleaved", "dualpipe"),
    *("zb_v", "ring", "all_gather", "ulysses", "dense", "ragged", "adam", "adam8bit", "adafactor"),
    *("muon", "sgd", "bf16", "f32", "f16", "f64", "fp8", "int8", "int4", "mxfp8", "nvfp4", "any"),
    *("maxtext", "megatron", "torchtitan", "jax", "vllm", "sglang", "xla", "per_pass", "per_step"),
    *("per_microbatch", "flash", "scores", "fastest", "finish", "heads", "book", "vendor"),
    *("v5e:4x4", "v5e:1x1", "h100:8", "64*h100:8", "v5p:2x2x1", "tpu7x:2x2x1", "trn1:1"),
    *("llama-3-8b", "mixtral-8x7b", "gpt2", "chunked", "fcfs", "priority", "round_robin"),
)
AXES = ("replica", "stage", "data", "fsdp", "expert", "context", "tensor")


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    return [(value, k) for k in keys] + [p for k in keys for p in _places(value[k])]


def _other(value: Any, random: Random) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return random.choice(WHOLES)
        case float():
            return random.choice(REALS)
        case str():
            return random.choice(WORDS)
        case list():
            size = random.choice((0, 1, 2, 4, 32, 200))
            return [_other(value[0] if value else 1, random) for _ in range(size)]
        case dict():
            axes = [axis for axis in AXES if random.random() < 0.4]
            return {axis: random.choice((1, 2, 3, 4, 8, 16, 10**6)) for axis in axes}
    return random.choice((1, 0.5, "x", True, None))


def _fields(random: Random, harm: Harm) -> Case:
    name = random.choice(tuple(TARGETS))
    good = plan(name)
    document = yaml.safe_load(good)
    for _ in range(0 if harm is WHOLE else random.choice((1, 1, 2, 3))):
        holder, key = random.choice(_places(document))
        holder[key] = _other(holder[key], random)
    files = {"p.yaml": yaml.safe_dump(document, sort_keys=False).encode(), "good.yaml": good}
    words = ["plan show p.yaml --json", "plan show p.yaml", "plan diff p.yaml good.yaml --json"]
    words += [f"export p.yaml --to {target} --json" for target in TARGETS[name]]
    if name in ("server", "big"):
        words += ["simulate p.yaml --requests 20 --rate 2 --json"]
    return Case(files=files, run=random.choice(words).split())


KINDS: Mapping[str, Callable[[Random, Harm], Case]] = {"plan_fields": _fields}

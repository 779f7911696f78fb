"""The requests of `golden.py`: commands made by rule from lists of choices.

A request is the words of one command, the plan files that it reads (a base plan and what is changed
in it), and, where the command needs the real compiler, the kept program that stands in for it.
`draws` takes every value of every list at least once and fills the rest at random from a seed, so
the list of requests is the same on every machine.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Changes = Mapping[str, Any]
ROOM = "chip.hbm_bytes=1e13", "chip.hbm_usable_bytes=1e13"
"""Lets every fixed plan fit, so that its figures are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One command. `files` maps a file's name to (base plan, changes); `texts` a name to its text;
    `program` is the kept program that stands in for the compiler, or ""."""

    kind: str
    words: tuple[str, ...]
    files: Mapping[str, tuple[str, Changes]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    program: str = ""

    @property
    def title(self) -> str:
        """The command as a person would write it, with the changes of its plans."""
        said = [" ".join(self.words)]
        for name, (base, changes) in self.files.items():
            said.append(f"{name}={base} {json.dumps(changes)}" if changes else f"{name}={base}")
        return " | ".join(said)

    def document(self) -> dict[str, Any]:
        """What the golden file holds of it."""
        doc: dict[str, Any] = {"kind": self.kind, "words": list(self.words)}
        if self.files:
            doc["files"] = {name: list(made) for name, made in self.files.items()}
        if self.texts:
            doc["texts"] = dict(self.texts)
        if self.program:
            doc["program"] = self.program
        return doc


def request_of(doc: Mapping[str, Any]) -> Request:
    """A request as the golden file holds it."""
    files = {name: (base, changes) for name, (base, changes) in doc.get("files", {}).items()}
    return Request(
        kind=doc["kind"],
        words=tuple(doc["words"]),
        files=files,
        texts=doc.get("texts", {}),
        program=doc.get("program", ""),
    )


def draws(
    seed: str, choices: Mapping[str, Sequence[Any]], few: int | None = None
) -> Iterator[dict[str, Any]]:
    """Endless draws of one value for each choice, or of `few` of the choices that have no "" or
    None first, cuts of arrays aside; the first draws have each value of each list once."""
    rng = random.Random(seed)

    def draw(**fixed: Any) -> dict[str, Any]:
        got = {name: rng.choice(list(values)) for name, values in choices.items()}
        if few is not None:
            free = [
                name
                for name, values in choices.items()
                if values[0] in ("", None) and not name.startswith("cut")
            ]
            kept = set(rng.sample(free, min(few, len(free))))
            got |= {name: choices[name][0] for name in free if name not in kept}
        return got | fixed

    first = [(name, value) for name, values in choices.items() for value in values]
    rng.shuffle(first)
    for name, value in first:
        yield draw(**{name: value})
    while True:
        yield draw()


# Training searches --------------------------------------------------------------------------------

MODELS = (
    *("llama-3-8b", "llama-3.2-1b", "gpt2", "smollm2-360m", "qwen3-0.6b", "qwen2.5-7b"),
    *("gemma-3-4b", "opt-1.3b", "falcon-7b", "phi-3.5-mini", "minicpm3-4b", "lfm2-1.2b"),
    *("olmoe-1b-7b", "granite-3.1-1b-a400m", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b"),
    *("deepseek-v2-lite", "qwen1.5-moe-a2.7b", "nemotron-3-nano-30b-a3b", "qwen3-vl-8b"),
    *("qwen3-next-80b-a3b", "mimo-7b-base", "llama-4-scout-17b-16e", "deepseek-v3"),
)
SLICES = (
    *("v5e:4x4", "v5e:2x4", "v5p:2x2x2", "v4:2x2x4", "v6e:4x4", "tpu7x:2x2x2", "2*v5e:2x4"),
    *("2*v5p:2x2x2", "h100:8", "2*h100:8", "4*a100:8", "a100:4", "h200:8", "2*b200:8", "b300:8"),
    *("gb200:16", "mi300x:8", "gaudi2:8", "h800:8", "v5p:4x4x4", "mi355x:8"),
)
PINS = (
    *("", "tensor=2", "tensor=4", "stage=2", "stage=4", "context=2", "context=4", "fsdp=4"),
    *("data=2", "expert=4", "expert=2", "replica=2", "stage=2 tensor=2", "fsdp=2 tensor=2"),
    *("data=1 fsdp=1", "context=2 tensor=2", "expert=2 tensor=2", "stage=2 expert=2"),
    *("replica=1 stage=1 data=1 context=1", "data=2 stage=1 expert=1"),
)
TRAIN = {
    "--model": MODELS,
    "--on": SLICES,
    "--batch": ("64seq", "128seq", "256seq", "512Ki", "1Mi", "16seq"),
    "--seq": ("2048", "4096", "8192", "1024", "16384"),
    "--pin": PINS,
    "--dtype": ("", "fp8", "int8", "f32", "bf16", "mxfp8", "nvfp4"),
    "--param-dtype": ("", "f32", "bf16"),
    "--grad-dtype": ("", "f32"),
    "--master": ("", "none", "f32"),
    "--moments": ("", "bf16", "f32"),
    "--remat": ("", "none", "matmul_outputs", "block", "offload"),
    "--schedule": ("", "gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"),
    "--zero": ("", "0", "1", "2"),
    "--context-method": ("", "all_gather", "ring", "ulysses"),
    "--stack": ("", "xla", "megatron", "fsdp", "nanotron"),
    "--optimizer": ("", "adam", "adam8bit", "adafactor", "muon", "sgd"),
    "--objective": ("", "cost", "chips"),
    "--constants": ("", "book"),
    "--max-hbm": ("", "10GiB", "14GiB"),
    "--exhaustive": ("", "yes"),
    "--run": ("", "days", "mfu", "failures", "interval"),
    "--against": ("", "audit"),
}
RUNS = {
    "days": ("--tokens", "1T"),
    "interval": (
        *("--tokens", "1T", "--chip-mtbf", "5y", "--checkpoint-time", "20s"),
        *("--checkpoint-interval", "1h", "--restart-time", "5min"),
    ),
    "mfu": ("--tokens", "1T", "--mfu", "40%", "--params", "8e9"),
    "failures": (
        *("--tokens", "2T", "--chip-mtbf", "10y", "--checkpoint-time", "30s"),
        *("--restart-time", "10min", "--straggler", "1.05"),
    ),
}
NVIDIA = ("h100:8", "2*h100:8", "4*a100:8", "h200:8", "2*b200:8", "gb200:16")
WITH = {
    **dict.fromkeys(("megatron", "fsdp", "nanotron", "f32"), NVIDIA),
    **dict.fromkeys(("mxfp8", "nvfp4"), ("2*b200:8", "gb200:16", "b300:8")),
    "fp8": ("h100:8", "h200:8", "tpu7x:2x2x2", "v6e:4x4", "mi300x:8"),
    "int8": ("v5e:4x4", "v5p:2x2x2", "a100:4", "h100:8"),
}
"""Slices that have a dtype or a stack of software."""
SCHEDULED = ("stage=2", "stage=4", "stage=2 tensor=2", "stage=2 expert=2")


def options(draw: Mapping[str, Any], *but: str) -> Iterator[str]:
    """The words of the options that were drawn: a value, a flag ("yes") or several ("a b")."""
    for name, value in draw.items():
        if value == "" or name in but:
            continue
        if value == "yes":
            yield name
        else:
            yield from itertools.chain.from_iterable((name, one) for one in value.split(" "))


def train() -> Iterator[Request]:
    """Searches; schedules and context methods with a mesh on which they take effect."""
    rng = random.Random("train pins")
    for drawn in draws("train", TRAIN, few=3):
        if drawn["--schedule"] and "stage" not in drawn["--pin"]:
            drawn["--pin"] = rng.choice(SCHEDULED)
        if drawn["--context-method"] and "context" not in drawn["--pin"]:
            drawn["--pin"] = "context=2"
        if drawn["--exhaustive"]:
            drawn["--on"] = "v5e:2x4"
        if drawn["--dtype"] in WITH or drawn["--stack"] in WITH:
            name = drawn["--dtype"] if drawn["--dtype"] in WITH else drawn["--stack"]
            drawn["--on"] = rng.choice(WITH[name])
        words = ["plan", "train", "--top", "11", *options(drawn, "--run", "--against")]
        words += RUNS.get(drawn["--run"], ())
        yield Request(kind="train", words=tuple(words))


def against() -> Iterator[Request]:
    """A search beside a plan of the same job."""
    for base, (*words, _, _) in zip(itertools.cycle(TRAIN_BASES), BASE_WORDS, strict=False):
        files = {"plan.yaml": (base, {"remat": "block"})}
        job = (*words, "--top", "0", "--against", "plan.yaml")
        yield Request(kind="train against", words=job, files=files)


def sweep() -> Iterator[Request]:
    """Sweeps of few slices."""
    choices = {
        "--model": ("smollm2-360m", "gpt2", "granite-3.1-1b-a400m", "llama-3.2-1b"),
        "--on": ("v5e:2x2 v5e:2x4", "h100:8 a100:8", "v5p"),
        "--batch": ("64seq", "32seq 64seq"),
        "--seq": ("1k", "1k 2k"),
        "--remat": ("", "block"),
    }
    for drawn in draws("sweep", choices):
        bounds = ("--chips", "2..8", "--tokens", "1T", "--days", "3650")
        yield Request(kind="sweep", words=("plan", "sweep", *bounds, *options(drawn)))


# Fixed training plans -----------------------------------------------------------------------------

BASES = {
    "llama-16": ("llama-3.2-1b", "v5e:4x4"),
    "llama8b-32": ("llama-3-8b", "4*h100:8"),
    "gpt2-8": ("gpt2", "v5e:2x4"),
    "smollm-8": ("smollm2-360m", "a100:8"),
    "qwen-16": ("qwen3-0.6b", "2*v5e:2x4"),
    "gemma-8": ("gemma-3-4b", "v5p:2x2x2"),
    "mla-8": ("minicpm3-4b", "h200:8"),
    "conv-8": ("lfm2-1.2b", "v6e:2x4"),
    "olmoe-16": ("olmoe-1b-7b", "v6e:4x4"),
    "granite-16": ("granite-3.1-1b-a400m", "2*h100:8"),
    "mixtral-64": ("mixtral-8x7b", "v5p:4x4x4"),
    "deepseek-16": ("deepseek-v2-lite", "2*b200:8"),
    "delta-32": ("qwen3-next-80b-a3b", "tpu7x:2x4x4"),
    "mamba-16": ("nemotron-3-nano-30b-a3b", "gb200:16"),
    "oss-8": ("gpt-oss-20b", "mi300x:8"),
    "mtp-16": ("mimo-7b-base", "v5p:2x2x4"),
    "vision-16": ("qwen3-vl-8b", "2*h200:8"),
    "deepseek3-256": ("deepseek-v3", "v5p:4x8x8"),
    "scout-64": ("llama-4-scout-17b-16e", "v5p:4x4x4"),
}
"""Model and slice of each base plan, which `plan train` makes."""
TRAIN_BASES = tuple(BASES)
BATCH, SEQ = "256seq", "2048"
BASE_WORDS = tuple(
    (
        *("plan", "train", "--model", model, "--on", on, "--batch", BATCH, "--seq", SEQ),
        *("--top", "0"),
    )
    for model, on in BASES.values()
)
AXES = ("replica", "stage", "data", "fsdp", "expert", "context", "tensor")
ROLES = (
    *("", "fsdp", "data", "fsdp tensor", "data tensor", "tensor", "stage fsdp", "stage data"),
    *("stage tensor", "stage fsdp tensor", "stage data tensor", "context fsdp", "context tensor"),
    *("context data", "expert", "expert fsdp", "expert tensor", "expert data", "expert stage"),
    *("stage context", "fsdp context tensor", "stage expert tensor", "replica fsdp", "stage"),
    *("replica fsdp tensor", "data fsdp", "data fsdp tensor", "stage data fsdp", "expert context"),
)
SHOW = {
    "base": TRAIN_BASES,
    "roles": ROLES,
    "microbatches": (None, 1, 2, 4, 8, 16),
    "placement": (None, "finish", "fastest"),
    "zero": (None, 0, 1, 2),
    "storage_axes": (
        *(None, ["fsdp"], ["fsdp", "expert"], ["fsdp", "context"]),
        ["fsdp", "expert", "context"],
    ),
    "reshard_after_forward": (None, True, False),
    "sequence_parallel": (None, True, False),
    "remat": (None, "none", "matmul_outputs", "block", "offload"),
    "remat_kinds": (
        *(None, {"qkv": "keep"}, {"attention": "keep", "mlp_in": "recompute"}),
        *({"block_input": "offload"}, {"norm": "recompute"}, {"mlp_in": "offload"}),
    ),
    "attention_kernel": (None, "flash", "scores"),
    "pipeline_schedule": (None, "gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"),
    "context_method": (None, "all_gather", "ring", "ulysses"),
    "expert_dispatch": (None, "dense", "ragged"),
    "expert_capacity": (None, 1.0, 1.25),
    "expert_imbalance": (None, 1.3),
    "expert_over_tensor": (None, True),
    "offload_optimizer": (None, True),
    "optimizer": (None, "adam", "adam8bit", "adafactor", "muon", "sgd"),
    "lora_rank": (None, 16, 64),
    "frozen": (None, ["embedding"], ["attention"]),
    "mtp_layers": (None, 1),
    "packed_lengths": (None, [1024, 1024], [512, 512, 1024]),
    "dtypes.param": (None, "f32"),
    "dtypes.compute": (None, "fp8", "int8", "f32"),
    "dtypes.grad": (None, "f32"),
    "dtypes.master": (None, "none"),
    "dtypes.moments": (None, "bf16"),
    "stack": (None, "xla", "megatron", "fsdp", "nanotron"),
    "constants": (None, "book"),
    "uneven": (None, True),
}
"""Changes of a base plan; `roles` is the axes of a new mesh, `uneven` gives stage 0 less."""
STAGED = ("stage fsdp", "stage data", "stage tensor", "stage fsdp tensor", "stage")
ACROSS = ("context fsdp", "context tensor", "context data", "fsdp context tensor")
APART = ("expert", "expert fsdp", "expert tensor", "expert data", "expert stage")
MOE = ("olmoe-16", "granite-16", "mixtral-64", "deepseek-16", "delta-32", "oss-8", "scout-64")
CHUNKS = {"interleaved": 2, "zb_v": 2, "dualpipe": 2}


def mesh_of(devices: int, roles: str, most: Mapping[str, int]) -> dict[str, int]:
    """So many devices over the axes, in twos in turn, each axis at most as `most` says."""
    degrees = dict.fromkeys(roles.split(), 1)
    turn = itertools.cycle(degrees)
    left, idle = devices, 0
    while left > 1 and idle < len(degrees):
        axis = next(turn)
        if degrees[axis] * 2 > most.get(axis, devices):
            idle += 1
            continue
        degrees[axis], left, idle = degrees[axis] * 2, left // 2, 0
    if left > 1:
        degrees["fsdp"] = degrees.get("fsdp", 1) * left
    return {axis: degrees[axis] for axis in AXES if degrees.get(axis, 1) > 1}


def suited(draw: dict[str, Any], rng: random.Random) -> None:
    """Give choices a mesh on which they take effect."""
    if draw["pipeline_schedule"] or draw["uneven"]:
        draw["roles"] = rng.choice(STAGED)
    elif draw["context_method"]:
        draw["roles"] = rng.choice(ACROSS)
    elif any(draw[name] for name in draw if name.startswith("expert_")):
        draw["roles"], draw["base"] = rng.choice(APART), rng.choice(MOE)
    elif draw["mtp_layers"]:
        draw["base"] = rng.choice(["mtp-16", "deepseek3-256"])


def changed(draw: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that a draw makes in a base plan, with the fields that must follow."""
    plain = ("base", "roles", "uneven")
    changes = {k: v for k, v in draw.items() if k not in plain and v is not None}
    layers = sum(base["layers_per_stage"])
    mesh = dict(base["mesh"])
    if draw["roles"]:
        devices = 1
        for degree in mesh.values():
            devices *= degree
        mesh = mesh_of(devices, draw["roles"], {"stage": 4, "expert": 8, "tensor": 8, "context": 8})
        changes["mesh"] = mesh
    stages = mesh.get("stage", 1)
    each, more = divmod(layers, stages)
    spread = [each + (stage < more) for stage in range(stages)]
    if draw["uneven"] and stages > 1 and spread[0] > 1:
        spread[0], spread[1] = spread[0] - 1, spread[1] + 1
    changes["layers_per_stage"] = spread
    schedule = changes.get("pipeline_schedule", base["pipeline_schedule"])
    changes["virtual_stages"] = CHUNKS.get(schedule, 1) if stages > 1 else 1
    if stages == 1:
        changes["pipeline_schedule"] = "1f1b"
    if stages > 1 and "microbatches" not in changes:
        changes["microbatches"] = 2 * stages
    return {k: v for k, v in changes.items() if base.get(k) != v}


def show(plans: Mapping[str, Any]) -> Iterator[Request]:
    """Fixed plans, each choice set; every fourth by the command's own --set."""
    rng = random.Random("show roles")
    room = [word for path in ROOM for word in ("--set", path)]
    for number, drawn in enumerate(draws("show", SHOW, few=5)):
        suited(drawn, rng)
        changes = changed(drawn, plans[drawn["base"]])
        sets: list[str] = []
        if number % 4 == 0:
            mine = [name for name in changes if isinstance(changes[name], str | int | float)]
            mine = [name for name in mine if name not in ("virtual_stages", "pipeline_schedule")]
            for name in mine[:2]:
                sets += ["--set", f"{name}={json.dumps(changes.pop(name))}".replace('"', "")]
        words = ("plan", "show", "plan.yaml", *sets, *(room if number % 7 else ()))
        yield Request(kind="show", words=words, files={"plan.yaml": (drawn["base"], changes)})


def charts(plans: Mapping[str, Any]) -> Iterator[Request]:
    """Every schedule as a trace of its stages, and served steps as one."""
    room = [word for path in ROOM for word in ("--set", path)]
    schedules = ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe")
    for base, schedule in zip(("gpt2-8", "granite-16") * 3, schedules, strict=True):
        drawn = {"base": base, "roles": "stage fsdp", "uneven": None, "pipeline_schedule": schedule}
        files = {"plan.yaml": (base, changed(drawn, plans[base]))}
        words = ("plan", "show", "plan.yaml", "--trace", "out.json.gz", *room)
        yield Request(kind="chart", words=words, files=files)
    for base in ("serve-llama", "serve-moe", "serve-fleet"):
        words = ("simulate", "plan.yaml", "--requests", "20", "--perfetto", "out.json.gz")
        yield Request(kind="chart", words=(*words, "--rate", "4"), files={"plan.yaml": (base, {})})


def audits() -> Iterator[Request]:
    """The plans of published runs that the book's rules are held against."""
    names = ("deepseek-v3-2048", "llama-3-405b-16k", "llama-3-405b-8k", "llama-3-405b-long")
    sizes = ("1.7b", "7.1b", "16b", "32b", "70b", "119b", "177b", "314b", "462b")
    for name in (*names, *(f"megatron-{size}" for size in sizes)):
        room = [word for path in ROOM for word in ("--set", path)]
        yield Request(kind="audit", words=("plan", "show", f"audit:{name}", *room))


def diff(plans: Mapping[str, Any]) -> Iterator[Request]:
    """Two plans of one base."""
    room = [word for path in ROOM for word in ("--set", path)]
    rng = random.Random("diff roles")
    for drawn in draws("diff", SHOW, few=3):
        suited(drawn, rng)
        base = drawn["base"]
        files = {"first.yaml": (base, {}), "second.yaml": (base, changed(drawn, plans[base]))}
        words = ("plan", "diff", "first.yaml", "second.yaml", *room)
        yield Request(kind="diff", words=words, files=files)


def export(plans: Mapping[str, Any]) -> Iterator[Request]:
    """Plans in the words of other frameworks."""
    serve = ("vllm", "sglang")
    to = ("maxtext", "torchtitan", "megatron", "jax", "xpk", "skypilot", *serve)
    rng = random.Random("export roles")
    for drawn in draws("export", {"to": to, **SHOW}, few=1):
        target = drawn.pop("to")
        if target in serve:
            base, changes = rng.choice(SERVE_BASES), {}
        else:
            suited(drawn, rng)
            base = drawn["base"]
            if target in ("torchtitan", "megatron"):
                base = rng.choice([name for name in BASES if "00:8" in BASES[name][1]])
            plain = {"zero": 0} if target == "torchtitan" else {}
            plain |= {"remat": drawn["remat"] or "block", "reshard_after_forward": True}
            changes = {**changed(drawn, plans[base]), **plain}
        words = ("export", "plan.yaml", "--to", target)
        yield Request(kind="export", words=words, files={"plan.yaml": (base, changes)})


# Serving ------------------------------------------------------------------------------------------

SERVE_MODELS = (
    *("llama-3-8b", "llama-3.2-1b", "gpt2", "qwen3-0.6b", "qwen2.5-7b", "gemma-3-4b", "lfm2-1.2b"),
    *("minicpm3-4b", "olmoe-1b-7b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "llama-3-70b"),
    *("deepseek-v2-lite", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "gpt-oss-120b"),
    *("llama-4-scout-17b-16e", "deepseek-v3", "falcon-7b", "mistral-7b-v0.3", "kimi-k2-instruct"),
)
SERVE = {
    "--model": SERVE_MODELS,
    "--on": (
        *("v5e", "v5p", "v6e:2x4", "h100", "h200:8", "a100:8", "b200:8", "mi300x:8", "tpu7x"),
        *("v5e:4x4", "gb200:8", "v6e", "2*h100:8"),
    ),
    "--input": ("1024", "8192", "2048", "128"),
    "--output": ("256", "512", "32"),
    "--tpot": ("", "50ms", "15ms", "100ms"),
    "--ttft": ("", "1s", "5s"),
    "--batch": ("", "16", "64", "1"),
    "--weights": ("", "int8", "fp8", "int4", "bf16"),
    "--kv": ("", "int8", "fp8"),
    "--activations": ("", "fp8"),
    "--compute": ("", "fp8", "int8"),
    "--engine": ("", "vllm", "sglang", "trtllm", "others"),
    "--prefill-chunk": ("", "2048", "512"),
    "--pin": ("", "tensor=4", "data=2", "tensor=2", "expert=4", "fsdp=2", "tensor=1"),
    "--mfu": ("", "40%"),
    "--constants": ("", "book"),
}
COST = {
    "--model": ("llama-3-8b", "qwen3-0.6b", "gpt-oss-20b", "olmoe-1b-7b", "qwen2.5-7b", "gpt2"),
    "--on": ("v5e", "h100", "v5e,h100", "a100,h200", "v6e", "h100:8"),
    "--input": ("1024", "4096"),
    "--output": ("128", "512"),
    "--tpot": ("50ms", "100ms"),
    "--ttft": ("", "2s", "5s"),
    "--rate": ("", "5", "200"),
    "--e2e": ("", "30s"),
    "--percentile": ("", "99%"),
    "--weights": ("", "int8", "bf16"),
    "--kv": ("", "bf16"),
    "--engine": ("", "ideal", "vllm"),
    "--prefill-chunk": ("", "2048"),
    "--pin": ("", "tensor=2"),
}
COMMON = ("--input", "2048", "--output", "256")
SERVE_BASE_WORDS = {
    "serve-llama": ("--model", "llama-3-8b", "--on", "v5e:2x4", "--tpot", "30ms", *COMMON),
    "serve-h100": ("--model", "llama-3-8b", "--on", "h100", "--batch", "64", *COMMON),
    "serve-70b": ("--model", "llama-3-70b", "--on", "h100:8", "--engine", "vllm", *COMMON),
    "serve-moe": ("--model", "olmoe-1b-7b", "--on", "v6e:2x4", *COMMON),
    "serve-mla": ("--model", "deepseek-v2-lite", "--on", "h200:4", *COMMON),
    "serve-tiny": ("--model", "qwen3-0.6b", "--on", "v5e:2x2", *COMMON),
    "serve-window": ("--model", "gemma-3-4b", "--on", "a100:4", *COMMON),
    "serve-state": ("--model", "nemotron-3-nano-30b-a3b", "--on", "h100:4", *COMMON),
    "serve-delta": ("--model", "qwen3-next-80b-a3b", "--on", "v5p:2x2x2", *COMMON),
    "serve-fleet": (
        *("--model", "llama-3-8b", "--on", "v5e", "--objective", "cost", "--no-confirm"),
        *("--tpot", "50ms", "--ttft", "2s", "--rate", "20", *COMMON),
    ),
}
SERVE_BASES = tuple(SERVE_BASE_WORDS)
SERVE_MESHES = (
    *("", "tensor", "data tensor", "data", "fsdp tensor", "fsdp", "expert", "expert tensor"),
    *("expert data",),
)
SERVE_SHOW = {
    "base": SERVE_BASES,
    "roles": SERVE_MESHES,
    "batch": (None, 1, 8, 32, 128),
    "input_length": (None, 128, 16384),
    "output_length": (None, 1024),
    "prefill_chunk": (None, 512, 2048),
    "kv_sharding": (None, "heads", "heads_then_batch", "heads_then_batch_then_sequence"),
    "dtypes.weights": (None, "checkpoint", "int8", "fp8", "int4"),
    "dtypes.kv": (None, "int8", "fp8"),
    "dtypes.activations": (None, "fp8"),
    "dtypes.compute": (None, "fp8"),
    "dtypes.matmuls": (None, "stored"),
    "constants": (None, "book"),
    "engine": (None, "vllm", "sglang", "trtllm", "others", "ideal"),
    "replicas": (None, 2),
    "prefill_replicas": (None, 1),
}
SCHEDULING = {
    "base": SERVE_BASES,
    "roles": SERVE_MESHES[:4],
    "engine": (None, "vllm", "sglang"),
    "prefill_chunk": (None, 512),
    "replicas": (None, 2, 3),
    "prefill_replicas": (None, 1),
    "routing": (None, "round_robin", "shortest_queue", "bounded_hash", "prefix_aware"),
    "scheduling.policy": (None, "interleaved", "chunked", "static"),
    "scheduling.page_size": (None, 16, 256),
    "scheduling.prefix_cache": (None, False),
    "scheduling.admission": (None, "optimistic", "reserve", "forecast"),
    "scheduling.order": (None, "fcfs", "priority", "deadline", "aged"),
    "scheduling.swap": (None, True),
    "scheduling.memory_share": (None, 0.8),
    "scheduling.host_cache_share": (None, 0.2),
    "scheduling.max_waiting": (None, 4),
    "scheduling.refuse_late": (None, True),
    "scheduling.guesses": (None, 3),
}
LOADS = {
    "--rate": ("5", "1", "40"),
    "--requests": ("40", "80"),
    "--cv": ("", "2"),
    "--input": ("", "300", "4000"),
    "--output": ("", "50"),
    "--seed": ("", "7"),
    "--tile": ("", "2"),
    "--trace": (
        "",
        "own.jsonl",
        "azure.csv",
        "vidur.csv",
        "mooncake.jsonl",
        "full.jsonl",
        "sim.jsonl",
    ),
    "--objectives": ("", "--ttft 1s --tpot 50ms", "--e2el 20s"),
}


def serve() -> Iterator[Request]:
    """The smallest slice for a model and its targets."""
    for drawn in draws("serve", SERVE, few=3):
        words = ("plan", "serve", "--top", "11", *options(drawn))
        yield Request(kind="serve", words=words)


def misses() -> Iterator[Request]:
    """Targets that no server meets: what is missing is said."""
    choices = {
        "--model": ("llama-3-8b", "llama-3-70b", "gpt-oss-20b", "deepseek-v3"),
        "--on": ("v5e:2x2", "v5e", "h100", "h100:8", "a100:4", "v6e"),
        "--tpot": ("", "1ms", "100us"),
        "--ttft": ("1ms", "10ms"),
        "--batch": ("", "64"),
    }
    for drawn in draws("misses", choices):
        words = ("plan", "serve", "--input", "2048", "--output", "128", *options(drawn))
        yield Request(kind="serve misses", words=words)


def cost() -> Iterator[Request]:
    """The cheapest servers under a load."""
    for drawn in draws("cost", COST, few=3):
        head = ("plan", "serve", "--objective", "cost", "--no-confirm", "--top", "11")
        yield Request(kind="serve cost", words=(*head, *options(drawn)))


def serve_changes(drawn: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The changes that a draw makes in a serving plan."""
    plain = ("base", "roles")
    changes = {k: v for k, v in drawn.items() if k not in plain and v is not None}
    if drawn["roles"]:
        devices = 1
        for degree in base["mesh"].values():
            devices *= degree
        changes["mesh"] = mesh_of(devices, drawn["roles"], {"expert": 8})
    if changes.get("scheduling.guesses"):
        changes |= {"scheduling.acceptance": 0.7, "scheduling.guess_cost": 0.1}
    if changes.get("scheduling.policy") == "static":
        changes |= {"scheduling.prefix_cache": False, "scheduling.admission": "reserve"}
        changes |= {"prefill_replicas": 0, "prefill": None}
    return changes


def serve_show(plans: Mapping[str, Any]) -> Iterator[Request]:
    """Fixed serving plans, each choice set."""
    room = [word for path in ROOM for word in ("--set", path)]
    for drawn in draws("serve show", SERVE_SHOW, few=4):
        changes = serve_changes(drawn, plans[drawn["base"]])
        files = {"plan.yaml": (drawn["base"], changes)}
        yield Request(kind="serve show", words=("plan", "show", "plan.yaml", *room), files=files)


def simulate(plans: Mapping[str, Any]) -> Iterator[Request]:
    """Small loads through a serving plan."""
    loads = draws("loads", LOADS, few=2)
    for drawn, load in zip(draws("simulate", SCHEDULING, few=3), loads, strict=False):
        changes = serve_changes(drawn, plans[drawn["base"]])
        texts = {}
        if load["--trace"]:
            texts = {load["--trace"]: trace(load["--trace"])}
            load |= dict.fromkeys(("--rate", "--cv", "--input", "--output"), "")
        goals = load["--objectives"].split()
        words = ("simulate", "plan.yaml", *options(load, "--objectives"), *goals)
        files = {"plan.yaml": (drawn["base"], changes)}
        yield Request(kind="simulate", words=words, files=files, texts=texts)


def trace(name: str) -> str:
    """Sixty requests as a trace file of each format that `simulate --trace` reads."""
    rng = random.Random(name)
    rows = []
    clock = 0.0
    for _ in range(60):
        clock += rng.expovariate(4)
        rows.append((round(clock, 3), rng.randint(20, 3000), rng.randint(2, 200)))
    if name == "own.jsonl":
        return "".join(
            json.dumps({"arrival": at, "prompt": prompt, "output": output}) + "\n"
            for at, prompt, output in rows
        )
    if name == "full.jsonl":
        made = []
        for at, prompt, output in rows:
            doc = {"arrival": at, "prompt": prompt, "output": output, "priority": rng.randint(0, 2)}
            doc |= {"deadline": 20, "session": f"s{rng.randint(0, 5)}", "block_size": 256}
            blocks = [rng.randint(0, 3), *range(10, 10 + -(-prompt // 256) - 1)]
            made.append(json.dumps({**doc, "hash_ids": blocks}) + "\n")
        return "".join(made)
    if name == "mooncake.jsonl":
        made = []
        for at, prompt, output in rows:
            blocks = [rng.randint(0, 3), *range(10, 10 + -(-prompt // 512) - 1)]
            doc = {"timestamp": int(1000 * at), "input_length": prompt, "output_length": output}
            made.append(json.dumps({**doc, "hash_ids": blocks}) + "\n")
        return "".join(made)
    if name == "azure.csv":
        lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
        lines += [f"2023-11-16 18:00:{at:010.7f},{p},{o}" for at, p, o in rows]
    else:
        lines = ["arrived_at,num_prefill_tokens,num_decode_tokens"]
        lines += [f"{at},{prompt},{output}" for at, prompt, output in rows]
    return "\n".join(lines) + "\n"


# Sharded arrays, single ops, tables ---------------------------------------------------------------

CUTS = ("", "_X", "_Y", "_XY")
SIZES = "A=64,B=64,I=1024,J=2048,K=4096,L=512,D=4096,F=8192,E=8"
SHARD = {
    "form": (
        *("A[I{0}, J{1}] * B[J{2}, K{3}] -> C[I{4}, K{5}]", "A[I{0}, J{1}] * B[J{2}, K{3}]"),
        *("A[I{0}, J{1}] -> A[I{2}, J{3}]", "A[I{0}, J{1}, K] -> A[I{2}, J, K{3}]"),
        "In[B{0}, D{1}] * W[D{2}, F{3}] * V[F{3}, D{2}] -> Out[B{0}, D{4}]",
        *("A[B{0}, I, J{1}] * W[B{0}, J{1}, K{2}] -> C[B{0}, I, K{3}]", "A[I{0}, J{1}]"),
    ),
    **{f"cut{n}": CUTS for n in range(6)},
    "--mesh": ("X=4,Y=4", "X=4,Y=2", "X=2,Y=4"),
    "--on": ("", "v5e:4x4", "v5p:2x2x4", "h100:8", "2*h100:8", "v5e:2x4"),
    "--dtype": ("", "f32", "int8"),
    "--out": ("", "free"),
    "--backward": ("", "yes"),
    "--max-hbm": ("", "300MB"),
    "--constants": ("", "book"),
}
SHARDED_SIZE = {"X=4,Y=4": 16, "X=4,Y=2": 8, "X=2,Y=4": 8}
ON = {16: ("v5e:4x4", "v5p:2x2x4", "2*h100:8"), 8: ("v5e:2x4", "h100:8", "v5p:2x2x2")}


def shard() -> Iterator[Request]:
    """Products, chains, reshards and arrays; most expressions with an axis twice are left out."""
    rng = random.Random("shard slices")
    for drawn in draws("shard", SHARD, few=1):
        cuts = [drawn[f"cut{n}"] for n in range(6)]
        text = drawn["form"].format(*cuts)
        if rng.random() < 0.95 and any(twice(array) for array in text.split("]")):
            continue
        if drawn["--backward"]:
            drawn["--out"] = drawn["--max-hbm"] = ""
        elif drawn["--out"]:
            text = text.partition(" -> ")[0]
        if drawn["--on"] or drawn["--constants"]:
            drawn["--on"] = rng.choice(ON[SHARDED_SIZE[drawn["--mesh"]]])
        letters = {letter for letter in "ABIJKLDFE" if any(x in text for x in spelt(letter))}
        dims = ",".join(d for d in SIZES.split(",") if d[0] in letters)
        cut = [f"cut{n}" for n in range(6)]
        if drawn["form"] == "A[I{0}, J{1}]":
            drawn |= {"--out": "", "--max-hbm": "", "--backward": "", "--on": "", "--constants": ""}
        top = ("--top", "10") if "*" in text or "->" in text else ()
        words = ("shard", text, "--dims", dims, *top, *options(drawn, "form", *cut))
        yield Request(kind="shard", words=words)


def spelt(letter: str) -> Iterator[str]:
    """How a dim stands in an expression: after a bracket or a comma, before a cut or an end."""
    for before, after in itertools.product(("[", " "), ("]", ",", "_")):
        yield f"{before}{letter}{after}"


def twice(array: str) -> bool:
    """Whether an array is cut twice along an axis."""
    dims = array.partition("[")[2]
    return any(dims.count(axis) > 1 for axis in "XY")


def roofline() -> Iterator[Request]:
    """Single matmuls."""
    choices = {
        "--on": ("v5e", "v5p", "h100", "a100", "b200", "v6e", "mi300x", "tpu7x"),
        "--matmul": ("240x8192x32768", "1x4096x4096", "8192x8192x8192", "33x100x700"),
        "--dtype": ("", "int8", "fp8", "f32"),
        "--weights": ("", "int8"),
        "--constants": ("", "book"),
    }
    for drawn in draws("roofline", choices):
        yield Request(kind="roofline", words=("roofline", *options(drawn)))


def model() -> Iterator[Request]:
    """Parameters, FLOPs and caches."""
    for name in MODELS:
        yield Request(kind="model", words=("model", "show", name))


def figure() -> Iterator[Request]:
    """Figures of the book."""
    five = ("ratio_curves", "math_comms", "interactive", "interactive.tp", "interactive.threshold")
    gpu = ("ar_curve", "sharded_gather", "ragged")
    for name in (*(f"fig.5.{n}" for n in five), *(f"fig.gpu.{n}" for n in gpu)):
        yield Request(kind="figure", words=("book", "figure", name))


def validate() -> Iterator[Request]:
    """The tables of published runs, row by row."""
    for extra in ((), ("--no-fit",), ("--serving",)):
        yield Request(kind="validate", words=("validate", *extra))


KEPT = ("zero-1", "cp", "ep-ragged")


def compiled() -> Iterator[Request]:
    """Plans beside their kept programs, and what the programs are, with changes to the plan."""
    changes = ({}, {"remat": "matmul_outputs"}, {"optimizer": "sgd"}, {"zero": 0})
    for name, change in itertools.product(KEPT, changes):
        files = {"plan.yaml": (f"kept-{name}", change)}
        words = ("compare", "plan.yaml")
        yield Request(kind="compare", words=words, files=files, program=name)
    for name, verb in itertools.product(KEPT, ("compile", "explain")):
        files = {"plan.yaml": (f"kept-{name}", {})}
        yield Request(kind="compare", words=(verb, "plan.yaml"), files=files, program=name)


def kinds(plans: Mapping[str, Any]) -> dict[str, tuple[int, Callable[[], Iterator[Request]]]]:
    """Of each kind how many requests are kept, and the candidates in order."""
    return {
        "train": (110, train),
        "train against": (4, against),
        "sweep": (6, sweep),
        "show": (250, lambda: show(plans)),
        "chart": (9, lambda: charts(plans)),
        "audit": (13, audits),
        "diff": (14, lambda: diff(plans)),
        "export": (40, lambda: export(plans)),
        "serve": (50, serve),
        "serve misses": (10, misses),
        "serve cost": (20, cost),
        "serve show": (60, lambda: serve_show(plans)),
        "simulate": (50, lambda: simulate(plans)),
        "shard": (80, shard),
        "roofline": (16, roofline),
        "model": (20, model),
        "figure": (8, figure),
        "validate": (3, validate),
        "compare": (18, compiled),
    }

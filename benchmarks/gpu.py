"""Training and decode steps of our programs on one GPU, beside the chip's peaks and the plan.

    python benchmarks/gpu.py --chip h100 [--steps 10] [--only NAME ...] [--keep FOLDER]
        [--record FILE]

Each case is a plan, compiled and run in a child as `shardwise profile` does, its parameters random
and its sequences at full length. A training step says the share of the chip's dense bf16 peak that
the model's FLOPs take (MFU), a decode step the share of its HBM bandwidth that the weights and the
cache take, each read once. `--record` adds a line of JSON for each case to a file, from which
`scripts/fit_jax.py` learns what our trainer's steps take on a GPU. First comes what this very card
does: a product of 8192 x 8192 x 8192 in bf16, a copy within its memory, and the kernel of pages
beside the loop that it stands for.
"""

import argparse
import gzip
import json
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.plans import price_plan
from shardwise.commands.program.compiling import PLAN_BUILDER, predicted_of
from shardwise.commands.program.profiling import Profiled, profiled, run_program
from shardwise.errors import ShardwiseError
from shardwise.models import ModelConfig, kv_bytes, load_model, params_by_component
from shardwise.models.flops import model_flops_per_token
from shardwise.models.zoo import hf_config
from shardwise.plans import ServeDtypes, ServePlan, TrainPlan, model_hash
from shardwise.plans.files import plan_dict
from shardwise.work import tally


class Case(NamedTuple):
    """A model of the zoo, of `layers` where not of all, and `sequences` of so many tokens."""

    phase: str
    model: str
    sequences: int
    tokens: int
    layers: int | None = None
    remat: str = "block"


CASES = {
    "train 1B": Case("train", "llama-3.2-1b", 4, 4096, remat="none"),
    "train 8B, 8 layers": Case("train", "llama-3-8b", 4, 4096, layers=8, remat="none"),
    "train 8B, 8 layers, block": Case("train", "llama-3-8b", 4, 4096, layers=8),
    "train 0.6B": Case("train", "qwen3-0.6b", 4, 4096, remat="none"),
    "train GPT-2": Case("train", "gpt2", 32, 1024, remat="none"),
    "train 1.5B, block": Case("train", "qwen2.5-1.5b", 4, 4096),
    "train 1B, long": Case("train", "llama-3.2-1b", 1, 16384),
    "train 4B, 10 layers": Case("train", "qwen3-4b", 8, 2048, layers=10, remat="none"),
    "train 7B, 6 layers, long": Case("train", "qwen2.5-7b", 1, 16384, layers=6),
    "train OLMoE, 4 layers": Case("train", "olmoe-1b-7b", 4, 2048, layers=4, remat="none"),
    "train 360M": Case("train", "smollm2-360m", 8, 2048, remat="none"),
    "decode 8B": Case("decode", "llama-3-8b", 64, 4096),
    "decode 8B, 8 sequences": Case("decode", "llama-3-8b", 8, 4096),
    "decode 1B": Case("decode", "llama-3.2-1b", 128, 4096),
}


TILES: tuple[dict[str, int], ...] = (
    {"stages": 2},
    {"stages": 4},
    {"places": 32, "stages": 4},
    {"places": 32, "warps": 2, "stages": 4},
    {"warps": 8},
    {"programs": 528},
    {"programs": 1056},
    {"programs": 2112},
    {"stages": 1, "programs": 2112},
)
"""Of the kernel of pages, tried beside its own."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Our steps on one GPU.")
    parser.add_argument("--chip", required=True, help="its name in the catalogue")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--keep", type=Path, help="what each case says, as JSON, goes there")
    parser.add_argument("--record", type=Path, help="a line of JSON for each case is added to it")
    parser.add_argument("--card", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.card:
        card()
        return
    subprocess.run([sys.executable, __file__, "--card", "--chip", options.chip], check=True)
    for name in options.only:
        begun = time.perf_counter()
        try:
            line, rows = measured(CASES[name], options)
        except ShardwiseError as error:
            print(f"{name}: {error}", flush=True)
            continue
        print(f"{name}: {line}, {time.perf_counter() - begun:.0f} s in all", flush=True)
        for row in rows:
            print(f"    {row}", flush=True)


def measured(case: Case, options: argparse.Namespace) -> tuple[str, list[str]]:
    """The case as it ran in a line, and its ops."""
    cfg, model = the_model(case, options)
    hardware = Hardware()
    piece = hardware.slice(f"{options.chip}:1").slice
    plan: Any = training(case, cfg, model, str(piece))
    if case.phase == "decode":
        plan = serving(case, cfg, model, str(piece))
    predicted = predicted_of(price_plan(plan, hardware), case.phase)
    asked = {"plan": plan_dict(plan), "phase": case.phase}
    said = run_program(PLAN_BUILDER, asked, plan.devices, steps=options.steps)
    seconds = median(said["seconds"])
    spread = f"{min(said['seconds']) * 1e3:.2f}-{max(said['seconds']) * 1e3:.2f}"
    if case.phase == "train":
        tokens = case.sequences * case.tokens
        flops = float(model_flops_per_token(cfg, case.tokens)) * tokens
        share = f"MFU {flops / seconds / piece.chip.peak('bf16'):.1%}"
        rate = f"{tokens / seconds:,.0f} tokens/s"
    else:
        table = 0 if cfg.tied_embeddings else params_by_component(cfg)["embedding"]
        weights = 2.0 * (sum(params_by_component(cfg).values()) - table)
        read = weights + case.sequences * float(kv_bytes(cfg, case.tokens))
        share = f"{read / 1e9:.1f} GB, {read / seconds / piece.chip.hbm_bandwidth:.1%} of the HBM"
        rate = f"{case.sequences / seconds:,.0f} tokens/s"
    line = f"{seconds * 1e3:.2f} ms ({spread}), {rate}, {share}"
    line += f"; predicted {predicted['seconds']['expected'] * 1e3:.2f} ms"
    line += f"; compiled in {said['compile_seconds']:.0f} s"
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        with gzip.open(options.keep / f"{case_name(case)}.json.gz", "wt") as file:
            json.dump(said, file)
    row = {"case": case._asdict(), "chip": options.chip, "device": said["kind"]}
    row |= {"jax": version("jax"), "seconds": said["seconds"], "plan": plan_dict(plan)}
    try:
        found = profiled(case.phase, said, piece, predicted, ())
    except ShardwiseError as error:
        record(options.record, row | {"by": {}})
        return line, [str(error)]
    record(options.record, row | {"by": by_component(found)})
    if found.timeline is not None:
        line += f"; its ops at the chip's rates {found.timeline.expected * 1e3:.2f} ms"
    return line, classes(found)


def case_name(case: Case) -> str:
    """For a folder."""
    return f"{case.phase}_{case.model}_{case.sequences}".replace(".", "_")


def the_model(case: Case, options: argparse.Namespace) -> tuple[ModelConfig, str]:
    """The model and where it is; one of fewer layers is written beside what is kept."""
    if case.layers is None:
        return load_model(case.model), case.model
    folder = (options.keep or Path("/tmp")) / "models" / f"{case.model}-{case.layers}"
    folder.mkdir(parents=True, exist_ok=True)
    config = {**hf_config(case.model), "num_hidden_layers": case.layers}
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(str(folder)), str(folder)


def training(case: Case, cfg: ModelConfig, model: str, piece: str) -> TrainPlan:
    """bf16, with master copy and moments in f32."""
    return TrainPlan(
        model=model,
        model_hash=model_hash(cfg),
        slice=piece,
        mesh={},
        box=(1,),
        global_batch_sequences=case.sequences,
        sequence_length=case.tokens,
        microbatches=1,
        layers_per_stage=(cfg.layers,),
        remat=case.remat,
        software="jax",
    )


def serving(case: Case, cfg: ModelConfig, model: str, piece: str) -> ServePlan:
    """bf16 weights and cache."""
    return ServePlan(
        model=model,
        model_hash=model_hash(cfg),
        slice=piece,
        mesh={},
        box=(1,),
        batch=case.sequences,
        input_length=case.tokens - 256,
        output_length=256,
        dtypes=ServeDtypes(weights="bf16"),
    )


def record(file: Path | None, row: dict[str, Any]) -> None:
    """A line more of a file, where there is one."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as to:
            to.write(json.dumps(row) + "\n")


def by_component(found: Profiled) -> dict[str, float]:
    """Seconds of a step by class of op and component of the model, of the device."""
    m = found.measured
    spent = tally((f"{item.op.op.op_class} {item.op.op.component}", item.seconds) for item in m.ops)
    return {**spent, "unmatched": m.unmatched_seconds, "step": m.step_seconds}


def classes(found: Profiled) -> list[str]:
    """Milliseconds by class, and the ops that took longest."""
    m = found.measured
    by_class = tally((item.op.op.op_class, item.seconds) for item in m.ops)
    by_class["unmatched"] = m.unmatched_seconds
    said = [f"{name} {spent * 1e3:.2f}" for name, spent in by_class.items()]
    busy = sum(by_class.values())
    rows = [f"busy {busy * 1e3:.2f} of {m.step_seconds * 1e3:.2f} ms: {', '.join(said)}"]
    for item in sorted(m.ops, key=lambda item: -item.seconds)[:12]:
        rows.append(f"{item.seconds * 1e3:8.3f} ms  {item.op.op.name}  {item.op.scope}")
    return rows


def card() -> None:
    """What the card does, and whether the kernel of pages says on it what the loop says."""
    import jax
    import jax.numpy as jnp

    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}", flush=True)
    a = jax.random.normal(jax.random.key(0), (8192, 8192), jnp.bfloat16)
    spent = timed(jax.jit(lambda x: x @ x), a)
    print(f"product of 8192^3 in bf16: {2 * 8192**3 / spent / 1e12:.0f} TFLOP/s", flush=True)
    b = jax.random.normal(jax.random.key(1), (2**30,), jnp.bfloat16)
    spent = timed(jax.jit(lambda x: -x), b)
    print(f"copy of 2.1 GB: {2 * b.nbytes / spent / 1e12:.2f} TB/s, both ways", flush=True)
    pages()


def timed(run: Any, *given: Any, calls: int = 20) -> float:
    """Seconds of a call of many in a row: the median of five rounds."""
    import jax

    seconds = []
    for _ in range(6):
        begun = time.perf_counter()
        for _ in range(calls):
            out = run(*given)
        jax.block_until_ready(out)
        seconds.append((time.perf_counter() - begun) / calls)
    return median(seconds[1:])


def pages() -> None:
    """Kernel and loop over the same pages: 64 rows of 4,096 tokens, 8 KV heads of 128, 4 queries
    each, as the 8B has them."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from shardwise.runtime.attention import paged_triton
    from shardwise.runtime.attention.paged import PagedKeys, Paging, Reader, paged_attention
    from shardwise.runtime.attention.scoring import Scoring

    R, M, S, K, G, H, P = 64, 64, 64, 8, 4, 128, 4096
    rng = np.random.default_rng(0)
    table = jnp.asarray(rng.permutation(P).reshape(R, M), jnp.int32)
    at = jnp.asarray(rng.integers(3000, M * S, R), jnp.int32)
    k, v = (jax.random.normal(jax.random.key(i), (1, P, S, K * H), jnp.bfloat16) for i in (2, 3))
    q = jax.random.normal(jax.random.key(4), (1, R, K * G, H), jnp.bfloat16)
    read = 2 * 2 * K * H * float(np.asarray(at).sum())

    def attend(q: Any, k: Any, v: Any, reader: Reader) -> Any:
        none = jnp.zeros((0, M), jnp.int32)
        paging = Paging(table, none, jnp.zeros(0, jnp.int32), S, reader=reader)
        keys, values = (PagedKeys(x, None, 0, K, H, paging) for x in (k, v))
        places = {"q_positions_BT": at[None], "k_positions_BS": at[None]}
        scoring = Scoring(scale=H**-0.5, softcap=None, window=None, chunk=None, **places)
        return paged_attention(q, keys, values, scoring)

    def tried(reader: Reader, what: str) -> Any:
        run = jax.jit(partial(attend, reader=reader))
        spent = timed(run, q, k, v)
        print(f"pages by {what}: {spent * 1e6:.0f} us, {read / spent / 1e12:.2f} TB/s", flush=True)
        return np.asarray(run(q, k, v).astype(jnp.float32))

    wanted = tried("loop", "loop")
    own = paged_triton.TILES
    for tiles in (own, *(own._replace(**change) for change in TILES)):
        paged_triton.TILES = tiles
        said = tried("triton", f"triton, {tuple(tiles)}")
        far = np.linalg.norm(said - wanted) / np.linalg.norm(wanted)
        if far > 1e-2:
            print(f"    WRONG: {far:.1e} of the norm from the loop's", flush=True)


if __name__ == "__main__":
    main()

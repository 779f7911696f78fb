"""Tokens per second of our training step beside transformers' (PyTorch), on the same CPU at once.

    python benchmarks/train.py --torch-python PATH [--rounds 5] [--steps 4] [--rows 8]
                               [--length 256] [--width 256] [--layers 6]

The same small Llama (f32, AdamW, the same batch shape, all cores of both) in two interpreters that
stay alive; rounds are interleaved, so that a busy machine slows both (but not alike: PyTorch's
threads wait for each other more often). Each figure is the median of the rounds and their range.
Both compile or warm up before the first round.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = ("steps", "rows", "length", "width", "layers")
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def small(options: argparse.Namespace) -> dict[str, Any]:
    """A Llama of heads of 32, two to a KV head."""
    return {
        **SHAPE,
        "hidden_size": options.width,
        "intermediate_size": options.width * 11 // 4,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.width // 32,
        "num_key_value_heads": options.width // 64,
        "vocab_size": 4096,
    }


def main() -> None:
    options = _options()
    if options.worker:
        _serve(options)
        return
    workers = {"shardwise": _start(sys.executable, "ours", options)}
    workers["transformers"] = _start(options.torch_python, "theirs", options)
    for worker in workers.values():
        print(_ask(worker), file=sys.stderr)
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(options.rounds):
        order = list(workers) if turn % 2 == 0 else list(workers)[::-1]
        for name in order:
            rates[name].append(float(_ask(workers[name])))
    for worker in workers.values():
        worker.kill()
        worker.wait()
    print(f"{options.rows} x {options.length} tokens a step, {options.steps} steps a round")
    for name, found in rates.items():
        low, high = min(found), max(found)
        print(f"{name:14}{statistics.median(found):10,.0f} tokens/s ({low:,.0f}-{high:,.0f})")
    ratios = [a / b for a, b in zip(*rates.values(), strict=True)]
    print(f"ratio         {statistics.median(ratios):10.2f} ({min(ratios):.2f}-{max(ratios):.2f})")


def _loaded(config: dict[str, Any]) -> Any:
    from shardwise.models import load_model

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return load_model(folder)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Our training step beside transformers'.")
    parser.add_argument("--torch-python", default=sys.executable, help="has torch, transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--worker", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    return parser.parse_args()


def _start(python: str, which: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    sizes = [f"--{name}={getattr(options, name)}" for name in SIZES]
    return subprocess.Popen(
        [python, __file__, "--worker", which, *sizes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(worker: subprocess.Popen[str]) -> str:
    """One round: a line in, a line out."""
    assert worker.stdin
    assert worker.stdout
    worker.stdin.write("\n")
    worker.stdin.flush()
    answer = worker.stdout.readline().strip()
    if not answer:
        raise SystemExit("a worker ended; see its message above")
    return answer


def _serve(options: argparse.Namespace) -> None:
    """A worker: first what it is, then a rate for each line."""
    step, what = (_theirs if options.worker == "theirs" else _ours)(options)
    step()
    step()
    sys.stdin.readline()
    print(what, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(options.steps):
            step()
        seconds = time.perf_counter() - start
        print(options.rows * options.length * options.steps / seconds, flush=True)


def _ours(options: argparse.Namespace) -> tuple[Any, str]:
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import numpy as np

    from shardwise.plans import TrainPlan, model_hash
    from shardwise.plans.train import TrainDtypes
    from shardwise.runtime.trainer import Settings, program
    from shardwise.runtime.trainer.loop import keep_freed_memory

    keep_freed_memory()  # as `trainer.train` does
    cfg = _loaded(small(options))
    dtypes = TrainDtypes(param="f32", compute="f32", grad="f32", master="none", moments="f32")
    plan = TrainPlan(
        model="benchmark",
        model_hash=model_hash(cfg),
        slice="v5e:1x1",
        mesh={},
        box=(1, 1),
        global_batch_sequences=options.rows,
        sequence_length=options.length,
        microbatches=1,
        layers_per_stage=(cfg.layers,),
        remat="none",
        attention_kernel="flash",
        dtypes=dtypes,
    )
    made = program(plan, cfg, Settings(steps=1000, schedule="constant"))
    ids = np.random.default_rng(0).integers(
        0, cfg.vocabulary, (options.rows, options.length + 1), dtype=np.int32
    )
    batch = {"tokens": ids[:, :-1], "targets": ids[:, 1:]}
    batch["weights"] = np.ones(batch["tokens"].shape, np.float32)
    placed = jax.device_put(batch, made.batch)
    held = {"state": made.begin(jax.random.key(0))}

    def step() -> None:
        held["state"], metrics = made.step(held["state"], placed)
        jax.block_until_ready((held["state"], metrics))

    return step, f"{options.worker}: JAX {jax.__version__} on {jax.devices()[0].device_kind}"


def _theirs(options: argparse.Namespace) -> tuple[Any, str]:
    import torch
    import transformers

    torch.manual_seed(0)
    shape = {name: value for name, value in small(options).items() if name != "model_type"}
    config = transformers.LlamaConfig(**shape)
    model = transformers.LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    ids = torch.randint(0, config.vocab_size, (options.rows, options.length))

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    return step, f"{versions}, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()

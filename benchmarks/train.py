"""Tokens per second of our training step beside transformers' (PyTorch), on the same CPU at once.

    python benchmarks/train.py --torch-python PATH [--rounds 5] [--steps 4] [--rows 8]
                               [--length 256]

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

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Our training step beside transformers'.")
    parser.add_argument("--torch-python", default=sys.executable, help="has torch, transformers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--worker", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    return parser.parse_args()


def _start(python: str, which: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    sizes = [f"--{name}={getattr(options, name)}" for name in ("steps", "rows", "length")]
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
    step, what = (_ours if options.worker == "ours" else _theirs)(options)
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

    from shardwise.models import load_model
    from shardwise.plans import TrainPlan, model_hash
    from shardwise.plans.train import TrainDtypes
    from shardwise.runtime.trainer import Settings, program

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        cfg = load_model(folder)
    plan = TrainPlan(
        model="small",
        model_hash=model_hash(cfg),
        slice="v5e:1x1",
        mesh={},
        box=(1, 1),
        global_batch_sequences=options.rows,
        sequence_length=options.length,
        microbatches=1,
        layers_per_stage=(cfg.layers,),
        remat="none",
        dtypes=TrainDtypes(param="f32", compute="f32", grad="f32", master="none", moments="f32"),
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

    return step, f"shardwise on JAX {jax.__version__}"


def _theirs(options: argparse.Namespace) -> tuple[Any, str]:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"})
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

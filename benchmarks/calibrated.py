"""Predicted over measured step time of a small model on this machine, after calibrating it.

    python benchmarks/calibrated.py [--rounds 3] [--steps 5] [--devices 1]

Each round calibrates the machine, plans a training step of a small Llama (f32) for it, and runs the
plan. Both sides are counted in products of 1024 x 1024 x 1024: the predicted step in one that is
timed after each figure of the calibration, the measured step in one after each step, so that other
work on the machine falls out. Printed for the planner's step and for the compiled program's
timeline, with the seconds behind them.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from shardwise.commands.base.inputs import Hardware
from shardwise.commands.pricing.predict import plan_training
from shardwise.commands.pricing.train_choices import TrainChoices
from shardwise.commands.program.profiling import Profiled, profile_plan
from shardwise.commands.run.calibration.machine import Calibration, calibrate_machine
from shardwise.plans import ServePlan, TrainPlan
from shardwise.profiler.micro.job import REFERENCE

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def main() -> None:
    options = _options()
    found: dict[str, list[float]] = {"planner": [], "compiled": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds):
            made = calibrate_machine("here", cpu_devices=options.devices)
            profile = _profile(made, Path(folder), options)
            _report(turn, made, profile, found)
    for name, ratios in found.items():
        print(
            f"{name:9} predicted / measured {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f})"
        )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Predicted over measured, once calibrated.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--devices", type=int, default=1, help="virtual CPU devices")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    return parser.parse_args()


def _profile(made: Calibration, folder: Path, options: argparse.Namespace) -> Profiled:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    file = folder / "here.toml"
    file.write_text(made.text)
    hardware = Hardware(files=[str(file)])
    plan: TrainPlan | ServePlan = plan_training(
        str(folder),
        f"here:{options.devices}",
        batch=f"{options.rows}seq",
        seq=options.length,
        choices=TrainChoices(dtype="f32", hw_files=file),
    ).best.plan
    return profile_plan(
        plan,
        hardware,
        steps=options.steps,
        cpu_devices=options.devices,
        reference=REFERENCE,
    )


def _report(turn: int, made: Calibration, p: Profiled, found: dict[str, list[float]]) -> None:
    before = made.said["reference_seconds"]
    meanwhile = statistics.median(p.reference_seconds)
    measured = p.step_seconds / meanwhile
    assert p.timeline is not None
    assert p.predicted is not None
    said = {"planner": p.predicted["seconds"].expected, "compiled": p.timeline.expected}
    load = os.getloadavg()[0]
    print(f"round {turn + 1}, load {load:.1f}: product {before * 1e3:.1f} ms calibrating,", end=" ")
    print(f"{meanwhile * 1e3:.1f} ms meanwhile; step {p.step_seconds:.2f} s", end=" ")
    print("; ".join(f"{name} {seconds:.2f} s" for name, seconds in said.items()), flush=True)
    for name, seconds in said.items():
        found[name].append(seconds / before / measured)


if __name__ == "__main__":
    main()

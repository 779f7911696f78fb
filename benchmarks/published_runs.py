"""Predicted against published step times of dense 16-bit training runs: the table of docs/log.md.

    python benchmarks/published_runs.py TRAINING_CSV

TRAINING_CSV has one published run a row: model shape, chips, degrees, microbatch, recompute, and a
metric (step_time, sequences_per_sec, tokens_per_sec_per_device, tflops_per_device). Each run's own
mesh is priced as a hand-written plan. Rows that this version cannot express are counted and named
on stderr. Prints per source the median of predicted over measured: lower, expected and upper.
"""

import csv
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.hardware import Slice, Torus, load_chip
from shardwise.models import ModelConfig, from_hf
from shardwise.models.flops import model_flops_per_token
from shardwise.planner.training import evaluate_train
from shardwise.plans import MESH_AXES, TrainPlan

REMAT = {"full": "block", "none": "none", "selective": "matmul_outputs"}
CUBES = {64: (4, 4, 4), 128: (4, 4, 8), 256: (4, 8, 8), 512: (8, 8, 8), 1024: (8, 8, 16)}
CUBES |= {2048: (8, 16, 16), 4096: (16, 16, 16)}
"""Slices of the published cube-generation runs, by chips."""


def number(row: dict[str, str], key: str, default: int = 1) -> int:
    """A whole number, or the default where the source does not state it."""
    return int(row[key] or default)


def model_of(row: dict[str, str]) -> ModelConfig:
    """A Llama-like model where the MLP is gated, an OPT-like one where it is not."""
    shared = {
        "hidden_size": number(row, "d_model"),
        "num_hidden_layers": number(row, "layers"),
        "num_attention_heads": number(row, "heads"),
        "vocab_size": number(row, "vocab", 51200),
    }
    if row["gated_mlp"] != "true":
        more = {"ffn_dim": number(row, "d_ff"), "max_position_embeddings": number(row, "seq_len")}
        return from_hf({"architectures": ["OPTForCausalLM"], **shared, **more}, name="published")
    more = {
        "intermediate_size": number(row, "d_ff"),
        "num_key_value_heads": number(row, "kv_heads", number(row, "heads")),
        "head_dim": number(row, "head_dim"),
    }
    return from_hf({"architectures": ["LlamaForCausalLM"], **shared, **more}, name="published")


def slice_of(row: dict[str, str]) -> Slice:
    """The chips of the run; cubes by the table above, 2-D tori and domains as many as it takes."""
    chip, chips = load_chip(row["hardware"]), number(row, "num_devices")
    if isinstance(chip.network, Torus) and len(chip.network.pod) == 3:
        if chips not in CUBES:
            raise ShardwiseError(f"no cube of {chips} chips")
        return Slice(chip=chip, count=1, shape=CUBES[chips])
    each = min(chips, 256 if isinstance(chip.network, Torus) else chip.network.domain)
    shape = (16, 16) if isinstance(chip.network, Torus) else (each,)
    return Slice(chip=chip, count=chips // each, shape=shape)


def plan_of(row: dict[str, str], piece: Slice) -> TrainPlan:
    """The run's own mesh; MaxText's microbatch is per chip, so it has one microbatch."""
    degrees = {"stage": "pp", "data": "dp", "fsdp": "fsdp", "context": "cp", "tensor": "tp"}
    mesh = {axis: number(row, column) for axis, column in degrees.items()}
    if isinstance(piece.chip.network, Torus) and piece.count > 1:
        mesh["replica"] = mesh.pop("data")
    batch, shards = number(row, "global_batch_seqs"), number(row, "dp") * number(row, "fsdp")
    sized = row["micro_batch"] and "maxtext" not in row["source"]
    whole, more = divmod(number(row, "layers"), mesh["stage"])
    recompute = row["recompute"]
    fallback = "matmul_outputs" if "minimal" in recompute else "block"
    return TrainPlan(
        model="published",
        model_hash="",
        slice=str(piece),
        mesh={axis: mesh[axis] for axis in MESH_AXES if mesh.get(axis, 1) > 1},
        slices=piece.count,
        box=piece.shape,
        global_batch_sequences=batch,
        sequence_length=number(row, "seq_len"),
        microbatches=batch // (shards * number(row, "micro_batch")) if sized else 1,
        layers_per_stage=(*[whole + 1] * more, *[whole] * (mesh["stage"] - more)),
        remat=REMAT.get(recompute, fallback),  # type: ignore[arg-type]
    )


def measured_seconds(row: dict[str, str], cfg: ModelConfig) -> float:
    """Seconds per step, from whichever metric the source gives, by its own FLOP convention."""
    value, devices = float(row["value"]), number(row, "num_devices")
    tokens = number(row, "global_batch_seqs") * number(row, "seq_len")
    if row["metric"] == "step_time":
        return value
    if row["metric"] == "sequences_per_sec":
        return number(row, "global_batch_seqs") / value
    if row["metric"] == "tokens_per_sec_per_device":
        return tokens / (value * devices)
    if row["metric"] != "tflops_per_device":
        raise ShardwiseError(f"no rule for the metric {row['metric']}")
    causal, recomputed = "maxtext" in row["source"], row["source"].startswith("megatron")
    flops = float(model_flops_per_token(cfg, number(row, "seq_len"), causal=causal))
    return flops * (4 / 3 if recomputed else 1) * tokens / (devices * value * 1e12)


def ratios(row: dict[str, str]) -> tuple[float, float, float]:
    """Predicted over measured seconds: lower, expected, upper."""
    cfg, piece = model_of(row), slice_of(row)
    answer = evaluate_train(plan_of(row, piece), cfg, piece)
    measured = measured_seconds(row, cfg)
    return tuple(seconds / measured for seconds in answer.step_seconds.values())  # type: ignore[return-value]


def main(path: Path) -> None:
    groups: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    left_out: list[str] = []
    for row in csv.DictReader(path.open(encoding="utf-8")):
        if row["experts"] or row["compute_dtype"] not in ("bf16", "fp16"):
            left_out.append(f"{row['id']}: mixture of experts or narrower than 16 bit")
            continue
        try:
            found = ratios(row)
            groups[row["source"], row["hardware"]].append(found)
        except (ShardwiseError, ValueError) as error:
            left_out.append(f"{row['id']}: {error}")
    print("| source | chip | rows | lower | expected | upper |\n|---|---|---|---|---|---|")
    for (source, chip), found in groups.items():
        medians = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"| {source} | {chip} | {len(found)} | {' | '.join(f'{m:.2f}' for m in medians)} |")
    print(f"\n{sum(map(len, groups.values()))} rows priced, {len(left_out)} left out")
    for line in left_out:
        print(f"- {line}", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} TRAINING_CSV")
    main(Path(sys.argv[1]))

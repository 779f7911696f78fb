"""The plans of docs/lab/compiled.md: published models on five generations of TPU.

MATCHED covers every strategy, training, decode and prefill; FITS lies around what its chips hold,
by the plan's own prediction or past it. All else is the same for all (`plan_of`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shardwise.commands.base.inputs import Hardware
from shardwise.hardware import Slice
from shardwise.models import load_model
from shardwise.plans import ServeDtypes, ServePlan, TrainPlan
from shardwise.plans.identity import model_hash
from shardwise.plans.software import SOFTWARE

RING, ULYSSES = {"context_method": "ring"}, {"context_method": "ulysses"}
RAGGED = {"expert_dispatch": "ragged"}


class Train(NamedTuple):
    """A training step: sequences of the whole batch, tokens of each."""

    model: str
    on: str
    mesh: Mapping[str, int]
    sequences: int
    tokens: int
    choices: Mapping[str, Any] = {}


class Serve(NamedTuple):
    """A step of a server: of decode, sequences, and tokens of each when it ends; of prefill the
    prompts of all pools of pages at once, one each, of `tokens` less an answer's."""

    model: str
    on: str
    mesh: Mapping[str, int]
    sequences: int
    tokens: int
    weights: str = "bf16"
    phase: str = "decode"


PREFILL = ("bf16", "prefill")
MATCHED: Mapping[str, Train | Serve] = {
    "DP": Train("llama-3.2-1b", "v5p:2x2x2", {"data": 8}, 16, 2048, {"zero": 0}),
    "ZeRO-1": Train("llama-3.2-1b", "v5e:4x4", {"data": 16}, 16, 2048),
    "ZeRO-2, 2 microbatches": Train(
        "qwen3-0.6b", "v6e:4x4", {"data": 16}, 64, 2048, {"zero": 2, "microbatches": 2}
    ),
    "FSDP, v5e": Train("llama-3.2-3b", "v5e:4x4", {"fsdp": 16}, 32, 2048),
    "FSDP, v4": Train("llama-3-8b", "v4:4x4x4", {"fsdp": 64}, 64, 4096),
    "FSDP kept, v5p": Train(
        "llama-3-8b", "v5p:4x4x4", {"fsdp": 64}, 128, 4096, {"weight_gather": "per_microbatch"}
    ),
    "FSDP, no remat": Train("qwen3-4b", "v6e:8x8", {"fsdp": 64}, 64, 2048, {"remat": "none"}),
    "FSDP, matmul outputs": Train(
        "mistral-7b-v0.3", "v5p:2x4x4", {"fsdp": 32}, 64, 4096, {"remat": "matmul_outputs"}
    ),
    "FSDP, tpu7x": Train("llama-3-8b", "tpu7x:2x2x4", {"fsdp": 32}, 64, 4096),
    "TP": Train("llama-3.2-3b", "v6e:2x2", {"tensor": 4}, 4, 2048, {"sequence_parallel": False}),
    "TP + SP": Train("llama-3-8b", "v5p:2x2x2", {"tensor": 8}, 4, 4096),
    "FSDP + TP, v5p": Train("llama-3-70b", "v5p:8x8x8", {"fsdp": 128, "tensor": 4}, 256, 4096),
    "FSDP + TP, v6e": Train("llama-2-13b", "v6e:8x8", {"fsdp": 16, "tensor": 4}, 32, 4096),
    "FSDP + TP, v4": Train("qwen2.5-32b", "v4:4x4x8", {"fsdp": 32, "tensor": 4}, 64, 4096),
    "FSDP + TP, tpu7x": Train("llama-3-70b", "tpu7x:4x4x4", {"fsdp": 32, "tensor": 4}, 64, 4096),
    "HSDP + TP, 2 microbatches": Train(
        "llama-3-8b",
        "v5p:4x4x4",
        {"data": 2, "fsdp": 16, "tensor": 2},
        128,
        4096,
        {"microbatches": 2},
    ),
    "CP": Train("llama-3-8b", "v5p:2x4x4", {"fsdp": 8, "context": 4}, 16, 16384),
    "CP ring": Train("llama-3.2-3b", "v6e:4x4", {"fsdp": 4, "context": 4}, 8, 16384, RING),
    "CP Ulysses": Train("qwen3-8b", "v4:2x4x4", {"fsdp": 8, "context": 4}, 16, 8192, ULYSSES),
    "EP": Train("olmoe-1b-7b", "v5p:2x2x4", {"expert": 16}, 32, 2048),
    "EP ragged": Train("qwen3-30b-a3b", "v5p:4x4x4", {"fsdp": 8, "expert": 8}, 128, 4096, RAGGED),
    "decode, v5e": Serve("llama-3-8b", "v5e:2x4", {"tensor": 8}, 64, 2048),
    "decode int8, v5e": Serve("llama-3-70b", "v5e:4x4", {"tensor": 16}, 32, 4096, "int8"),
    "decode, v6e": Serve("qwen3-8b", "v6e:2x2", {"tensor": 4}, 64, 4096),
    "decode, v5p": Serve("llama-2-13b", "v5p:2x2x1", {"tensor": 4}, 32, 4096),
    "decode, DP + TP": Serve("llama-3-8b", "v4:2x2x2", {"data": 2, "tensor": 4}, 64, 4096),
    "prefill, v5e": Serve("llama-3-8b", "v5e:2x4", {"tensor": 8}, 64, 2048, *PREFILL),
    "prefill int8, v5e": Serve(
        "llama-3-70b", "v5e:4x4", {"tensor": 16}, 32, 4096, "int8", "prefill"
    ),
    "prefill, v6e": Serve("qwen3-8b", "v6e:2x2", {"tensor": 4}, 64, 4096, *PREFILL),
    "prefill, v5p": Serve("llama-2-13b", "v5p:2x2x1", {"tensor": 4}, 32, 4096, *PREFILL),
    "prefill, DP + TP": Serve(
        "llama-3-8b", "v4:2x2x2", {"data": 2, "tensor": 4}, 64, 4096, *PREFILL
    ),
}
NEAR: Mapping[str, Train | Serve] = {
    "1B, DP, v5e, near": Train("llama-3.2-1b", "v5e:2x4", {"data": 8}, 48, 2048),
    "1B, FSDP, v5e, near": Train("llama-3.2-1b", "v5e:2x2", {"fsdp": 4}, 36, 2048),
    "3B, FSDP, v5e, near": Train("llama-3.2-3b", "v5e:2x4", {"fsdp": 8}, 40, 2048),
    "8B, FSDP, v6e, near": Train("llama-3-8b", "v6e:2x4", {"fsdp": 8}, 32, 4096),
    "8B, decode, v5e, near": Serve("llama-3-8b", "v5e:2x4", {"tensor": 8}, 424, 2048),
    "8B, decode, v5e, at": Serve("llama-3-8b", "v5e:2x4", {"tensor": 8}, 448, 2048),
    **{
        f"70B, decode int8, v5e, {n}": Serve(
            "llama-3-70b", "v5e:4x4", {"tensor": 16}, n, 4096, "int8"
        )
        for n in (140, 148, 152)
    },
    **{
        f"13B, decode, v5p, {n}": Serve("llama-2-13b", "v5p:2x2x1", {"tensor": 4}, n, 4096)
        for n in (112, 116)
    },
    **{
        f"8B, decode, v4, {n}": Serve("llama-3-8b", "v4:2x2x2", {"data": 2, "tensor": 4}, n, 4096)
        for n in (416, 448)
    },
    **{
        f"8B, decode, v6e, {n}": Serve("qwen3-8b", "v6e:2x2", {"tensor": 4}, n, 4096)
        for n in (180, 192)
    },
}
"""Within a few per cent of what a chip holds; by the planner, before any was compiled."""
NONE = {"remat": "none"}
FITS: Mapping[str, Train | Serve] = {
    "1B, DP, v5e": Train("llama-3.2-1b", "v5e:2x4", {"data": 8}, 40, 2048),
    "1B, DP, v5e, over": Train("llama-3.2-1b", "v5e:2x4", {"data": 8}, 56, 2048),
    "1B, FSDP, v5e": Train("llama-3.2-1b", "v5e:2x2", {"fsdp": 4}, 32, 2048),
    "1B, FSDP, v5e, over": Train("llama-3.2-1b", "v5e:2x2", {"fsdp": 4}, 40, 2048),
    "3B, FSDP, v5e": Train("llama-3.2-3b", "v5e:2x4", {"fsdp": 8}, 32, 2048),
    "3B, FSDP, v5e, over": Train("llama-3.2-3b", "v5e:2x4", {"fsdp": 8}, 48, 2048),
    "8B, FSDP, v6e": Train("llama-3-8b", "v6e:2x4", {"fsdp": 8}, 24, 4096),
    "8B, FSDP, v6e, over": Train("llama-3-8b", "v6e:2x4", {"fsdp": 8}, 40, 4096),
    "8B, FSDP, v4": Train("llama-3-8b", "v4:2x2x2", {"fsdp": 8}, 24, 4096),
    "8B, FSDP, v4, over": Train("llama-3-8b", "v4:2x2x2", {"fsdp": 8}, 32, 4096),
    "8B, FSDP, tpu7x": Train("llama-3-8b", "tpu7x:2x2x1", {"fsdp": 8}, 144, 4096),
    "8B, FSDP, tpu7x, over": Train("llama-3-8b", "tpu7x:2x2x1", {"fsdp": 8}, 176, 4096),
    "13B, FSDP, v6e, over": Train("llama-2-13b", "v6e:4x4", {"fsdp": 16}, 112, 4096),
    "3B, TP, v6e": Train("llama-3.2-3b", "v6e:2x2", {"tensor": 4}, 48, 2048),
    "3B, TP, v6e, over": Train("llama-3.2-3b", "v6e:2x2", {"tensor": 4}, 64, 2048),
    "7B, FSDP, no remat, v5p, over": Train(
        "mistral-7b-v0.3", "v5p:2x2x2", {"fsdp": 8}, 40, 4096, NONE
    ),
    "8B, decode, v5e": Serve("llama-3-8b", "v5e:2x4", {"tensor": 8}, 384, 2048),
    "8B, decode, v5e, over": Serve("llama-3-8b", "v5e:2x4", {"tensor": 8}, 496, 2048),
    "70B, decode int8, v5e": Serve("llama-3-70b", "v5e:4x4", {"tensor": 16}, 128, 4096, "int8"),
    "70B, decode int8, v5e, over": Serve(
        "llama-3-70b", "v5e:4x4", {"tensor": 16}, 160, 4096, "int8"
    ),
    **NEAR,
}


def plan_of(row: Train | Serve, hardware: Hardware) -> TrainPlan | ServePlan:
    """bf16 with f32 moments and master copy, or as the row says; all of the slice."""
    cfg, piece = load_model(row.model), hardware.slice(row.on).slice
    if isinstance(row, Serve):
        return ServePlan(
            model=row.model,
            model_hash=model_hash(cfg),
            slice=str(piece),
            mesh=dict(row.mesh),
            box=_box(piece),
            batch=row.sequences,
            input_length=row.tokens - 256,
            output_length=256,
            dtypes=ServeDtypes(weights=row.weights),
        )
    return TrainPlan(
        model=row.model,
        model_hash=model_hash(cfg),
        slice=str(piece),
        mesh=dict(row.mesh),
        box=_box(piece),
        global_batch_sequences=row.sequences,
        sequence_length=row.tokens,
        layers_per_stage=(cfg.layers,),
        software="jax",
        stack=SOFTWARE["jax"].stack_on(piece.chip),
        **{"microbatches": 1, **row.choices},
    )


def _box(piece: Slice) -> tuple[int, ...]:
    return piece.shape


def phase_of(row: Train | Serve) -> str:
    """train, decode or prefill."""
    return row.phase if isinstance(row, Serve) else "train"

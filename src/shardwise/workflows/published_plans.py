"""The plan of a published training run: from the columns of a table row to a slice and a TrainPlan.

Read by the columns and by what `recompute` and `notes` say, never by a row's id. What a source does
not state follows these rules:

- Software (`stack`): by the source (`STACKS`), or a column `stack`.
- Slice: GPUs fill domains evenly (at most the catalogue's domain each); a torus is the most
  cube-like legal shape of its chips, cut into the pods or slices that the notes name. A fabric rate
  that the notes name replaces the catalogue's.
- Mesh: `dp` is the mesh axis data (replica where it crosses torus slices), `ep` takes its ranks
  from dp, else from fsdp, and what neither holds from tp (`expert_over_tensor`); where the degrees
  already multiply to the devices with ep, it is a factor of its own.
- `micro_batch` is per batch shard on GPU stacks and per device (JAX) of MaxText-like sources,
  which accumulate no gradients. Not stated: 1 under pipelining; the whole batch of a shard on xla;
  else the most sequences, a power of two, that make no more than 8,192 tokens.
- Schedule: `vpp` > 1 interleaves; "interleaved" in the notes with no `vpp` takes the fewest chunks
  that divide a stage; "dualpipe" is that schedule; else 1F1B. Layers that do not divide the chunks
  are spread evenly, ends of the pipeline last, since they hold the embedding and the head. A stage
  with fewer layers than chunks takes fewer chunks.
- Recompute: see `published_remat`.
- Dtypes: see `dtypes_of`. Optimizer: Adam, or the one that the notes name.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from shardwise.errors import BadRequest, unknown
from shardwise.hardware import Chip, Slice, Torus, load_chip
from shardwise.hardware.shapes import shapes_with
from shardwise.hardware.slices import domain_of
from shardwise.models import ModelConfig
from shardwise.plans import MESH_AXES, TrainDtypes, TrainPlan, model_hash
from shardwise.plans.train import CHUNKS_OF, Stack
from shardwise.plans.train import STACKS as SOFTWARE
from shardwise.workflows.published_models import Row, said, whole
from shardwise.workflows.published_remat import remat_of

STACKS: Mapping[str, Stack] = {
    "maxtext": "xla",
    "tpu-recipes": "xla",
    "gpu-recipes": "xla",
    "jax-toolbox": "xla",
    "axlearn": "xla",
    "palm": "xla",
    "mosaicml": "fsdp",
    "nanotron": "nanotron",
    "nemo": "megatron",
    "megatron": "megatron",
    "vtrain": "megatron",
    "reducing-activation-recomputation": "megatron",
    "mt-nlg": "megatron",
    "megascale": "megatron",
    "deepseek": "megatron",
    "llama3": "megatron",
}
"""Software by how a source's name begins."""

PER_DEVICE = ("maxtext", "tpu-recipes", "gpu-recipes", "jax-toolbox-maxtext", "axlearn")
"""Sources whose `micro_batch` is the batch of one device."""

BEFORE_FLASH = ("megatron-sc21", "reducing-activation", "vtrain", "palm", "mt-nlg")
"""Sources whose software writes the T x S scores to memory (before FlashAttention)."""

COMPUTE = {"fp16": "f16", "": "f16"}
"""Names of compute dtypes that differ; those that state none are fp16 Megatron-DeepSpeed runs."""

MICRO_TOKENS = 8192
"""Tokens of a microbatch whose size is not stated."""


def stack_of(row: Row) -> Stack:
    """The software of a run, by its column `stack` or its source."""
    stated = row.get("stack")
    if stated:
        known = {name: name for name in SOFTWARE}
        if stated not in known:
            raise unknown("stack", stated, SOFTWARE)
        return known[stated]  # type: ignore[index]
    found = [stack for prefix, stack in STACKS.items() if row["source"].startswith(prefix)]
    if not found:
        raise BadRequest(
            f"source '{row['source']}' is of no known software; add a column 'stack' "
            "(xla, megatron, fsdp or nanotron)"
        )
    return found[0]


def slice_of(row: Row) -> Slice:
    """The chips of a run."""
    chip, chips = _chip(row), whole(row, "num_devices")
    if not isinstance(chip.network, Torus):
        each = max(n for n in range(1, min(chips, domain_of(chip)) + 1) if chips % n == 0)
        return Slice(chip=chip, count=chips // each, shape=(each,))
    named = re.search(r"(\d+) (?:slice\(s\)|pods)", said(row))
    count = int(named[1]) if named else 1
    shapes = shapes_with(chip.network, chips / count)
    if not shapes:
        raise BadRequest(f"{chips} chips in {count} slice(s): {chip.id} has no such slice")
    return Slice(chip=chip, count=count, shape=shapes[0])


def _chip(row: Row) -> Chip:
    """The chip, with the data-centre rate of its node where the notes name one."""
    chip = load_chip(row["hardware"])
    node = _node_gbps(said(row))
    if node is None or chip.data_centre is None:
        return chip
    oneway = node * 1e9 / 8 / chip.chips_per_host
    return replace(chip, data_centre=replace(chip.data_centre, chip_oneway=oneway))


def _node_gbps(words: str) -> float | None:
    """Gbit/s of one node by the notes: "1600 Gbps", "bandwidth 800 (Gb/s)" or "8x100Gb"."""
    times = re.search(r"(\d+)x(\d+) ?gb\b", words)
    if times:
        return float(times[1]) * float(times[2])
    plain = re.search(r"(\d+) ?\(?(?:gbps|gb/s)", words)
    return float(plain[1]) if plain else None


def plan_of(row: Row, cfg: ModelConfig, piece: Slice) -> TrainPlan:
    """The plan of a run. Raises BadRequest where a TrainPlan cannot say it."""
    stack, mesh = stack_of(row), _mesh(row, piece)
    shards = prod(mesh.get(a, 1) for a in ("replica", "data", "fsdp", "expert"))
    batch = whole(row, "global_batch_seqs")
    layers, schedule, chunks = _pipeline(row, cfg)
    plan = TrainPlan(
        model=cfg.name,
        model_hash=model_hash(cfg),
        slice=str(piece),
        mesh=mesh,
        slices=piece.count,
        box=piece.shape,
        global_batch_sequences=batch,
        sequence_length=whole(row, "seq_len"),
        microbatches=_microbatches(row, stack, batch, shards),
        layers_per_stage=layers,
        zero=_zero(row),
        storage_axes=("fsdp",) if stack == "megatron" else ("fsdp", "expert", "context"),
        reshard_after_forward=row.get("zero_stage") != "2",
        sequence_parallel=_sequence_parallel(row, stack),
        attention_kernel="scores" if _writes_scores(row) else "flash",
        pipeline_schedule=schedule,  # type: ignore[arg-type]
        virtual_stages=chunks,
        context_method="ring" if stack == "megatron" else "all_gather",
        expert_dispatch="ragged",
        expert_over_tensor=_experts_over_tensor(row),
        optimizer=_optimizer(row),  # type: ignore[arg-type]
        mtp_layers=_mtp_layers(row),
        dtypes=dtypes_of(row, stack),
        stack=stack,
    )
    remat, kinds = remat_of(row, plan, cfg, piece)
    return replace(plan, remat=remat, remat_kinds=kinds)


def dtypes_of(row: Row, stack: Stack) -> TrainDtypes:
    """Dtypes by software.

    xla: f32 parameters that are cast for compute, no master copy (MaxText and Pax defaults); fsdp:
    the same, gradients summed in f32 unless the notes say PURE; nanotron: bf16 parameters, f32
    gradients and master; megatron: 16-bit parameters, f32 master, gradients in f32 except in fp16
    runs (Megatron-LM sums those in fp16 unless told otherwise). DeepSeek keeps moments in bf16, as
    do the runs that say so.
    """
    stated = row.get("compute_dtype") or ""
    compute = COMPUTE.get(stated, stated)
    words = said(row)
    low = "bf16 adam mu" in words or row["source"].startswith("deepseek")
    moments = "bf16" if low else "f32"
    if stack in ("xla", "fsdp"):
        grad = "bf16" if "precision=pure" in words else "f32"
        return TrainDtypes(param="f32", compute=compute, grad=grad, master="none", moments=moments)
    half = "f16" if compute == "f16" else "bf16"
    grad = "f16" if compute == "f16" else "f32"
    return TrainDtypes(param=half, compute=compute, grad=grad, master="f32", moments=moments)


def _mesh(row: Row, piece: Slice) -> dict[str, int]:
    data, fsdp, tensor = (whole(row, c, 1) for c in ("dp", "fsdp", "tp"))
    stage, context, expert = (whole(row, c, 1) for c in ("pp", "cp", "ep"))
    devices = piece.devices
    if data * fsdp * tensor * stage * context * expert != devices:
        data, fsdp, expert = _subdivided(data, fsdp, tensor, expert)
    replica = 1
    if isinstance(piece.chip.network, Torus) and piece.count > 1:
        replica, data = data, 1
    degrees = {"replica": replica, "stage": stage, "data": data, "fsdp": fsdp}
    degrees |= {"expert": expert, "context": context, "tensor": tensor}
    if prod(degrees.values()) != devices:
        raise BadRequest(f"the degrees multiply to {prod(degrees.values())}, not to {devices}")
    return {axis: degrees[axis] for axis in MESH_AXES if degrees[axis] > 1}


def _subdivided(data: int, fsdp: int, tensor: int, expert: int) -> tuple[int, int, int]:
    """data, fsdp and expert of a mesh in which expert is made of ranks of the others."""
    if expert % tensor == 0 and expert > data * fsdp:
        expert //= tensor
    if data % expert == 0:
        return data // expert, fsdp, expert
    if expert % data == 0 and fsdp % (expert // data) == 0:
        return 1, fsdp // (expert // data), expert
    raise BadRequest(f"ep {expert} does not divide the {data} x {fsdp} ranks of dp and fsdp")


def _experts_over_tensor(row: Row) -> bool:
    """Whether ep has more ranks than dp x fsdp, so that it spans tp too."""
    return whole(row, "ep", 1) > whole(row, "dp", 1) * whole(row, "fsdp", 1)


def _microbatches(row: Row, stack: Stack, batch: int, shards: int) -> int:
    if row["source"].startswith(PER_DEVICE):
        return 1
    if batch % shards:
        raise BadRequest(f"a batch of {batch} does not divide over {shards} shards")
    each = batch // shards
    if row.get("micro_batch"):
        micro = whole(row, "micro_batch")
    elif whole(row, "pp", 1) > 1:
        micro = 1
    elif stack == "xla":
        micro = each
    else:
        most = max(1, MICRO_TOKENS // whole(row, "seq_len"))
        micro = max(n for n in range(1, most + 1) if each % n == 0 and n & (n - 1) == 0)
    if each % micro:
        raise BadRequest(f"microbatches of {micro} do not divide the {each} of a shard")
    return each // micro


def _pipeline(row: Row, cfg: ModelConfig) -> tuple[tuple[int, ...], str, int]:
    """Layers per stage, the schedule and its chunks per stage."""
    stages, words = whole(row, "pp", 1), said(row)
    layers = spread(cfg.layers, stages)
    if stages == 1:
        return layers, "1f1b", 1
    if "dualpipe" in words:
        return layers, "dualpipe", 2
    chunks = whole(row, "vpp", 0)
    if not chunks and "interleaved schedule" in words:
        fits = (n for n in CHUNKS_OF["interleaved"] if layers[0] % n == 0)
        chunks = next(fits, 1) if len(set(layers)) == 1 else 1
    allowed = [n for n in CHUNKS_OF["interleaved"] if n <= min(chunks, *layers)]
    if not allowed:
        return layers, "1f1b", 1
    return layers, "interleaved", max(allowed)


def spread(layers: int, stages: int) -> tuple[int, ...]:
    """Layers over stages as evenly as they go; the last and first stages hold fewer.

    >>> spread(126, 8), spread(10, 4)
    ((15, 16, 16, 16, 16, 16, 16, 15), (2, 3, 3, 2))
    """
    most = -(-layers // stages)
    missing = stages * most - layers
    ends = [i for pair in zip(reversed(range(stages)), range(stages), strict=True) for i in pair]
    short = list(dict.fromkeys(ends))[:missing]
    return tuple(most - (i in short) for i in range(stages))


def _zero(row: Row) -> int:
    """ZeRO stage over the replicas: with fsdp above 1 they hold whole copies of its pieces."""
    stage = whole(row, "zero_stage", 0)
    return 0 if whole(row, "fsdp", 1) > 1 else min(stage, 2)


def _sequence_parallel(row: Row, stack: Stack) -> bool:
    """As stated; where not, xla shards activations over tensor, software of 2021 did not."""
    stated = row.get("sequence_parallel")
    return stated == "true" if stated else stack == "xla"


def _writes_scores(row: Row) -> bool:
    return row["source"].startswith(BEFORE_FLASH) or "bf16 xla" in said(row)


def _optimizer(row: Row) -> Any:
    words = said(row)
    return next((name for name in ("muon", "adafactor") if name in words), "adam")


def _mtp_layers(row: Row) -> int:
    """Layers of multi-token prediction: where the label, the notes or the convention say so."""
    words, model = said(row), row["model"].lower()
    counted = re.search(r"([\w.-]+) rows [^;]*include mtp", words)
    named = counted is not None and model.startswith(counted[1])
    return int(named or "(w/ mtp)" in words or "mtp depth 1" in words)

"""The plan of a published training run: from the columns of a table row to a slice and a TrainPlan.

Read by the columns and by what `recompute` and `notes` say, never by a row's id. What a source does
not state follows these rules:

- Software (`stack`): by the source (`STACKS`), or a column `stack`. ZeRO-3 runs of Megatron's own
  papers (before it had one) are DeepSpeed's, which is priced as fsdp.
- Slice: GPUs fill domains evenly (at most the catalogue's domain each); a torus is the most
  cube-like legal shape of its chips, cut into the pods or slices that the notes name. A fabric rate
  that the notes name replaces the catalogue's.
- Mesh: `dp` is the mesh axis data (replica where it crosses torus slices), `ep` takes its ranks
  from dp, else from fsdp, and what neither holds from tp (`expert_over_tensor`); where the degrees
  already multiply to the devices with ep, it is a factor of its own.
- `micro_batch` is per batch shard on GPU stacks and per device (JAX) of MaxText-like sources,
  which accumulate no gradients. Not stated: 1 under pipelining; the whole batch of a shard on xla;
  else the most sequences, a power of two, that make no more than 8,192 tokens (and fit without
  recompute, where that is not stated either).
- Schedule: `vpp` > 1 interleaves; "interleaved" in the notes with no `vpp` takes the fewest chunks
  that divide a stage; "dualpipe" is that schedule; else 1F1B. Layers that do not divide the chunks
  are spread evenly, ends of the pipeline last, since they hold the embedding and the head. A stage
  with fewer layers than chunks, or chunks that no schedule has, takes the next fewer, one that
  divides the stage if there is one.
- Recompute: see `remat.py`.
- Dtypes: see `dtypes_of`. Optimizer: Adam, or the one that the notes name.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from shardwise.errors import BadRequest, unknown
from shardwise.evidence.training.models import Row, said, whole
from shardwise.evidence.training.remat import with_remat
from shardwise.hardware import Chip, Slice, Torus, load_chip
from shardwise.hardware.shapes import shapes_with
from shardwise.hardware.slices import domain_of
from shardwise.models import ModelConfig
from shardwise.plans import MESH_AXES, TrainDtypes, TrainPlan, model_hash
from shardwise.plans.laws import BATCH_AXES
from shardwise.plans.stacks import STACKS as SOFTWARE
from shardwise.plans.stacks import StackName, stack_row
from shardwise.plans.train import STORAGE_AXES
from shardwise.scheduling.pipeline import PLAIN, ScheduleRow, schedule_row

INTERLEAVED = schedule_row("interleaved")
"""What `vpp` above 1 means."""

SAID: Mapping[str, ScheduleRow] = {
    "dualpipe": schedule_row("dualpipe"),
    "interleaved schedule": INTERLEAVED,
}
"""Schedules as notes of runs state them."""

STACKS: Mapping[str, StackName] = {
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

OWN_ZERO3 = ("nemo",)
"""Megatron sources whose ZeRO-3 is Megatron's own (Megatron-FSDP)."""

COMPUTE = {"fp16": "f16", "": "f16"}
"""Names of compute dtypes that differ; those that state none are fp16 Megatron-DeepSpeed runs."""

MICRO_TOKENS = 8192
"""Tokens of a microbatch whose size is not stated."""


ZERO3_BY: Mapping[str, StackName] = {"megatron": "fsdp"}
"""Whose the ZeRO-3 runs are that a table of one software's runs has among them."""


def stack_of(row: Row) -> StackName:
    """The software of a run, by its column `stack` or its source."""
    stated = row.get("stack")
    if stated:
        known: dict[str, StackName] = {name: name for name in SOFTWARE}
        if stated not in known:
            raise unknown("stack", stated, SOFTWARE)
        return known[stated]
    found: list[StackName] = [s for prefix, s in STACKS.items() if row["source"].startswith(prefix)]
    if not found:
        raise BadRequest(
            f"source '{row['source']}' is of no known software; add a column 'stack' "
            f"({', '.join(SOFTWARE[:-1])} or {SOFTWARE[-1]})"
        )
    stack = found[0]
    if whole(row, "fsdp", 1) > 1 and not row["source"].startswith(OWN_ZERO3):
        return ZERO3_BY.get(stack, stack)
    return stack


def slice_of(row: Row) -> Slice:
    """The chips of a run."""
    chip, chips = _chip(row), whole(row, "num_devices")
    if not isinstance(chip.network, Torus):
        each = max(n for n in range(1, min(chips, domain_of(chip)) + 1) if chips % n == 0)
        return Slice(chip=chip, count=chips // each, shape=(each,))
    named = re.search(r"\b(\d{1,6}) (?:slice\(s\)|pods)", said(row))
    count = max(1, int(named[1])) if named else 1
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
    times = re.search(r"\b(\d{1,6})x(\d{1,6}) ?gb\b", words)
    if times:
        return float(times[1]) * float(times[2]) or None
    plain = re.search(r"\b(\d{1,9}) ?\(?(?:gbps|gb/s)", words)
    return (float(plain[1]) or None) if plain else None


def plan_of(row: Row, cfg: ModelConfig, piece: Slice) -> TrainPlan:
    """The plan of a run. Raises BadRequest where a TrainPlan cannot say it."""
    stack, mesh = stack_of(row), _mesh(row, piece)
    shards = prod(mesh.get(a, 1) for a in BATCH_AXES)
    counts = _microbatches(row, stack, whole(row, "global_batch_seqs"), shards)
    plan = _plan(row, cfg, piece, mesh, counts[0])
    return with_remat(row, [replace(plan, microbatches=n) for n in counts], cfg, piece)


def _plan(
    row: Row, cfg: ModelConfig, piece: Slice, mesh: Mapping[str, int], microbatches: int
) -> TrainPlan:
    """The plan but for what it recomputes."""
    stack = stack_of(row)
    layers, schedule, chunks = _pipeline(row, cfg)
    return TrainPlan(
        model=cfg.name,
        model_hash=model_hash(cfg),
        slice=str(piece),
        mesh=mesh,
        slices=piece.count,
        box=piece.shape,
        global_batch_sequences=whole(row, "global_batch_seqs"),
        sequence_length=whole(row, "seq_len"),
        microbatches=microbatches,
        layers_per_stage=layers,
        zero=_zero(row),
        storage_axes=STORAGE_AXES if stack_row(stack).stores_widely else ("fsdp",),
        reshard_after_forward=row.get("zero_stage") != "2",
        sequence_parallel=_sequence_parallel(row, stack),
        attention_kernel="scores" if _writes_scores(row) else "flash",
        pipeline_schedule=schedule,  # type: ignore[arg-type]
        virtual_stages=chunks,
        context_method=stack_row(stack).context_method,
        expert_dispatch="ragged",
        expert_over_tensor=_experts_over_tensor(row),
        optimizer=_optimizer(row),  # type: ignore[arg-type]
        mtp_layers=_mtp_layers(row),
        dtypes=dtypes_of(row),
        stack=stack,
    )


def dtypes_of(row: Row) -> TrainDtypes:
    """Dtypes by software.

    xla: f32 parameters that are cast for compute, no master copy (MaxText and Pax defaults).
    mosaicml: the same, gradients summed in f32 unless the notes say PURE. nanotron: bf16
    parameters, f32 gradients and master. Megatron-like: 16-bit parameters, f32 master; gradients
    in f32, but in 16 bit for fp16 runs (Megatron-LM sums those in fp16 unless told otherwise) and
    in NeMo (its performance recipes set grad_reduce_in_fp32 to False:
    NVIDIA-NeMo/Megatron-Bridge@2a0d46e scripts/performance/configs/llama). DeepSeek keeps moments
    in bf16 (arXiv 2412.19437, 3.3.2), as do runs that say so; where only the first moment is
    bf16, both count as bf16.
    """
    source = row["source"]
    stated = row.get("compute_dtype") or ""
    compute = COMPUTE.get(stated, stated)
    words = said(row)
    low = "bf16 adam mu" in words or source.startswith("deepseek")
    moments = "bf16" if low else "f32"
    if not stack_row(stack_of(row)).eager or source.startswith("mosaicml"):
        grad = "bf16" if "precision=pure" in words else "f32"
        return TrainDtypes(param="f32", compute=compute, grad=grad, master="none", moments=moments)
    half = "f16" if compute == "f16" else "bf16"
    grad = half if compute == "f16" or source.startswith("nemo") else "f32"
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


def _microbatches(row: Row, stack: StackName, batch: int, shards: int) -> list[int]:
    """Microbatches per step: what is stated, or what may have been, fewest first."""
    if row["source"].startswith(PER_DEVICE):
        return [1]
    if batch % shards:
        raise BadRequest(f"a batch of {batch} does not divide over {shards} shards")
    each = batch // shards
    if row.get("micro_batch"):
        micro = whole(row, "micro_batch")
        if not micro or each % micro:
            raise BadRequest(f"microbatches of {micro} do not divide the {each} of a shard")
        return [each // micro]
    if whole(row, "pp", 1) > 1:
        return [each]
    if not stack_row(stack).eager:
        return [1]
    most = max(1, MICRO_TOKENS // whole(row, "seq_len"))
    return [each // n for n in range(most, 0, -1) if each % n == 0 and n & (n - 1) == 0]


def _pipeline(row: Row, cfg: ModelConfig) -> tuple[tuple[int, ...], str, int]:
    """Layers per stage, the schedule and its chunks per stage."""
    stages, words = whole(row, "pp", 1), said(row)
    layers = spread(cfg.layers, stages)
    if stages == 1:
        return layers, PLAIN, 1
    stated = next((kind for phrase, kind in SAID.items() if phrase in words), None)
    if stated is not None and len(stated.chunks) == 1:
        return layers, stated.name, stated.chunks[0]
    chunks = whole(row, "vpp", 0)
    if not chunks and stated is not None:
        fits = (n for n in stated.chunks if layers[0] % n == 0)
        chunks = next(fits, 1) if len(set(layers)) == 1 else 1
    allowed = [n for n in INTERLEAVED.chunks if n <= min(chunks, *layers)]
    if not allowed:
        return layers, PLAIN, 1
    even = [n for n in allowed if max(layers) % n == 0]
    return layers, INTERLEAVED.name, chunks if chunks in allowed else max(even or allowed)


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


def _sequence_parallel(row: Row, stack: StackName) -> bool:
    """As stated; where not, xla shards activations over tensor, software of 2021 did not."""
    stated = row.get("sequence_parallel")
    return stated == "true" if stated else not stack_row(stack).eager


def _writes_scores(row: Row) -> bool:
    return row["source"].startswith(BEFORE_FLASH) or "bf16 xla" in said(row)


def _optimizer(row: Row) -> Any:
    words = said(row)
    return next((name for name in ("muon", "adafactor") if name in words), "adam")


def inferences(row: Row, plan: TrainPlan, piece: Slice) -> tuple[str, ...]:
    """What the source does not state, or a plan cannot say, and what was taken instead."""
    found = []
    if not row.get("micro_batch"):
        found.append(f"micro-batch not stated: {plan.microbatches} microbatches")
    if not row.get("recompute"):
        found.append(f"recompute not stated: {plan.remat}")
    if not row.get("compute_dtype"):
        found.append(f"dtype not stated: {plan.dtypes.compute}")
    if not row.get("vocab"):
        found.append("vocabulary not stated: 51,200")
    asked = whole(row, "vpp", 0)
    if plan.degree("stage") > 1 and asked != plan.virtual_stages and asked != 1:
        said_so = f"vpp {asked}" if asked else "vpp not stated"
        found.append(f"{said_so}: {plan.pipeline_schedule} with {plan.virtual_stages} chunk(s)")
    text = (row.get("recompute") or "").lower()
    if re.search(r"\d+ layers", text):
        found.append(f"'{text}' by kinds: {plan.remat} {dict(plan.remat_kinds)}")
    if text.startswith("rematerialization"):
        found.append(f"'{text}' as {plan.remat}")
    if "offload" in text and piece.chip.host_link_oneway is None:
        found.append(f"host copies count as hidden: {piece.chip.id} has no host link on record")
    return tuple(found)


def _mtp_layers(row: Row) -> int:
    """Layers of multi-token prediction: where the label, the notes or the convention say so."""
    words, model = said(row), row["model"].lower()
    counted = re.search(r"([\w.-]+) rows [^;]*include mtp", words)
    named = counted is not None and model.startswith(counted[1])
    return int(named or "(w/ mtp)" in words or "mtp depth 1" in words)

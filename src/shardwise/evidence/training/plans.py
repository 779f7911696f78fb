"""The slice and the plan of a measured run.

What a row states is taken; what it leaves open follows from these rules, the same for every row:

- Slice: the most compact shape of the stated slices; of switched chips the stated nodes, else the
  widest domain that divides the chips.
- Mesh: `ep` divides dp, else fsdp, else it is a factor of its own; where it is more than dp x fsdp
  it spans tp too. On several slices of a torus dp crosses them, and where there is none fsdp does.
- Activations are cut over tensor on XLA and in software of 2024 and later.
- ZeRO: of replicas in PyTorch the optimizer is in pieces (stage 1) where the run does not fit
  with whole copies, since it ran.
- Microbatches: one where `micro_batch` is of a device (such rows accumulate no gradients). Not
  stated: 1 sequence under pipelining; the whole batch of a shard where a compiler lays the step
  out; else the most sequences, a power of two, that make no more than 8,192 tokens and fit (without
  recompute, where that is not stated either).
- Schedule: interleaved without `vpp` takes the fewest chunks that divide a stage. Layers that do
  not divide the chunks are spread evenly, ends of the pipeline last, since they hold the embedding
  and the head; or stage by stage where the software does (`filled`). A stage with fewer layers
  than chunks, or chunks that no schedule has, takes the next fewer, one that divides the stage if
  there is one.
- Recompute: see `remat.py`. Dtypes: see `dtypes_of`.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, prod, sqrt
from pathlib import Path

from shardwise.boundary.tables import WrongCell, of_column
from shardwise.evidence.training.remat import offloads, stated, with_remat
from shardwise.evidence.training.table import RunRow
from shardwise.hardware import Chip, Slice, Torus, load_chip
from shardwise.hardware.shapes import shapes_with
from shardwise.hardware.slices import domain_of
from shardwise.models import ModelConfig
from shardwise.models.specs import Attention, Mlp
from shardwise.plans import MESH_AXES, TrainDtypes, TrainPlan, model_hash
from shardwise.plans.context_methods import context_row
from shardwise.plans.laws import BATCH_AXES
from shardwise.plans.optimizers import optimizer_row
from shardwise.plans.software.usual import master_of
from shardwise.plans.stacks import GraphScope, Reduces, StackName, StackRow, stack_row
from shardwise.plans.train import STORAGE_AXES
from shardwise.scheduling.pipeline import PLAIN, ScheduleRow, schedule_row

INTERLEAVED = schedule_row("interleaved")
"""What `vpp` above 1 means."""

MICRO_TOKENS = 8192
"""Tokens of a microbatch whose size is not stated."""


def stack_of(row: RunRow) -> StackName:
    """The stated software, else the most usual one of similar runs."""
    if row.stack is not None:
        return row.stack
    if isinstance(load_chip(row.hardware).network, Torus):
        return "xla"
    return "fsdp" if row.fsdp > 1 else "megatron"


def slice_of(row: RunRow, folder: Path) -> Slice:
    """The chips of a run; `folder` is the table's."""
    chip, chips = _chip(row, folder), row.num_devices
    if not isinstance(chip.network, Torus):
        chips = _chips(row, chip)
        count = row.slices or _nodes(chips, domain_of(chip))
        if chips % count or chips // count > domain_of(chip):
            rule = f"it must cut the {chips} chips into nodes of at most {domain_of(chip)} each"
            raise WrongCell("slices", count, rule)
        return Slice(chip=chip, count=count, shape=(chips // count,))
    count = row.slices or 1
    shapes = shapes_with(chip.network, chips / count)
    if row.slice:
        shapes = [s for s in shapes if sorted(s) == sorted(_shape(row.slice))]
    if not shapes:
        stated = f" of shape {row.slice}" if row.slice else ""
        rule = f"in {count} slice(s){stated}: {chip.id} has no such slice; see `shardwise hw show`"
        raise WrongCell("num_devices", chips, rule)
    return Slice(chip=chip, count=count, shape=shapes[0])


def _chips(row: RunRow, chip: Chip) -> int:
    """Chips of a run. Of one with several devices, such as an MI250X, most people count those: so
    does a row whose degrees multiply to its number."""
    each, degrees = chip.jax_devices_per_chip, row.dp * row.fsdp * row.tp * row.pp * row.cp
    counted = each > 1 and degrees == row.num_devices and degrees % each == 0
    return degrees // each if counted else row.num_devices


def _nodes(chips: int, domain: int) -> int:
    """Nodes that hold some chips, as few as there are with as many chips in each.

    >>> _nodes(64, 8), _nodes(6, 8), _nodes(20, 8)
    (8, 1, 4)
    """
    return next(n for n in range(-(-chips // domain), chips + 1) if chips % n == 0)


def _shape(text: str) -> tuple[int, ...]:
    """The shape of a slice, spelt with or without its chip.

    >>> _shape("2*v5p:4x4x8")
    (4, 4, 8)
    """
    sizes = text.rpartition(":")[2].split("x")
    if not all(size.strip().isdigit() for size in sizes):
        raise WrongCell("slice", text, "it must be the shape of one slice, such as 4x4x8")
    return tuple(int(size) for size in sizes)


def _chip(row: RunRow, folder: Path) -> Chip:
    """The chip, with what the row says differs from the catalogue."""
    overlaid = [word.strip() for word in row.hw.split(";") if word.strip()]
    words = [word for word in overlaid if "=" in word]
    files = [folder / word for word in overlaid if "=" not in word]
    with of_column("hardware"):
        chip = load_chip(row.hardware)
    with of_column("hw"):
        chip = load_chip(row.hardware, hw_files=files, set_=words) if overlaid else chip
    if row.nic_gbps_per_device is None or chip.data_centre is None:
        return chip
    oneway = row.nic_gbps_per_device * 1e9 / 8 * chip.jax_devices_per_chip
    return replace(chip, data_centre=replace(chip.data_centre, chip_oneway=oneway))


def plan_of(row: RunRow, cfg: ModelConfig, piece: Slice) -> TrainPlan:
    """The plan of a run. Raises BadRequest where a TrainPlan cannot say it."""
    mesh = _mesh(row, piece)
    shards = prod(mesh.get(a, 1) for a in BATCH_AXES)
    counts = _microbatches(row, shards, piece.devices)
    plan = _plan(row, cfg, piece, mesh, counts[0])
    plans = [replace(plan, zero=z, microbatches=n) for z in _zeros(row) for n in counts]
    return with_remat(row, plans, cfg, piece)


def _zeros(row: RunRow) -> tuple[int, ...]:
    """ZeRO stages that a run may have had, least first."""
    if row.fsdp > 1:  # the replicas hold whole copies of its pieces
        return (0,)
    open_ = row.zero is None and row.dp > 1 and stack_row(stack_of(row)).eager
    return (0, 1) if open_ else (min(row.zero or 0, 2),)


def _plan(
    row: RunRow, cfg: ModelConfig, piece: Slice, mesh: Mapping[str, int], microbatches: int
) -> TrainPlan:
    """The plan but for what it recomputes."""
    software = stack_row(stack_of(row))
    layers, schedule, chunks = _pipeline(row, cfg)
    with of_column("context_method"):
        context = context_row(row.context_method or software.context_method)
    with of_column("optimizer"):
        optimizer = optimizer_row(row.optimizer)
    return TrainPlan(
        model=cfg.name,
        model_hash=model_hash(cfg),
        slice=str(piece),
        mesh=mesh,
        slices=piece.count,
        box=piece.shape,
        global_batch_sequences=row.global_batch_seqs,
        sequence_length=row.seq_len,
        microbatches=microbatches,
        layers_per_stage=layers,
        zero=_zeros(row)[0],
        storage_axes=STORAGE_AXES if software.stores_widely else ("fsdp",),
        weight_gather=row.weight_gather or (software.piped_gather if row.pp > 1 else "per_pass"),
        gradient_reduce=_reduces(row, software),
        gradient_accumulation=row.gradient_accumulation,
        overlap=row.overlap,
        compiled=row.compiled,
        fused_loss=row.fused_loss,
        cuda_graph=_scopes(row.cuda_graph),
        grouped_kernel=row.grouped_kernel or "per_expert",
        dispatcher=None if row.dispatcher in ("", "ragged") else row.dispatcher,
        wide=_wide(row),
        packed_lengths=packed(row.seq_len, row.attention_length),
        sequence_parallel=_or(row.sequence_parallel, _cuts_rows(row, software)),
        attention_kernel=row.attention_kernel,
        pipeline_schedule=schedule,  # type: ignore[arg-type]
        virtual_stages=chunks,
        context_method=context.name,
        expert_dispatch="ragged" if row.expert_dispatch == "ragged" else "dense",
        expert_capacity=row.capacity_factor or 1.0,
        expert_over_tensor=row.ep > row.dp * row.fsdp,
        optimizer=optimizer.name,
        lora_rank=row.lora_rank,
        lora_targets=row.lora_targets or (),
        quantize=row.quantize,
        library=row.library,
        frozen=row.frozen or (),
        mtp_layers=row.mtp_layers,
        logit_chunks=row.logit_chunks,
        dtypes=dtypes_of(row),
        stack=stack_of(row),
    )


RECENT = "2024"
"""First year whose PyTorch trainers compute in bf16 and cut activations over tensor unless told
otherwise: so do all published runs since then, 177 over tensor. Megatron-LM demands the cut of
experts (training/arguments.py)."""


def _recent(row: RunRow) -> bool:
    return (row.release or RECENT) >= RECENT


def _cuts_rows(row: RunRow, software: StackRow) -> bool:
    """Whether activations between matmuls are cut over tensor where the row does not say."""
    return not software.eager or (row.tp > 1 and _recent(row))


def _reduces(row: RunRow, software: StackRow) -> Reduces:
    """How often gradients of pieces are reduced."""
    if row.fsdp == 1:
        return "per_microbatch"
    return row.gradient_reduce or (software.piped_reduce if row.pp > 1 else "per_microbatch")


def _scopes(text: str) -> tuple[GraphScope, ...]:
    """What graphs capture: of "full", or of "scoped:attn,mamba".

    >>> _scopes("scoped:attn,mamba"), _scopes("none")
    (('attn', 'mamba'), ())
    """
    if text in ("", "none"):
        return ()
    return tuple(text.removeprefix("scoped:").split(","))  # type: ignore[return-value]


def _wide(row: RunRow) -> tuple[str, ...]:
    """Components beside router and head that stay in 16 bits where others do not."""
    return ("attention", "linear_attention", "moe_latent") if row.attention_dtype == "bf16" else ()


def packed(length: int, mean: float | None) -> tuple[int, ...]:
    """Documents of one sequence whose attention costs what is stated, () for one document.

    `mean` is the sum of their squared lengths over their sum. Of n documents n - 1 are b long and
    one a, where n is the fewest with length / n <= mean and

        a + (n - 1) b = length,   a^2 + (n - 1) b^2 = mean x length

    >>> packed(8192, None), packed(8192, 4096.0), packed(100, 62.5)
    ((), (4096, 4096), (75, 25))
    """
    if mean is None or mean >= length:
        return ()
    count = min(ceil(length / mean), length)
    spread = max(count * mean - length, 0.0) * length / (count - 1)
    short = max(round((length - sqrt(spread)) / count), 1)
    return (length - (count - 1) * short, *[short] * (count - 1))


def _or(stated: bool | None, rule: bool) -> bool:
    return rule if stated is None else stated


def dtypes_of(row: RunRow) -> TrainDtypes:
    """Dtypes as stated; else compute is bf16, and f16 in earlier software in PyTorch and on chips
    without bf16, and

    - where a compiler lays the step out: f32 parameters that are cast for compute, no master copy
      (MaxText and Pax defaults), gradients and moments as the parameters (`jax.grad` and optax's
      `zeros_like(params)`);
    - else 16-bit parameters with an f32 master copy, gradients in f32, those of fp16 runs in fp16
      (Megatron-LM sums them so unless told otherwise). Parameters in f32 are that copy themselves.
    """
    compute = row.compute_dtype or _half(row)
    half = "f16" if compute == "f16" else "bf16"
    eager = stack_row(stack_of(row)).eager
    param = row.param_dtype or (half if eager else "f32")
    made = ("f16" if compute == "f16" else "f32") if eager else param
    return TrainDtypes(
        param=param,
        compute=compute,
        grad=row.grad_dtype or made,
        master=row.master_dtype or (master_of(param) if eager else "none"),
        moments=row.moments_dtype or ("f32" if eager else param),
    )


def _half(row: RunRow) -> str:
    """The 16-bit dtype of a run that states none."""
    usual = _recent(row) or not stack_row(stack_of(row)).eager
    return "bf16" if usual and "bf16" in load_chip(row.hardware).peak_flops else "f16"


def _mesh(row: RunRow, piece: Slice) -> dict[str, int]:
    data, fsdp, expert, devices = row.dp, row.fsdp, row.ep, piece.devices
    if data * fsdp * row.tp * row.pp * row.cp * expert != devices:
        data, fsdp, expert = _subdivided(data, fsdp, row.tp, expert)
    replica = 1
    if isinstance(piece.chip.network, Torus) and piece.count > 1:
        replica, data = data, 1
    degrees = {"replica": replica, "stage": row.pp, "data": data, "fsdp": fsdp}
    degrees |= {"expert": expert, "context": row.cp, "tensor": row.tp}
    if prod(degrees.values()) != devices:
        product = prod(degrees.values())
        rule = f"dp, fsdp, tp, pp, cp and ep multiply to {product}, not to {devices}; make them so"
        raise WrongCell("num_devices", row.num_devices, rule)
    return {axis: degrees[axis] for axis in MESH_AXES if degrees[axis] > 1}


def _subdivided(data: int, fsdp: int, tensor: int, expert: int) -> tuple[int, int, int]:
    """data, fsdp and expert of a mesh in which expert is made of ranks of the others."""
    if expert % tensor == 0 and expert > data * fsdp:
        expert //= tensor
    if data % expert == 0:
        return data // expert, fsdp, expert
    if expert % data == 0 and fsdp % (expert // data) == 0:
        return 1, fsdp // (expert // data), expert
    raise WrongCell("ep", expert, f"it must divide the {data} x {fsdp} ranks of dp and fsdp")


def _microbatches(row: RunRow, shards: int, devices: int) -> list[int]:
    """Microbatches per step: what is stated, or what may have been, fewest first."""
    batch = row.global_batch_seqs
    if row.micro_batch_per == "device":
        each = (row.micro_batch or batch) * devices
        return [max(round(batch / each), 1) if batch % each == 0 else 1]
    if batch % shards:
        rule = f"it must be a multiple of the {shards} shards of dp, fsdp and ep"
        raise WrongCell("global_batch_seqs", batch, rule)
    each = batch // shards
    if row.micro_batch is not None:
        if each % row.micro_batch:
            rule = f"it must divide the {each} sequences of a shard"
            raise WrongCell("micro_batch", f"{row.micro_batch:g}", rule)
        return [round(each / row.micro_batch)]
    if row.pp > 1:
        return [each]
    if not stack_row(stack_of(row)).eager:
        return [1]
    most = max(1, MICRO_TOKENS // row.seq_len)
    return [each // n for n in range(most, 0, -1) if each % n == 0 and n & (n - 1) == 0]


def _pipeline(row: RunRow, cfg: ModelConfig) -> tuple[tuple[int, ...], str, int]:
    """Layers per stage, the schedule and its chunks per stage."""
    layers, chunks = _layers_per_stage(row, cfg), row.vpp or 0
    several = chunks > 1 or (row.vpp is None and "pipeline" in (row.overlap or ()))
    named = row.schedule or (INTERLEAVED.name if several else PLAIN)
    with of_column("schedule"):
        stated = schedule_row(named)
    if row.pp == 1:
        return layers, PLAIN, 1
    if len(stated.chunks) == 1:
        return layers, stated.name, stated.chunks[0]
    if not chunks:
        chunks = _chunks(row, stated, layers)
    allowed = [n for n in stated.chunks if n <= min(chunks, *layers)]
    if not allowed:
        return layers, PLAIN, 1
    even = [n for n in allowed if max(layers) % n == 0]
    return layers, stated.name, chunks if chunks in allowed else max(even or allowed)


MOST_IDLE = 0.1
"""Share of a step up to which a pipeline may idle before one would cut its stages further."""


def _chunks(row: RunRow, schedule: ScheduleRow, layers: tuple[int, ...]) -> int:
    """Chunks per stage where they are not stated: the fewest that divide the layers of a stage and
    with which the pipeline idles for little, (S - 1) / (v M); the most that there are otherwise."""
    microbatches = row.global_batch_seqs / (row.dp * row.fsdp * (row.micro_batch or 1.0))
    fits = [n for n in schedule.chunks if max(layers) % n == 0 and n <= min(layers)]
    idle = ((n, (row.pp - 1) / (n * microbatches)) for n in fits)
    return next((n for n, share in idle if share <= MOST_IDLE), max(fits, default=1))


def _layers_per_stage(row: RunRow, cfg: ModelConfig) -> tuple[int, ...]:
    """Layers per stage as the software lays them, where they are all alike."""
    mixer, mlp = cfg.groups[0].mixer, cfg.groups[0].mlp
    by_cost = stack_row(stack_of(row)).fills_stages and len(cfg.groups) == 1
    if not by_cost or not isinstance(mixer, Attention) or not isinstance(mlp, Mlp):
        return spread(cfg.layers, row.pp)
    layer = 4 * mixer.heads * mixer.head_dim + 3 * mlp.d_ff
    return filled(cfg.layers, row.pp, cfg.vocabulary / layer)


def filled(layers: int, stages: int, head: float) -> tuple[int, ...]:
    """Layers of stages that are filled one after the other until they exceed their share of the
    work, with a head that costs as much as so many layers.

    A stage has one layer at least, from its neighbour.

    >>> filled(16, 2, 0.0), filled(32, 4, 2.2)
    ((9, 7), (9, 9, 8, 6))
    """
    counts, share = [0] * stages, (layers + head) / stages
    stage = 0
    for done in range(1, layers + 1):
        counts[stage] += 1
        if done > share * (stage + 1):
            stage += 1
    for index in range(stages - 1, 0, -1):
        missing = max(1 - counts[index], 0)
        counts[index] += missing
        counts[index - 1] -= missing
    return tuple(counts)


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


def inferences(row: RunRow, plan: TrainPlan, piece: Slice) -> tuple[str, ...]:
    """What the row leaves open, or a plan cannot say, and what was taken instead."""
    found = []
    if row.micro_batch is None:
        found.append(f"micro-batch not stated: {plan.microbatches} microbatches")
    if not row.remat:
        found.append(f"recompute not stated: {plan.remat}")
    if len(_zeros(row)) > 1:
        found.append(f"ZeRO not stated: stage {plan.zero}")
    if row.stack is None:
        found.append(f"software not stated: {plan.stack}")
    if not row.compute_dtype:
        found.append(f"dtype not stated: {plan.dtypes.compute}")
    if plan.degree("stage") > 1 and row.vpp not in (plan.virtual_stages, 1):
        said_so = f"vpp {row.vpp}" if row.vpp else "vpp not stated"
        found.append(f"{said_so}: {plan.pipeline_schedule} with {plan.virtual_stages} chunk(s)")
    if row.remat_layers:
        found.append(
            f"'{row.remat}' of {row.remat_layers} layers by kinds: {plan.remat} "
            f"{dict(plan.remat_kinds)}"
        )
    if row.remat and offloads(*stated(row.remat)) and piece.chip.host_link_oneway is None:
        found.append(f"host copies count as hidden: {piece.chip.id} has no host link on record")
    return tuple(found)

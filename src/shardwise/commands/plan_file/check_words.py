"""Words of `check`: what a change is, and what it may cost that no price has in it."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.planner.evaluate import TrainAnswer
from shardwise.plans import MESH_AXES, TrainPlan
from shardwise.units import gib

_NAMES = {
    "pipeline_schedule": "schedule",
    "offload_optimizer": "optimizer in host memory",
    "zero": "ZeRO stage",
    "logit_chunks": "loss chunks",
    "compiled": "compiled layers",
    "overlap": "transfers during compute",
}
NO_RISK = "none for the result"
_CHECKPOINT = "convert checkpoints of the run so far: weights are sharded differently"
_BESIDE = (
    "matmuls slow down during transfers, which use some of the GPU's multiprocessors; "
    "transfers of tensor parallelism need buffers that the library registers first"
)
_RISKS: Mapping[str, str] = {
    "microbatches": "the order of sums changes: losses differ in the last digits",
    "zero": "the optimizer's checkpoint is sharded differently",
    "sequence_parallel": NO_RISK,
    "pipeline_schedule": "layers move to other stages (convert checkpoints), with more messages "
    "between them",
    "overlap": _BESIDE,
    "weight_gather": "gathered weights stay in memory longer",
    "context_method": "another attention kernel: compare losses over the first steps",
    "compiled": "the first steps compile for minutes; code that cannot be traced falls back to "
    "eager",
    "expert_over_tensor": _CHECKPOINT,
    "dispatcher": "DeepEP is a separate library; build it for the cluster",
    "offload_optimizer": "the host needs the memory; its cores and its link set the time of "
    "updates",
    "logit_chunks": NO_RISK,
    "fused_loss": "the kernel comes from a library (Liger), which must support the model",
    "optimizer": "8-bit moments come from a library (bitsandbytes): compare losses",
}
"""What may go wrong, by choice (ours)."""


def change_text(old: TrainPlan, new: TrainPlan, choices: Sequence[str], optimizer: str = "") -> str:
    """The change in a line; `optimizer` is what the file's program calls the new one."""
    own = {"optimizer": f" ({optimizer} in the file)"} if optimizer else {}
    return ", ".join(
        f"{text}{own.get(choice, '')}" for choice in choices for text in _changed(old, new, choice)
    )


def _changed(old: TrainPlan, new: TrainPlan, choice: str) -> list[str]:
    if choice == "mesh":
        moved = [a for a in MESH_AXES if old.degree(a) != new.degree(a)]
        return [f"{axis} {old.degree(axis)} -> {new.degree(axis)}" for axis in moved]
    if choice == "microbatches":
        sizes = [p.global_batch_sequences // (p.batch_shards * p.microbatches) for p in (old, new)]
        return [f"sequences per microbatch {sizes[0]} -> {sizes[1]}"]
    if choice == "remat":
        return [f"remat {_remat(old)} -> {_remat(new)}"]
    if choice == "overlap":
        more = sorted(new.hidden - old.hidden)
        return [f"transfers of {' and '.join(more)} during compute"]
    if choice == "pipeline_schedule":
        return [f"schedule {_schedule(old)} -> {_schedule(new)}"]
    values = [_word(getattr(plan, choice)) for plan in (old, new)]
    return [f"{_NAMES.get(choice, choice.replace('_', ' '))} {values[0]} -> {values[1]}"]


def _word(value: Any) -> str:
    if value is None:
        return "program default"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _remat(plan: TrainPlan) -> str:
    kinds = ", ".join(f"{kind} {place}" for kind, place in plan.remat_kinds.items())
    return f"{plan.remat} ({kinds})" if kinds else plan.remat


def _schedule(plan: TrainPlan) -> str:
    chunks = plan.virtual_stages
    return plan.pipeline_schedule + (f" with {chunks} chunks" if chunks > 1 else "")


def risks_of(
    old: TrainAnswer, new: TrainAnswer, choices: Sequence[str], margin: float
) -> list[str]:
    """What a change may cost that its price does not have, and that little memory stays free."""
    said = []
    need, usable = new.peak_bytes_per_chip, new.piece.chip.require("hbm_usable_bytes")
    if need > old.peak_bytes_per_chip and usable - need < margin * usable:
        said.append(f"only {gib(usable - need)} a chip stay free")
    for choice in choices:
        if choice == "mesh":
            moved = {a for a in MESH_AXES if old.plan.degree(a) != new.plan.degree(a)}
            said.append(_RESHARDED if moved <= _COPIES else _CHECKPOINT)
        elif choice == "remat":
            kept = new.peak_bytes_per_chip > old.peak_bytes_per_chip
            said.append(_KEPT if kept else NO_RISK)
        else:
            said.append(_RISKS[choice])
    if "tensor" in new.plan.hidden - old.plan.hidden and new.plan.stack_row.eager:
        said.append(_BESIDE)  # a compiler cuts products into rings itself
    said = list(dict.fromkeys(said))
    return [one for one in said if one != NO_RISK] or [NO_RISK]


_KEPT = "more activations are kept: longer sequences or uneven experts need still more"
_COPIES = {"data", "fsdp", "replica", "context"}
"""Axes that cut no weight while it is used."""
_RESHARDED = "the optimizer's state is sharded differently: reshard its checkpoint"
